"""The private APIs of Inductor that headroom uses."""

from __future__ import annotations

from headroom._torch import checked

with checked():
    from torch._inductor import custom_graph_pass, ir
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
    from torch._inductor.dependencies import WeakDep
    from torch._inductor.graph import GraphLowering
    from torch._inductor.lowering import lowerings, register_lowering
    from torch._inductor.runtime.benchmarking import benchmarker
    from torch._inductor.scheduler import SchedulerNode
    from torch._inductor.utils import get_donated_idxs
    from torch._inductor.virtualized import V
    from torch._prims import rng_prims
    from torch.utils._ordered_set import OrderedSet

    # Base class of scheduler passes that Inductor's cache accepts; before 2.13 that was the class for graph passes.
    SchedulerPass = getattr(custom_graph_pass, "CustomSchedulerPass", custom_graph_pass.CustomGraphPass)
    recompute_size_and_body = SchedulerNode.recompute_size_and_body

__all__ = [
    "CustomPartitionerFn",
    "GraphLowering",
    "OrderedSet",
    "SchedulerNode",
    "V",
    "WeakDep",
    "benchmarker",
    "compile_fx",
    "compile_fx_inner",
    "get_donated_idxs",
    "get_hash_for_files",
    "ir",
    "lowerings",
    "register_lowering",
    "rng_prims",
]
