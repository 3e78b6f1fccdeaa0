"""Rewrites the joint graph to call what eager calls, and to let backward read what forward read."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from headroom._torch import (
    InputMutationAOTOutput,
    OpOverload,
    cudnn_batch_norm,
    cudnn_batch_norm_reserve_size,
    pytree,
    select_batch_norm,
)
from headroom.graph.operators import IN_FORWARD, is_alias, is_tensor, is_view, writes
from headroom.graph.unsupported import LEAVE_OUT, Unsupported, located

aten = torch.ops.aten


def call_eager_batch_norms(joint: fx.GraphModule) -> None:
    """Calls cuDNN's batch norm where eager does.

    Tracing turns every batch norm into the one without cuDNN. `_batch_norm_with_update` selects as eager does, and
    returns one more result, which backward reads.
    """
    graph = joint.graph
    for node in graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_functional.default):
        image, weight, bias, mean, variance, training, momentum, eps = node.args
        if not training or weight is None or not _calls_cudnn(node):
            continue
        backwards = [reader for reader in _readers(node, 1) if reader.target is aten.native_batch_norm_backward.default]
        if len(backwards) != 1 or not backwards[0].args[7]:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(
                aten._batch_norm_with_update_functional.default, (image, weight, bias, mean, variance, momentum, eps)
            )
        new.meta = dict(node.meta)
        results = list(node.meta["val"])
        size = cudnn_batch_norm_reserve_size(image.meta["val"], training)
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


# Functional batch norms, which return new statistics. For each, the operator that eager calls and its number of
# results.
_UPDATING = {
    aten._native_batch_norm_legit_functional.default: (aten.native_batch_norm.default, 3),
    aten._batch_norm_with_update_functional.default: (aten.cudnn_batch_norm.default, 4),
}
_BACKWARD = (aten.native_batch_norm_backward.default, aten.batch_norm_backward.default)


def update_statistics(joint: fx.GraphModule, forward_output_count: int) -> None:
    """Makes batch norm update its running statistics in place, as eager does.

    Tracing makes it return new statistics, which AOTAutograd copies back; without new ones there is nothing to copy. A
    batch norm stays unchanged if other calls read its statistics, or if forward needs it only for the statistics.
    """
    graph = joint.graph
    goes_to = dict(_input_updates(joint))
    outputs = pytree.arg_tree_leaves(*graph.output_node().args)[:forward_output_count]
    needed = ancestors([output for output in outputs if output not in goes_to])
    for node in [node for node in graph.nodes if node.target in _UPDATING and node in needed]:
        target, kept = _UPDATING[node.target]
        image, weight, bias, mean, variance, *training, momentum, eps = node.args
        if target is aten.cudnn_batch_norm.default and image.meta["val"].device.type != "cuda":
            continue
        parts = {part.args[1]: part for part in node.users}
        statistics = [(parts.get(kept), mean), (parts.get(kept + 1), variance)]
        if not all(training) or not all(_is_only_written(updated, old, goes_to) for updated, old in statistics):
            continue
        for updated, old in statistics:
            updated.replace_all_uses_with(old)
            graph.erase_node(updated)
        with graph.inserting_before(node):
            new = graph.call_function(target, (image, weight, bias, mean, variance, True, momentum, eps))
        new.meta = {**node.meta, "val": node.meta["val"][:kept], "updates": (mean, variance)}
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    joint.recompile()


def _is_only_written(updated: fx.Node | None, old: fx.Node, goes_to: dict[fx.Node, fx.Node | None]) -> bool:
    """Returns whether an updated statistic replaces an input, and neither has other readers.

    Backward in training does not read the statistics.
    """
    if updated is None or goes_to.get(updated) is not old or len(old.users) != 1:
        return False
    return all(user.op == "output" or user.target in _BACKWARD for user in updated.users)


def _input_updates(joint: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yields the forward outputs that AOTAutograd copies into inputs after forward, each with its input."""
    inputs = {node.meta.get("desc"): node for node in joint.graph.find_nodes(op="placeholder")}
    output = joint.graph.output_node()
    if "desc" not in output.meta:
        with located(next(node for node in joint.graph.nodes if node.op not in ("placeholder", "get_attr"))):
            raise Unsupported(
                f"a region compiled on its own, by the higher-order operator invoke_subgraph, is refused; {LEAVE_OUT}"
            )
    for value, description in zip(output.args[0], output.meta["desc"], strict=True):
        if isinstance(description, InputMutationAOTOutput):
            yield value, inputs[description.mutated_input]


# Names of the arguments of attention kernels that mask what is not attended to.
_MASKS = ("attn_mask", "attn_bias")


def share_masks(joint: fx.GraphModule) -> None:
    """Makes attention kernels share one mask that each layer would convert for itself.

    Eager converts a mask of booleans in every attention call, and saves the result for backward.
    """
    numbers: dict[fx.Node, int] = {}
    first_of: dict[int, fx.Node] = {}
    number_of: dict[str, int] = {}
    for node in joint.graph.nodes:
        numbers[node] = number_of.setdefault(_computation(node, numbers), len(number_of))
        if node.op != "call_function" or "scaled_dot_product" not in str(node.target):
            continue
        for position, argument in enumerate(node.target._schema.arguments):
            mask = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            if argument.name in _MASKS and isinstance(mask, fx.Node):
                first = first_of.setdefault(numbers[mask], mask)
                if first is not mask:
                    node.replace_input_with(mask, first)
    joint.recompile()


def _computation(node: fx.Node, numbers: dict[fx.Node, int]) -> str:
    """Returns a key that is equal exactly for nodes that compute the same from the same inputs."""
    tags = getattr(node.target, "tags", ())
    is_function = isinstance(node.target, OpOverload) and not writes(node.target)
    if node.target is not operator.getitem and (not is_function or torch.Tag.nondeterministic_seeded in tags):
        return node.name
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: f"%{numbers[source]}")
    return f"{node.target} {args} {kwargs}"


# Operators that allocate a tensor for others to fill.
_FACTORIES = (aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default)


def draw_in_layout(joint: fx.GraphModule) -> None:
    """Draws dropout masks in the layout of their input, as eager does.

    Tracing turns `empty_like(x).bernoulli_(p)` into an operator with a contiguous result. In another layout, the random
    numbers would go to other elements.
    """
    for node in joint.graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        like = node.args[0]
        if like.target in _FACTORIES and not like.meta["val"].is_contiguous():
            node.target = torch.ops.headroom.bernoulli_like.default
            node.args = (like, node.args[1])
            node.kwargs = {}
            node.meta["val"] = torch.empty_like(like.meta["val"])
    joint.recompile()


def drop_unused_statistics(joint: fx.GraphModule) -> None:
    """Removes running statistics from the arguments of batch norm's backward, which does not read them in training."""
    for target in _BACKWARD:
        for node in joint.graph.find_nodes(op="call_function", target=target):
            if node.args[7] is True:
                node.args = (*node.args[:3], None, None, *node.args[5:])


def protect_changed_inputs(joint: fx.GraphModule, forward_output_count: int) -> None:
    """Keeps backward from reading inputs that the step has changed by then, such as moving averages.

    AOTAutograd writes the new contents after forward. A forward call whose results are no larger than the input is not
    rerun. Larger calls, and all calls of backward, read a copy that forward makes.
    """
    outputs = pytree.arg_tree_leaves(*joint.graph.output_node().args)[:forward_output_count]
    in_forward = ancestors(outputs)
    for changed in dict.fromkeys(target for _, target in _input_updates(joint)):
        input_bytes = _result_bytes(changed)
        for alias in list(_aliases(changed)):
            late = []
            for reader in alias.users:
                if reader.op == "output" or _is_alias_node(reader) or changed in updated_by(reader):
                    continue
                if reader in in_forward and _result_bytes(reader) <= input_bytes:
                    reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE
                else:
                    late.append(reader)
            if late:
                copy = _copy_in_forward(joint.graph, alias)
                for reader in late:
                    reader.replace_input_with(alias, copy)
    joint.recompile()


def separate_gradients(joint: fx.GraphModule, forward_output_count: int, copy: OpOverload = aten.clone.default) -> None:
    """Copies gradients that share memory with another gradient, such as two views of an incoming one, by `copy`.

    Autograd keeps a dense gradient of a parameter as its `.grad` without a copy. Clipping one in place would change the
    other.
    """
    output = joint.graph.output_node()
    results, structure = pytree.tree_flatten(output.args)
    separate: dict[int, list[fx.Node]] = {}  # by storage
    for i, gradient in list(enumerate(results))[forward_output_count:]:
        value = gradient.meta.get("val") if isinstance(gradient, fx.Node) else None
        if not is_tensor(value) or value.layout is not torch.strided or not _fills_its_range(value):
            continue
        others = separate.setdefault(value.untyped_storage()._cdata, [])
        if any(other is not gradient and _overlaps(other.meta["val"], value) for other in others):
            with joint.graph.inserting_before(output), torch.no_grad():
                results[i] = joint.graph.call_function(copy, (gradient,))
                results[i].meta = {**gradient.meta, "val": aten.clone.default(value)}
        else:
            others.append(gradient)
    output.args = pytree.tree_unflatten(results, structure)
    joint.recompile()


def _range_of(value: torch.Tensor) -> tuple[Any, Any]:
    """Returns the first element of its storage that a tensor reads, and the one after the last."""
    first = value.storage_offset()
    return first, first + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1


def _fills_its_range(value: torch.Tensor) -> bool:
    """Returns whether a tensor is dense; autograd copies a gradient that is not."""
    first, end = _range_of(value)
    return value.numel() > 0 and end - first == value.numel()


def _overlaps(value: torch.Tensor, other: torch.Tensor) -> bool:
    (first, end), (other_first, other_end) = _range_of(value), _range_of(other)
    return value.dtype != other.dtype or (first < other_end and other_first < end)


def _copy_in_forward(graph: fx.Graph, source: fx.Node) -> fx.Node:
    with graph.inserting_after(source), torch.no_grad():
        copy = graph.call_function(aten.clone.default, (source,))
        copy.meta = {**source.meta, "val": aten.clone.default(source.meta["val"])}
        copy.meta |= {"recompute": CheckpointPolicy.MUST_SAVE, IN_FORWARD: True}
        copy.meta.pop("desc", None)
    return copy


def _aliases(source: fx.Node) -> Iterator[fx.Node]:
    """Yields the node and all views of it that are tensors."""
    if is_tensor(source.meta.get("val")):
        yield source
    for user in source.users:
        if _is_alias_node(user):
            yield from _aliases(user)


def _is_alias_node(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    value = node.meta.get("val")
    return node.target is operator.getitem or is_view(node.target) or (is_tensor(value) and is_alias(value, node))


def _result_bytes(node: fx.Node) -> int:
    results = [value for value in pytree.tree_leaves(node.meta.get("val")) if is_tensor(value)]
    return sum(value.numel() * value.element_size() for value in results)


def ancestors(nodes: Iterable[object]) -> set[fx.Node]:
    """Returns the nodes among `nodes` and all nodes that they depend on."""
    seen: set[fx.Node] = set()
    stack = [node for node in nodes if isinstance(node, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen


def updated_by(node: fx.Node) -> Sequence[fx.Node]:
    """Returns the arguments that a call updates in its first run of a step; reruns do without them."""
    return node.meta.get("updates", ())


def _calls_cudnn(node: fx.Node) -> bool:
    image, weight, bias, mean, variance, training, _, eps = (
        argument.meta["val"] if isinstance(argument, fx.Node) else argument for argument in node.args
    )
    if image.device.type != "cuda":
        return False
    chosen = select_batch_norm(image, weight, bias, mean, variance, training, eps)
    return chosen == cudnn_batch_norm


def _readers(node: fx.Node, part: int) -> list[fx.Node]:
    parts = [item for item in node.users if item.target is operator.getitem and item.args[1] == part]
    return [user for item in parts for user in item.users]


def _replace_parts(graph: fx.Graph, old: fx.Node, new: fx.Node, index_of: dict[int, int]) -> None:
    for part in list(old.users):
        with graph.inserting_after(new):
            other = graph.call_function(operator.getitem, (new, index_of[part.args[1]]))
        other.meta = dict(part.meta)
        other.meta["val"] = new.meta["val"][index_of[part.args[1]]]
        part.replace_all_uses_with(other)
        graph.erase_node(part)
    graph.erase_node(old)
