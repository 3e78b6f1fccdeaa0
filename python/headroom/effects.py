"""Calls that are there for what they do, such as to print or to check: each runs once, in the order of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

if TYPE_CHECKING:
    from headroom.capture import Call


def has_effect(target: object) -> bool:
    """Whether it takes and gives a token, which orders effects, or has no result at all."""
    if isinstance(target, torch._ops.OpOverload):
        return not target._schema.returns
    return str(target) == "with_effects"


def is_token(node: fx.Node) -> bool:
    """Whether an input is the token of the first effect; AOTAutograd calls with None for it."""
    return any(str(user.target) == "with_effects" and user.args[0] is node for user in node.users)


def forward_effects(calls: Sequence[Call]) -> list[int]:
    """Positions of the calls with effects that plain training runs in forward."""
    tags = [call.node.meta.get("partitioner_tag") for call in calls]
    return [place for place, call in enumerate(calls) if call.has_effect and tags[place] != "is_backward"]
