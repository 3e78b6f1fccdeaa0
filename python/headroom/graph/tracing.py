"""Makes Dynamo trace the sizes of a single call, and AOTAutograd the kernels that eager calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from headroom._torch import DispatchKey, FakeTensor, inductor_config, pytree, unset_fake_temporarily
from headroom.graph.operators import concrete
from headroom.graph.rewrite import ancestors

# Operators that PyTorch decomposes in Python while it traces, whereas eager runs a kernel or another decomposition,
# whose results differ in their last bits.
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
    """Returns a context without PyTorch's decompositions of `_DECOMPOSED`. Dynamo compiles one graph at a time.

    With Inductor's `fallback_random`, AOTAutograd keeps calls that draw random numbers that nothing uses.
    """
    removed = []
    packets = [getattr(torch.ops.aten, name) for name in _DECOMPOSED if hasattr(torch.ops.aten, name)]
    for operator in [getattr(packet, name) for packet in packets for name in packet.overloads()]:
        for key in _KEYS:
            if key in operator.py_kernels:
                removed.append((operator, key, operator.py_kernels.pop(key)))
        operator._dispatch_cache.clear()
    try:
        with inductor_config.patch(fallback_random=True):
            yield
    finally:
        for operator, key, kernel in removed:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()


def forget_numbers(gm: fx.GraphModule) -> None:
    """Makes Dynamo's example values in the nodes keep no real tensors made from the model's numbers.

    Otherwise the values would keep them, as constants and in autograd histories, for as long as the compiled graph
    lives. Nested graphs, of checkpoints and of autograd functions, have such values too. So have erased nodes, whose
    names the graph still knows.
    """
    for graph in [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]:
        erased = [named for named in graph._graph_namespace._obj_to_name if isinstance(named, fx.Node)]
        for node in (*graph.nodes, *erased):
            if "example_value" in node.meta:
                node.meta["example_value"] = pytree.tree_map_only(FakeTensor, _alone, node.meta["example_value"])


def _alone(value: FakeTensor) -> FakeTensor:
    """Returns a value with the same metadata that keeps no other tensors alive."""
    if value.grad_fn is None and value.constant is None:
        return value
    alone = value.detach()
    alone.constant = None
    return alone.requires_grad_(value.requires_grad)


# Files in which transformers makes masks, and repeats the heads of keys and values beside a mask.
_MAKES_MASKS = "transformers/masking_utils.py"
_REPEATS_HEADS = "transformers/integrations/sdpa_attention.py"
# Maximum size of heads that transformers passes to attention without repeating them.
_MAX_SHARED_HEAD = 256


def drop_full_masks(gm: fx.GraphModule) -> None:
    """Removes attention masks that do not depend on the model's inputs and that eager does not use.

    Some models pass no mask in eager, but make one while they are traced. A full mask, which masks nothing, is expanded
    along the keys, and only the unfused attention kernel takes that. A causal mask is converted and saved for backward
    by each layer, where eager sets `is_causal`. Beside a mask, heads that several queries share are repeated as well.
    Other kernels would also draw other random numbers for dropout.
    """
    attention = torch.nn.functional.scaled_dot_product_attention
    masks: dict[fx.Node, torch.Tensor | None] = {}
    for node in gm.graph.find_nodes(op="call_function", target=attention):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if not isinstance(mask, fx.Node):
            continue
        is_made = _is_made_in(mask, _MAKES_MASKS)
        if mask not in masks:
            masks[mask] = _constant(mask) if is_made or _is_expanded(mask) else None
        value = masks[mask]
        if value is None:
            continue
        is_full = bool(value.all())
        if not is_full and not (is_made and _is_causal(value)):
            continue
        _set_argument(node, 3, "attn_mask", None)
        if not is_full:
            _set_argument(node, 5, "is_causal", True)
        if is_made:
            _share_heads(node)
    gm.recompile()


def _set_argument(node: fx.Node, position: int, name: str, value: object) -> None:
    if len(node.args) > position:
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)


def _is_made_in(node: fx.Node, file: str) -> bool:
    """Returns whether a node comes from a line of that file itself, not of a function that it calls."""
    lines = [line for line in node.meta.get("stack_trace", "").splitlines() if line.startswith("  File ")]
    return bool(lines) and f'{file}"' in lines[-1].replace("\\", "/")


def _is_expanded(mask: fx.Node) -> bool:
    example = mask.meta.get("example_value")
    return isinstance(example, torch.Tensor) and example.dtype is torch.bool and example.stride(-1) == 0


def _is_causal(mask: torch.Tensor) -> bool:
    queries, keys = mask.shape[-2:]
    return queries == keys and bool((mask == mask.new_ones(queries, keys).tril()).all())


def _constant(mask: fx.Node) -> torch.Tensor | None:
    """Returns a boolean mask that depends on no input, or None."""
    example = mask.meta.get("example_value")
    reached = ancestors([mask])
    needed = [node for node in mask.graph.nodes if node in reached]
    is_computed = all(node.op in ("call_function", "call_method") for node in needed)
    if not is_computed or not isinstance(example, torch.Tensor) or example.dtype is not torch.bool:
        return None
    readers = {node: sum(user in reached for user in node.users) for node in needed}
    with unset_fake_temporarily(), torch.no_grad():
        values: dict[fx.Node, torch.Tensor] = {}
        for node in needed:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            target = node.target if node.op == "call_function" else getattr(type(args[0]), node.target)
            values[node] = target(*args, **kwargs)
            for source in node.all_input_nodes:
                readers[source] -= 1
                if readers[source] == 0:
                    del values[source]
        return values[mask]


def _share_heads(node: fx.Node) -> None:
    """Gives attention the heads of keys and values from before they were repeated because of a mask."""
    if len(node.args) < 3:
        return
    sources = [_before_repeat(repeated) for repeated in node.args[1:3]]
    sizes = [source.meta["example_value"].shape[-1] for source in sources if source is not None]
    if len(sizes) == 2 and sizes[0] == sizes[1] <= _MAX_SHARED_HEAD:
        node.update_arg(1, sources[0])
        node.update_arg(2, sources[1])
        node.update_kwarg("enable_gqa", True)


def _before_repeat(repeated: fx.Node) -> fx.Node | None:
    """Returns the tensor that `x[:, :, None].expand(…).reshape(…)` in transformers repeats, or None."""
    expanded = repeated.args[0] if repeated.op == "call_method" and repeated.target == "reshape" else None
    if expanded is None or not _is_made_in(repeated, _REPEATS_HEADS) or expanded.target != "expand":
        return None
    indexed = expanded.args[0]
    if indexed.target is not getitem or not isinstance(indexed.args[1], tuple):
        return None
    is_new = [index is None for index in indexed.args[1]]
    return indexed.args[0] if is_new == [False, False, True, False, False] else None


def is_cut(gm: fx.GraphModule) -> bool:
    """Returns whether Dynamo's graph ends at a graph break, so that other graphs follow it."""
    return getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False)


def specialize(example_inputs: Sequence[Any]) -> None:
    """Makes Dynamo specialize on the sizes of this call, so that other sizes get graphs of their own."""
    for example in example_inputs:
        if isinstance(example, torch.SymInt):
            concrete(example)
        elif isinstance(example, torch.Tensor):
            for size in (*example.shape, *example.stride(), example.storage_offset()):
                concrete(size)
