"""Changes to the joint graph that bring back what plain training calls."""

from __future__ import annotations

import operator

import torch
from torch import fx

aten = torch.ops.aten


def call_eager_batch_norms(joint: fx.GraphModule) -> None:
    """Calls cuDNN's batch norm where plain training does.

    Tracing turns every batch norm into the one without cuDNN; `_batch_norm_with_update` chooses as plain training does,
    and gives one more result, which backward takes.
    """
    graph = joint.graph
    for node in graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_functional.default):
        image, weight, bias, mean, variance, training, momentum, eps = node.args
        if not training or weight is None or not _calls_cudnn(node):
            continue
        backwards = [one for one in _readers(node, 1) if one.target is aten.native_batch_norm_backward.default]
        if len(backwards) != 1 or not backwards[0].args[7]:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(
                aten._batch_norm_with_update_functional.default, (image, weight, bias, mean, variance, momentum, eps)
            )
        new.meta = dict(node.meta)
        results = list(node.meta["val"])
        size = torch._C._get_cudnn_batch_norm_reserve_space_size(image.meta["val"], training)
        new.meta["val"] = (*results[:3], results[1].new_empty(size, dtype=torch.uint8), *results[3:])
        _replace_parts(graph, node, new, {0: 0, 1: 1, 2: 2, 3: 4, 4: 5})
        with graph.inserting_after(new):
            reserve = graph.call_function(operator.getitem, (new, 3))
        reserve.meta["val"] = new.meta["val"][3]
        old = backwards[0]
        gradient, image, weight, mean, variance, save_mean, save_var, _, eps, mask = old.args
        with graph.inserting_before(old):
            late = graph.call_function(
                aten.batch_norm_backward.default,
                (gradient, image, weight, mean, variance, save_mean, save_var, True, eps, mask, reserve),
            )
        late.meta = dict(old.meta)
        _replace_parts(graph, old, late, {0: 0, 1: 1, 2: 2})
    joint.recompile()


def _calls_cudnn(node: fx.Node) -> bool:
    image, weight, bias, mean, variance, training, _, eps = (
        one.meta["val"] if isinstance(one, fx.Node) else one for one in node.args
    )
    if image.device.type != "cuda":
        return False
    chosen = torch._C._select_batch_norm_backend(image, weight, bias, mean, variance, training, eps)
    return chosen == torch._C._BatchNormBackend.Cudnn


def _readers(node: fx.Node, part: int) -> list[fx.Node]:
    parts = [one for one in node.users if one.target is operator.getitem and one.args[1] == part]
    return [user for one in parts for user in one.users]


def _replace_parts(graph: fx.Graph, old: fx.Node, new: fx.Node, index_of: dict[int, int]) -> None:
    for part in list(old.users):
        with graph.inserting_after(new):
            other = graph.call_function(operator.getitem, (new, index_of[part.args[1]]))
        other.meta = dict(part.meta)
        other.meta["val"] = new.meta["val"][index_of[part.args[1]]]
        part.replace_all_uses_with(other)
        graph.erase_node(part)
    graph.erase_node(old)
