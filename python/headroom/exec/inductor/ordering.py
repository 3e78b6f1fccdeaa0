"""Keeps Inductor's kernels near their places in a schedule."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from torch._inductor import custom_graph_pass, ir
from torch._inductor.dependencies import WeakDep
from torch._inductor.utils import get_donated_idxs
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

aten, prims = torch.ops.aten, torch.ops.prims

_SEEDS = {prims.inductor_seed.default, prims.inductor_seeds.default}

# By how many library calls (matrix products, convolutions, attention) kernels may move from their places: room to fuse
# with neighbours, but not with the same calculation in another layer or in another recomputation.
SLACK = 1

_NOWHERE = -1.0

# What Inductor's cache accepts; before 2.13 that was the class for passes over graphs.
_Pass = getattr(custom_graph_pass, "CustomSchedulerPass", custom_graph_pass.CustomGraphPass)


class KeepOrder(_Pass):
    """Bounds what Inductor moves.

    Inductor fuses kernels that read the same tensors wherever they are, and so runs recomputation early, where its
    results stay alive. Here library calls keep their order, and every other kernel depends on the one `SLACK` places
    before its own and is needed by the one `SLACK` places after; these dependencies hold no memory.
    """

    def __call__(self, nodes: list[Any]) -> list[Any]:
        if not nodes:
            return nodes
        scheduler = nodes[0].scheduler
        places = _places(nodes)
        nodes = sorted(nodes, key=places.__getitem__)
        calls = [node for node in nodes if _is_library_call(node)]
        seen = 0  # library calls before a node
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


class KeepDraws(_Pass):
    """Keeps the order in which library calls take random numbers, which Inductor sees no reason to keep.

    So a step draws the same numbers by PyTorch's own partition as by a plan, where all library calls keep their order.
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


def _cache_key(*files: str) -> object:
    """Returns the hash of the files, and which saved tensors backward may overwrite.

    Inductor writes other code where a saved tensor is donated, but its key has only the graph: without this, a step
    whose saved tensor is an output as well could run the code of one that may overwrite it.
    """
    return custom_graph_pass.get_hash_for_files(files), tuple(get_donated_idxs() or ())


def _may_draw(node: Any) -> bool:
    targets = [getattr(origin, "target", None) for origin in node.node.get_origins()]
    return any(
        target in _SEEDS or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets
    )


def _is_library_call(node: Any) -> bool:
    return node.is_extern() and not isinstance(node.node, ir.MultiOutput)


def _places(nodes: list[Any]) -> dict[Any, float]:
    """By node: where the last of the calls that it computes is in the graph, and not before what it reads.

    Where an input is written over does not count, and what is only an input in another layout is made where it is read.
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
        own = [position[one] for part in node.get_nodes() for one in part.node.get_origins() if one in position]
        makers = [maker[dep.name] for dep in node.unmet_dependencies if dep.name in maker]
        for one in makers:
            readers.setdefault(one, []).append(node)
        places[node] = max([*own, *[places[one] for one in makers]], default=_NOWHERE)
    for node in reversed(nodes):
        if places[node] == _NOWHERE:
            places[node] = min([places[one] for one in readers.get(node, [])], default=0) - 0.5
    return places


def _depend(later: Any, earlier: Any) -> None:
    name = next(iter(earlier.get_buffer_names()), None)
    if name is None:
        return
    parts = list(later.get_nodes())
    for part in parts:
        part.add_fake_dep(WeakDep(name, mutating_buf=part.get_name(), is_fake=True))
    if later not in parts:  # a group
        later.unmet_dependencies.add(WeakDep(name, mutating_buf=parts[0].get_name(), is_fake=True))


def _compute_ancestors(nodes: list[Any]) -> None:
    """Does what Scheduler.compute_ancestors() does, also where nodes are groups.

    Before kernels are fused that method fails on them. On a GPU the copies into one concatenation are a group.
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
