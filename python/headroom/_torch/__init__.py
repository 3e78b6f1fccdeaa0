"""The private APIs of PyTorch that headroom uses. Importing the package checks that the installed version has them.

`inductor` has those of Inductor, which takes a second to load and is loaded when it is first needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Returns a context in which a missing API is an error that names the versions of PyTorch that have it."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"headroom needs PyTorch 2.11 to 2.13; {torch.__version__} differs in what headroom uses: {error}"
        ) from error


with checked():
    import torch._dynamo
    import torch._functorch.config
    from functorch.compile import make_boxed_func
    from torch._C import DispatchKey
    from torch._dynamo import config as dynamo_config
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.eval_frame import OptimizedModule, innermost_backend
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._dynamo.repro.after_dynamo import WrapBackendDebug
    from torch._functorch import config as aot_config
    from torch._functorch import partitioners
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._guards import CompileContext, TracingContext, tracing
    from torch._inductor import config as inductor_config
    from torch._ops import HigherOrderOperator, OpOverload
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import _disable_current_modes as no_dispatch_modes
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    min_cut_partition = partitioners.min_cut_rematerialization_partition
    must_be_in_backward = partitioners._must_be_in_backward
    must_be_in_forward = partitioners._must_be_in_forward
    current_backward = torch._C._current_graph_task_id  # -1 outside of autograd's backward
    extract_halves = partitioners._extract_fwd_bwd_modules
    cudnn_batch_norm = torch._C._BatchNormBackend.Cudnn
    cudnn_batch_norm_reserve_size = torch._C._get_cudnn_batch_norm_reserve_space_size
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    is_batch = torch._C._functorch.is_batchedtensor
    is_legacy_batch = torch._C._functorch.is_legacy_batchedtensor
    pop_saved_tensor_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
    push_saved_tensor_hooks = torch._C._autograd._push_saved_tensors_default_hooks
    select_batch_norm = torch._C._select_batch_norm_backend
    top_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks

__all__ = [
    "BackendCompilerFailed",
    "CompileContext",
    "DispatchKey",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "InputMutationAOTOutput",
    "OpOverload",
    "OptimizedModule",
    "ShapeEnv",
    "TracingContext",
    "WrapBackendDebug",
    "aot_config",
    "aot_module_simplified",
    "compile_lock",
    "dynamo_config",
    "inductor_config",
    "innermost_backend",
    "is_traceable_wrapper_subclass",
    "make_boxed_func",
    "no_dispatch_modes",
    "pytree",
    "tracing",
    "unset_fake_temporarily",
]
