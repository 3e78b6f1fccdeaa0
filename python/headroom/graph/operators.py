"""Properties of operators, their arguments and their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from headroom import _C
from headroom._torch import GuardOnDataDependentSymNode, OpOverload, pytree
from headroom.graph.unsupported import LEAVE_OUT, Unsupported

aten = torch.ops.aten

# Operators that return views although their schemas do not say so.
_QUIET_VIEWS = {aten._unsafe_view.default, aten._reshape_alias.default, aten.lift_fresh.default}

# Key in a node's meta for nodes that run in forward whether or not forward's outputs need them.
IN_FORWARD = "headroom_in_forward"

# Namespaces of operators whose results depend on their arguments and PyTorch's random generators alone, and that change
# nothing else.
_PURE_NAMESPACES = {
    "aten", "prims", "rngprims", "higher_order", "inductor", "mkl", "mkldnn", "onednn", "quantized",
    "quantized_decomposed", "torchaudio", "torchvision", "headroom",
}  # fmt: skip

# Operators that may write their result over their first argument, though they have no in-place variant.
_WRITE_GRAD_INPUT = {
    aten.elu_backward,
    aten.gelu_backward,
    aten.hardtanh_backward,
    aten.leaky_relu_backward,
    aten.sigmoid_backward,
    aten.silu_backward,
    aten.tanh_backward,
    aten.threshold_backward,
}


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def storage_bytes(value: torch.Tensor) -> int:
    return _C.allocated_bytes(concrete(value.untyped_storage().nbytes()), value.device)


def concrete(size: object) -> int:
    """Returns a size as a number. A symbolic size is fixed to that of this call: other sizes are planned separately."""
    if isinstance(size, torch.SymInt) and size.node.is_nested_int():
        raise Unsupported(f"nested tensors cannot be planned; {LEAVE_OUT}")
    return as_number(size, int)


def as_number(symbol: object, kind: type) -> Any:
    try:
        return kind(symbol)
    except GuardOnDataDependentSymNode as error:
        raise Unsupported(
            "a size that is known only once the step runs cannot be planned; leave the part that makes it out of the "
            "compiled region (torch.compiler.disable)"
        ) from error


def is_view(target: object) -> bool:
    if target in _QUIET_VIEWS:
        return True
    if not isinstance(target, OpOverload):
        return False
    returns = target._schema.returns
    return bool(returns) and all(result.alias_info is not None and not result.alias_info.is_write for result in returns)


def writes(target: object) -> bool:
    return isinstance(target, OpOverload) and target._schema.is_mutable


def is_collective(target: object) -> bool:
    return getattr(target, "namespace", "").startswith(("c10d", "_c10d"))


def is_opaque(node: fx.Node) -> bool:
    """Returns whether a call, or one in a subgraph that it takes, may depend on or change what PyTorch does not know.

    That is so for operators of other libraries (torch.library.custom_op): they may draw random numbers of any kind,
    count calls or communicate.
    """
    for leaf in [node.target, *pytree.arg_tree_leaves(*node.args, **node.kwargs)]:
        if isinstance(leaf, OpOverload) and leaf.namespace not in _PURE_NAMESPACES:
            return True
        if isinstance(leaf, fx.Node) and leaf.op == "get_attr":
            subgraph = getattr(node.graph.owning_module, str(leaf.target), None)
            if isinstance(subgraph, fx.GraphModule) and any(map(is_opaque, subgraph.graph.nodes)):
                return True
    return False


def flat_results(value: object) -> list[object]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def in_place_of(target: object) -> OpOverload | None:
    """Returns the variant of an operator that writes its result over its first argument, or None.

    If the variant has an out argument, the first argument is passed once more at the end.
    """
    if not isinstance(target, OpOverload):
        return None
    packet = target.overloadpacket
    if packet in _WRITE_GRAD_INPUT:
        return packet.grad_input
    if target.namespace != "aten" or torch.Tag.pointwise not in target.tags:
        return None
    variant = getattr(getattr(aten, f"{packet.__name__}_", None), target._overloadname, None)
    if variant is None:
        return None
    names = [argument.name for argument in target._schema.arguments]
    return variant if names == [argument.name for argument in variant._schema.arguments] else None


def needs_a_tensor(node: fx.Node) -> list[fx.Node]:
    return [leaf for leaf in pytree.arg_tree_leaves(*node.args, **node.kwargs) if isinstance(leaf, fx.Node)]


def is_alias(value: torch.Tensor, node: fx.Node) -> bool:
    """Returns whether an operator returned one of its inputs, as conversions do if there is nothing to convert."""
    inputs = [source for source in needs_a_tensor(node) if is_tensor(source.meta.get("val"))]
    return bool(inputs) and any(
        value.untyped_storage()._cdata == source.meta["val"].untyped_storage()._cdata for source in inputs
    )


def normalized_arguments(node: fx.Node, reference: Callable[[fx.Node], object]) -> list[object]:
    """Returns all arguments in the order of the schema, including defaults, with nodes replaced by `reference`."""
    schema = node.target._schema
    positional = list(node.args)
    arguments = []
    for position, argument in enumerate(schema.arguments):
        if position < len(positional) and not argument.kwarg_only:
            value = positional[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        else:
            value = argument.default_value
        arguments.append(fx.node.map_arg(value, reference))
    return arguments
