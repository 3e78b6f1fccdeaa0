"""Keeps Inductor's kernels close to their positions in a schedule."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from headroom._torch.inductor import (
    OrderedSet,
    SchedulerNode,
    SchedulerPass,
    V,
    WeakDep,
    get_donated_idxs,
    get_hash_for_files,
    ir,
    recompute_size_and_body,
)

aten, prims = torch.ops.aten, torch.ops.prims

_SEEDS = {prims.inductor_seed.default, prims.inductor_seeds.default}

# Maximum number of library calls (matrix products, convolutions, attention) that a kernel may move across. One lets it
# fuse with its neighbours, but not with the same computation in another layer or in another recomputation.
SLACK = 1

_NOWHERE = -1.0


class KeepOrder(SchedulerPass):
    """Bounds how far Inductor moves kernels.

    Inductor fuses kernels that read the same tensors however far apart they are. This runs recomputation early, so that
    its results stay live for longer. The pass keeps library calls in order, and makes every other kernel depend on the
    library call `SLACK` places before it and the one `SLACK` places after depend on the kernel. These dependencies hold
    no memory.
    """

    def __call__(self, nodes: list[Any]) -> list[Any]:
        if not nodes:
            return nodes
        scheduler = nodes[0].scheduler
        places = _places(nodes)
        nodes = sorted(nodes, key=places.__getitem__)
        calls = [node for node in nodes if _is_library_call(node)]
        seen = 0  # Library calls before the node.
        for node in nodes:
            if _is_library_call(node):
                if seen > 0:
                    _depend(node, calls[seen - 1])
                seen += 1
                continue
            if seen > SLACK:
                _depend(node, calls[seen - 1 - SLACK])
            if seen + SLACK < len(calls):
                _depend(calls[seen + SLACK], node)
        scheduler.nodes = nodes
        _compute_ancestors(nodes)
        return nodes

    def uuid(self) -> object:
        """Returns the part of Inductor's cache key for this file and for how `headroom::store` is written."""
        return _cache_key(__file__, str(Path(__file__).with_name("emission.py")))


class KeepDraws(SchedulerPass):
    """Keeps the order in which library calls draw random numbers, which Inductor does not do by itself.

    With it a step draws the same numbers under PyTorch's own partition as under a plan, which keeps all library calls
    in order.
    """

    def __call__(self, nodes: list[Any]) -> list[Any]:
        draws = [node for node in nodes if _is_library_call(node) and _may_draw(node)]
        for earlier, later in itertools.pairwise(draws):
            _depend(later, earlier)
        if len(draws) > 1:
            _compute_ancestors(nodes)
        return nodes

    def uuid(self) -> object:
        """Returns the part of Inductor's cache key for this file."""
        return _cache_key(__file__)


@contextlib.contextmanager
def mutations_kept() -> Iterator[None]:
    """Returns a context in which kernels depend on what changes a buffer in place before they read it.

    Where Inductor aligns the loops of two kernels on the CPU, it derives their dependencies anew, by the names that
    buffers had before they were changed. A kernel that reads the result of a scatter could then run before the scatter.
    """

    def recompute_and_rename(node: SchedulerNode, *arguments: Any, **keywords: Any) -> None:
        recompute_size_and_body(node, *arguments, **keywords)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    SchedulerNode.recompute_size_and_body = recompute_and_rename
    try:
        yield
    finally:
        SchedulerNode.recompute_size_and_body = recompute_size_and_body


def _cache_key(*files: str) -> object:
    """Returns a hash of the files together with the indices of donated buffers.

    Inductor generates other code where backward may overwrite a saved tensor that is donated to it, but its own key
    covers only the graph. Without this, a step whose saved tensor is also an output could run code that overwrites it.
    """
    return get_hash_for_files(files), tuple(get_donated_idxs() or ())


def _may_draw(node: Any) -> bool:
    targets = [getattr(origin, "target", None) for origin in node.node.get_origins()]
    return any(
        target in _SEEDS or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets
    )


def _is_library_call(node: Any) -> bool:
    return node.is_extern() and not isinstance(node.node, ir.MultiOutput)


def _places(nodes: list[Any]) -> dict[Any, float]:
    """Returns the position of each scheduler node in the graph.

    It is the position of the last call that the node computes, but not before the nodes that it reads. Writes over
    inputs do not count, and a node that only changes an input's layout is placed at its first reader.
    """
    position = {
        node: float(i)
        for i, node in enumerate(V.graph.graph.nodes)
        if node.op == "call_function" and node.target is not aten.copy_.default
    }
    places: dict[Any, float] = {}
    maker = {name: node for node in nodes for name in node.get_buffer_names()}
    readers: dict[Any, list[Any]] = {}
    for node in nodes:
        own = [
            position[origin] for part in node.get_nodes() for origin in part.node.get_origins() if origin in position
        ]
        makers = [maker[dep.name] for dep in node.unmet_dependencies if dep.name in maker]
        for source in makers:
            readers.setdefault(source, []).append(node)
        places[node] = max([*own, *[places[source] for source in makers]], default=_NOWHERE)
    for node in reversed(nodes):
        if places[node] == _NOWHERE:
            places[node] = min([places[reader] for reader in readers.get(node, [])], default=0) - 0.5
    return places


def _depend(later: Any, earlier: Any) -> None:
    name = next(iter(earlier.get_buffer_names()), None)
    if name is None:
        return
    parts = list(later.get_nodes())
    for part in parts:
        part.add_fake_dep(WeakDep(name, mutating_buf=part.get_name(), is_fake=True))
    if later not in parts:  # A group of nodes has dependencies of its own.
        later.unmet_dependencies.add(WeakDep(name, mutating_buf=parts[0].get_name(), is_fake=True))


def _compute_ancestors(nodes: list[Any]) -> None:
    """Sets the ancestors of all nodes, as Scheduler.compute_ancestors() does, but also of groups of nodes.

    Before fusion that method fails on groups. On a GPU, the copies into one concatenation are a group.
    """
    ancestors_of: dict[str, OrderedSet[str]] = {}
    for order, node in enumerate(nodes):
        own = node.get_operation_names()
        ancestors: OrderedSet[str] = OrderedSet()
        for dependency in node.unmet_dependencies:
            name = node.scheduler.name_to_buf[dependency.name].defining_op.get_name()
            if name not in own:
                ancestors.add(name)
                ancestors |= ancestors_of[name]
        ancestors_of.update(dict.fromkeys(own, ancestors))
        node.ancestors = ancestors
        node.min_order = node.max_order = order
