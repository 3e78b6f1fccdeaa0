"""Results that share memory with saved tensors: backward must not overwrite them, nor read what the user changed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
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


def watch_results(node: Any, results: Sequence[Any], aliased: list[int] | None) -> list[int] | None:
    """Has backward raise PyTorch's error where a result that shares memory with a saved tensor was changed in place.

    AOTAutograd hands out views of saved tensors with version counters of their own, so that autograd does not notice.
    `aliased` are the positions of such results, if an earlier call of the same code has returned them. Hooks of saved
    tensors save other tensors, of which nothing is known.
    """
    if aliased is None:
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            return None
        saved = {_storage(tensor) for tensor in node.saved_tensors if _has_storage(tensor)}
        aliased = [i for i, result in enumerate(results) if _has_storage(result) and _storage(result) in saved]
    with torch.no_grad():  # A detached tensor has the same version counter, but no history that would hold the node.
        versions = [(results[i].detach(), results[i]._version) for i in aliased]

    def check(_: Sequence[torch.Tensor | None]) -> None:
        for result, version in versions:
            if result._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{result.type()} {list(result.shape)}] is at version {result._version}; expected version "
                    f"{version} instead. It is a result that shares memory with a tensor that backward reads."
                )
        versions.clear()

    if versions:
        node.register_prehook(check)
    return aliased


def _has_storage(value: object) -> bool:
    return is_tensor(value) and value.layout is torch.strided


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
