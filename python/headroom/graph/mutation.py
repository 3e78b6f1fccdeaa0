"""Inputs that a step overwrites: backward reads their old contents, and writes of its own come last.

A model may read a buffer and then update it, for instance a queue of negatives, a moving average or a history of
maxima. The joint graph is functional: it reads the input as it was before the step, and copies the new content into it
at the end of forward. A call that runs in backward, for the first time or as a rerun, would read the new content.
PyTorch's own partition does not consider that either. What backward itself changes, in an autograd function of the
user's, is copied into the input by a call of the joint graph.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from headroom._torch import must_be_in_backward, must_be_in_forward, pytree
from headroom.graph.operators import is_tensor, is_view, storage_bytes
from headroom.graph.rewrite import ancestors
from headroom.graph.unsupported import Unsupported

aten = torch.ops.aten

torch.library.define("headroom::copy", "(Tensor x) -> Tensor")
torch.library.impl("headroom::copy", "CompositeExplicitAutograd", torch.clone)
torch.library.define("headroom::write", "(Tensor(a!)[] to, Tensor[] sources) -> ()")


@torch.library.impl("headroom::write", "CompositeExplicitAutograd")
def _write(to: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies tensors over others. It runs below autograd, where a copy does not count as a change by itself."""
    overwritten = {tensor.untyped_storage()._cdata for tensor in to}
    read = [source.clone() if source.untyped_storage()._cdata in overwritten else source for source in sources]
    for tensor, source in zip(to, read, strict=True):
        tensor.copy_(source)
        torch.autograd.graph.increment_version(tensor)


def write_last(joint: fx.GraphModule) -> None:
    """Makes what backward writes over inputs one effect, which runs after all that reads them; see is_last_write()."""
    writes = [node for node in joint.graph.nodes if is_backward_write(node)]
    for node in writes:
        if node.target is not aten.copy_.default or node.users:
            raise Unsupported(f"{node.name}: {node.target} changes memory in a way that cannot be planned")
    if not writes:
        return
    with joint.graph.inserting_before(joint.graph.output_node()):
        arguments = tuple([node.args[i] for node in writes] for i in range(2))
        last = joint.graph.call_function(torch.ops.headroom.write.default, arguments)
    last.meta = {**writes[-1].meta, "val": None}
    for node in writes:
        joint.graph.erase_node(node)
    joint.recompile()


def is_last_write(node: fx.Node) -> bool:
    """Returns whether a call overwrites an input at the end of backward."""
    return node.target is torch.ops.headroom.write.default


def keep_what_forward_overwrites(joint: fx.GraphModule, output_count: int) -> None:
    """Changes the graph so that no call that may run in backward reads an input that forward overwrites.

    Forward calls whose results are no larger than the input are not rerun. If that is not enough, forward copies the
    input before it changes, and every call reads the copy.
    """
    writes = [node for node in joint.graph.nodes if is_forward_write(node) and node.target is aten.copy_.default]
    if not writes:
        return
    results = pytree.arg_tree_leaves(*joint.graph.output_node().args)
    late_writes = [node for node in joint.graph.nodes if is_backward_write(node)]
    in_forward = ancestors([*results[:output_count], *[value for node in writes for value in node.args[1:]]])
    in_backward = ancestors([*results[output_count:], *[value for node in late_writes for value in node.args[1:]]])
    for write in writes:
        source = write.args[0]
        aliases = _aliases_of(source)
        readers = [node for node in _users(aliases) if node.op == "call_function" and not is_write(node)]
        at_risk = [node for node in readers if node in in_backward]
        is_result = any(result in aliases for result in results[output_count:])
        if not at_risk and not is_result:
            continue
        limit = storage_bytes(source.meta["val"])
        if not is_result and all(node in in_forward and _is_at_most(node, limit) for node in at_risk):
            for node in at_risk:
                node.meta = {**node.meta, "recompute": CheckpointPolicy.MUST_SAVE}
            continue
        copy = _read_a_copy(joint.graph, source, output_count)
        if not any(node in in_forward for node in readers):
            _make_in_forward(joint.graph, copy, write)


def is_write(node: fx.Node) -> bool:
    return is_forward_write(node) or is_backward_write(node)


def is_forward_write(node: fx.Node) -> bool:
    """Returns whether a node of a joint graph changes memory in forward."""
    return node.op == "call_function" and must_be_in_forward(node)


def is_backward_write(node: fx.Node) -> bool:
    """Returns whether a node of a joint graph changes memory in backward."""
    return node.op == "call_function" and must_be_in_backward(node)


def _aliases_of(source: fx.Node) -> dict[fx.Node, None]:
    """Returns the node and all views of its memory, in the order of the graph."""
    aliases: dict[fx.Node, None] = {source: None}
    for node in source.graph.nodes:
        reads = node.op == "call_function" and not is_write(node) and node.args and node.args[0] in aliases
        if reads and (is_view(node.target) or node.target is operator.getitem or _shares_memory(node, source)):
            aliases[node] = None
    return aliases


def _shares_memory(node: fx.Node, source: fx.Node) -> bool:
    """Returns whether an operator returned its input itself, as conversions do if there is nothing to convert."""
    value = node.meta.get("val")
    storage = source.meta["val"].untyped_storage()._cdata
    return is_tensor(value) and value.untyped_storage()._cdata == storage


def _users(aliases: Iterable[fx.Node]) -> list[fx.Node]:
    """Returns the calls that read memory through one of its aliases."""
    users = dict.fromkeys(user for alias in aliases for user in alias.users)
    return [user for user in users if user not in aliases]


def _is_at_most(node: fx.Node, limit_bytes: int) -> bool:
    value = node.meta.get("val")
    return is_tensor(value) and storage_bytes(value) <= limit_bytes


def _read_a_copy(graph: fx.Graph, source: fx.Node, output_count: int) -> fx.Node:
    """Makes all calls and results of backward read a copy of the source that forward makes; writes stay unchanged."""
    last_input = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last_input), torch.no_grad():
        copy = graph.call_function(torch.ops.headroom.copy.default, (source,))
        copy.meta = {"val": source.meta["val"].clone(), "recompute": CheckpointPolicy.MUST_SAVE}
    for user in list(source.users):
        if user is not copy and user.op == "call_function" and not is_write(user):
            user.replace_input_with(source, copy)
    output = graph.output_node()
    leaves, structure = pytree.tree_flatten(output.args)
    leaves[output_count:] = [copy if leaf is source else leaf for leaf in leaves[output_count:]]
    output.args = pytree.tree_unflatten(leaves, structure)
    return copy


def _make_in_forward(graph: fx.Graph, copy: fx.Node, write: fx.Node) -> None:
    """Makes a value that forward writes depend on a copy that only backward reads, so that forward makes the copy."""
    target = write.args[1]
    with graph.inserting_before(write), torch.no_grad():
        never = graph.call_function(aten.full.default, ([], False), {"dtype": torch.bool})
        with target.meta["val"].fake_mode:
            never.meta = {"val": aten.full.default([], False, dtype=torch.bool)}
        chosen = graph.call_function(aten.where.self, (never, copy, target))
        chosen.meta = {**target.meta, "val": target.meta["val"].clone()}
    write.replace_input_with(target, chosen)
