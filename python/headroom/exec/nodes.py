"""Finds autograd's node of a compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headroom.graph.operators import is_tensor


def may_have_history(argument: Any) -> bool:
    """Returns whether another graph may have computed an argument."""
    return is_tensor(argument) and argument.requires_grad and not isinstance(argument, torch.nn.Parameter)


def compiled_node(tensors: Sequence[Any], histories: set[Any]) -> Any:
    """Returns the autograd node of the compiled graph that computed some of these tensors, or None.

    Results may be views, whose own nodes come before it. `histories` are the nodes of the graph's arguments: nodes
    behind them are older than the graph.
    """
    stack = [tensor.grad_fn for tensor in tensors if is_tensor(tensor)]
    seen = set(histories) | {None}
    while stack:
        node = stack.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return node
        stack.extend(before for before, _ in node.next_functions)
    return None
