"""Calls that run for their effect, such as printing or checking, or draw random numbers.

Each effect happens once, in the order of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from headroom._torch import HigherOrderOperator, OpOverload, must_be_in_backward
from headroom.graph.operators import is_collective, is_opaque

if TYPE_CHECKING:
    from headroom.graph.capture import Call


def has_effect(target: object) -> bool:
    """Returns whether an operator takes and returns a token, which orders effects, or has no result at all."""
    if isinstance(target, OpOverload):
        return not target._schema.returns
    return str(target) == "with_effects"


def is_token(node: fx.Node) -> bool:
    """Returns whether an input is the token of the first effect, for which AOTAutograd passes None."""
    return any(str(user.target) == "with_effects" and user.args[0] is node for user in node.users)


def forward_effects(calls: Sequence[Call], late: set[int]) -> list[int]:
    """Returns the positions of the calls with effects that run in forward.

    These are the ones before the first that runs in backward, as those in `late` do.
    """
    positions = []
    for position, call in enumerate(calls):
        if call.has_effect:
            if position in late or _is_in_backward(call.node):
                break
            positions.append(position)
    return positions


def _is_in_backward(node: fx.Node) -> bool:
    """Returns whether AOTAutograd marks the call as backward, or the call takes the first token of backward."""
    token = node.args[0] if node.args else None
    takes_first_token = isinstance(token, fx.Node) and token.op == "placeholder" and token.name.startswith("tangents")
    is_tagged = node.meta.get("partitioner_tag") == "is_backward" or must_be_in_backward(node)
    return is_tagged or takes_first_token


def may_draw(node: fx.Node) -> bool:
    """Returns whether a call may draw random numbers.

    A higher-order operator may do so inside, except for flex_attention.
    """
    if isinstance(node.target, HigherOrderOperator):
        return not str(node.target).startswith("flex_attention")
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":  # Attention draws random numbers only for dropout.
            probability = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get("dropout_p", probability) != 0
    return True


def save_opaque(joint: fx.GraphModule) -> None:
    """Has every partition save the results of opaque calls, even in a checkpoint: a rerun could have others.

    Collectives, which have the same results again, keep the user's policy.
    """
    for node in joint.graph.nodes:
        if node.op == "call_function" and is_opaque(node) and not is_collective(node.target):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
