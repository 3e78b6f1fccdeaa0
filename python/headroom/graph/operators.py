"""What is known of operators, their arguments and their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from headroom import _C
from headroom.graph.unsupported import LEAVE_OUT, Unsupported

aten = torch.ops.aten

# Views by what they do, though their schemas do not say so.
_QUIET_VIEWS = {aten._unsafe_view.default, aten._reshape_alias.default, aten.lift_fresh.default}

# In a node's meta: it runs in forward, whether or not forward's outputs need it.
IN_FORWARD = "headroom_in_forward"

# Operators that may write their result over their first argument, though they have no variant named for it.
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
    """A size as a number. A symbolic one is that of this call from now on: other sizes are planned on their own."""
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
    if not isinstance(target, torch._ops.OpOverload):
        return False
    returns = target._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def writes(target: object) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def flat_results(value: object) -> list[object]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def in_place_of(target: object) -> torch._ops.OpOverload | None:
    """The same operator on the memory of its first argument, which it takes once more at the end if it is an out."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    packet = target.overloadpacket
    if packet in _WRITE_GRAD_INPUT:
        return packet.grad_input
    if target.namespace != "aten" or torch.Tag.pointwise not in target.tags:
        return None
    variant = getattr(getattr(aten, f"{packet.__name__}_", None), target._overloadname, None)
    if variant is None:
        return None
    names = [one.name for one in target._schema.arguments]
    return variant if names == [one.name for one in variant._schema.arguments] else None


def needs_a_tensor(node: fx.Node) -> list[fx.Node]:
    return [one for one in pytree.arg_tree_leaves(*node.args, **node.kwargs) if isinstance(one, fx.Node)]


def is_alias(value: torch.Tensor, node: fx.Node) -> bool:
    """Whether an operator handed an input back, as those that convert do where there is nothing to convert."""
    inputs = [one for one in needs_a_tensor(node) if is_tensor(one.meta.get("val"))]
    return bool(inputs) and any(
        value.untyped_storage()._cdata == one.meta["val"].untyped_storage()._cdata for one in inputs
    )


def normalized_arguments(node: fx.Node, reference: Callable[[fx.Node], object]) -> list[object]:
    """All arguments in the order of the schema, defaults included, with nodes replaced."""
    schema = node.target._schema
    given = list(node.args)
    arguments = []
    for position, argument in enumerate(schema.arguments):
        if position < len(given) and not argument.kwarg_only:
            value = given[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        else:
            value = argument.default_value
        arguments.append(fx.node.map_arg(value, reference))
    return arguments
