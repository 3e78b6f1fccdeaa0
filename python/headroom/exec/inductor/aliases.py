"""Corrects the aliases among fake tensors after Inductor's passes over the joint graph."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from headroom.graph.operators import is_tensor, is_view


def refresh_views(joint: fx.GraphModule) -> None:
    """Gives the fake tensor of each view the storage of the tensor that it is a view of.

    Where Inductor removes a copy, such as a clone in the same layout, views of the copy become views of its source,
    but their fake tensors keep the storage of the copy. AOTAutograd compares these storages: a saved tensor that shares
    none with an output is donated to backward, which may then overwrite an output that the user still holds.
    """
    for node in joint.graph.nodes:
        if node.op == "call_function" and is_view(node.target) and _is_stale(node):
            _refresh(node)
            for user in node.users:  # of several views
                if user.target is operator.getitem:
                    user.meta["val"] = node.meta["val"][user.args[1]]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if is_tensor(leaf)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_stale(node: fx.Node) -> bool:
    inputs = [argument.meta.get("val") for argument in node.all_input_nodes]
    views = _tensors(node.meta.get("val"))
    if any(value is None for value in inputs) or not inputs or not views:
        return False  # a view of a constant, which is no saved tensor
    return is_tensor(inputs[0]) and any(_storage(view) != _storage(inputs[0]) for view in views)


def _refresh(node: fx.Node) -> None:
    arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    with torch.no_grad():
        value = node.target(*arguments, **keywords)
    old, new = _tensors(node.meta["val"]), _tensors(value)
    # Some views are copies where strides do not allow a view; then the old fake tensor was right.
    if all(a.shape == b.shape and a.stride() == b.stride() for a, b in zip(old, new, strict=True)):
        node.meta["val"] = value
