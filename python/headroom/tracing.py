"""Has AOTAutograd trace the kernels that eager calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import fx
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import unset_fake_temporarily

from headroom.rewrite import ancestors

# Operators that PyTorch decomposes in Python while it traces, though eager runs a kernel, or another decomposition, of
# which the results differ in their last bits.
_DECOMPOSED = (
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_lanczos2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "dropout",
    "hardshrink",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "softshrink",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
)
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Removes PyTorch's decompositions of `_DECOMPOSED` while it lasts. Dynamo compiles one graph at a time."""
    removed = []
    packets = [getattr(torch.ops.aten, name) for name in _DECOMPOSED if hasattr(torch.ops.aten, name)]
    for operator in [getattr(packet, name) for packet in packets for name in packet.overloads()]:
        for key in _KEYS:
            if key in operator.py_kernels:
                removed.append((operator, key, operator.py_kernels.pop(key)))
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, key, kernel in removed:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()


def drop_full_masks(gm: fx.GraphModule) -> None:
    """Removes attention masks that mask nothing and do not depend on the model's inputs.

    Some models pass no mask in eager and write out a full one while they are traced, the same for all keys and so
    expanded along them. Only the attention kernel without fusion takes such a mask; eager calls another one, which also
    draws other random numbers for dropout.
    """
    for node in gm.graph.find_nodes(op="call_function", target=torch.nn.functional.scaled_dot_product_attention):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if not isinstance(mask, fx.Node) or not _masks_nothing(mask):
            continue
        if len(node.args) > 3:
            node.update_arg(3, None)
        else:
            node.update_kwarg("attn_mask", None)
    gm.recompile()


def _masks_nothing(mask: fx.Node) -> bool:
    example = mask.meta.get("example_value")
    is_expanded = isinstance(example, torch.Tensor) and example.dtype is torch.bool and example.stride(-1) == 0
    if not is_expanded:
        return False
    reached = ancestors([mask])
    needed = [node for node in mask.graph.nodes if node in reached]
    if any(node.op not in ("call_function", "call_method") for node in needed):
        return False
    with unset_fake_temporarily(), torch.no_grad():
        values: dict[fx.Node, torch.Tensor] = {}
        for node in needed:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            target = node.target if node.op == "call_function" else getattr(type(args[0]), node.target)
            values[node] = target(*args, **kwargs)
        return bool(values[mask].all())
