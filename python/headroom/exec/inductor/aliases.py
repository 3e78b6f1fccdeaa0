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

    Where Inductor removes a copy, such as a clone in the same layout, views of the copy become views of its source, but
    their fake tensors keep the storage of the copy. AOTAutograd compares these storages: a saved tensor that shares its
    storage with no output is donated to backward, which may then overwrite an output that the user still holds.
    """
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            source = node.args[0].meta.get("val")
            if isinstance(source, (list, tuple)) and is_tensor(node.meta.get("val")):
                node.meta["val"] = source[node.args[1]]
        elif is_view(node.target) and _is_stale(node):
            _refresh(node)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if is_tensor(leaf)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_stale(node: fx.Node) -> bool:
    inputs = [node for node in node.all_input_nodes if is_tensor(node.meta.get("val"))]
    views = _tensors(node.meta.get("val"))
    return bool(inputs and views) and any(_storage(view) != _storage(inputs[0].meta["val"]) for view in views)


def _refresh(node: fx.Node) -> None:
    arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    with torch.no_grad():
        value = node.target(*arguments, **keywords)
    old, new = _tensors(node.meta["val"]), _tensors(value)
    # Some views are copies where strides do not allow a view. Their old fake tensors were right.
    if all(a.shape == b.shape and a.stride() == b.stride() for a, b in zip(old, new, strict=True)):
        node.meta["val"] = value
