"""Results that share memory with saved tensors: backward must not overwrite them, nor read what the user changed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from headroom._torch import pytree, top_saved_tensor_hooks
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
            for user in node.users:  # An operator that returns several views has an item for each.
                if user.target is operator.getitem:
                    user.meta["val"] = node.meta["val"][user.args[1]]


def watch_changes(
    node: Any, results: Sequence[Any], arguments: Sequence[Any], aliased: list[int] | None
) -> list[int] | None:
    """Has backward raise PyTorch's error where a tensor that shares memory with a saved one was changed in place.

    Results may be views of saved tensors, and saved tensors views of arguments, with version counters of their own, so
    that autograd does not notice. An argument that is saved itself has autograd's own check. `aliased` are the
    positions of such tensors among results and arguments, if an earlier call of the same code has returned them. Hooks
    of saved tensors save other tensors, of which nothing is known.
    """
    tensors = [*results, *arguments]
    if aliased is None:
        if top_saved_tensor_hooks(True) is not None:
            return None
        saved: dict[int, list[torch.Tensor]] = {}
        for tensor in node.saved_tensors:
            if _has_storage(tensor):
                saved.setdefault(_storage(tensor), []).append(tensor)
        aliased = [
            i
            for i, tensor in enumerate(tensors)
            if _has_storage(tensor)
            and any(i < len(results) or not _is_same(tensor, other) for other in saved.get(_storage(tensor), []))
        ]
    with torch.no_grad():  # A detached tensor has the same version counter, but no history that would hold the node.
        watched = [tensors[i] if tensors[i].grad_fn is None else tensors[i].detach() for i in aliased]
    versions = [(tensor, tensor._version) for tensor in watched]

    def check(_: Sequence[torch.Tensor | None]) -> None:
        for tensor, version in versions:
            if tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version "
                    f"{version} instead. It shares memory with a tensor that backward reads."
                )
        versions.clear()

    if versions:
        node.register_prehook(check)
    return aliased


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.shape == other.shape and tensor.stride() == other.stride()


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
