"""Schedules in any order that the dependencies of a graph allow, to test executors apart from planners."""

from __future__ import annotations

import contextlib
import heapq
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from headroom import _C, planning

# By name: the rank of an op among those that are ready, from its position in the base order and a random number. The
# ready op with the smallest rank runs next.
ORDERS: dict[str, Callable[[int, float], float]] = {
    "base": lambda position, _: position,
    "random": lambda _, number: number,
    "reversed": lambda position, _: -position,
    "nearly base": lambda position, number: position + 20 * number,
    "nearly reversed": lambda position, number: -position + 20 * number,
}

# A late order runs each op as late as possible.
ORDER_NAMES = [*ORDERS, *(f"late {name}" for name in ORDERS)]


class Dependencies:
    """The ops of a graph in which each value has one producer, and what each op waits for."""

    def __init__(self, graph: _C.Graph) -> None:
        spec = json.loads(graph.to_json())
        ops = spec["ops"]
        maker = {value: op for op, fields in enumerate(ops) for value in fields["outputs"]}
        self.inputs = [{maker[value] for value in op["inputs"] if value in maker} for op in ops]
        self.readers: list[list[int]] = [[] for _ in ops]
        for op, sources in enumerate(self.inputs):
            for source in sources:
                self.readers[source].append(op)
        self.may_rerun = [op.get("recompute", True) for op in ops]
        needed, stack = set[int](), [maker[value] for value in spec["outputs"] if value in maker]
        while stack:
            op = stack.pop()
            if op not in needed:
                needed.add(op)
                stack.extend(self.inputs[op])
        self.needed = sorted(needed)

    def first_runs(self, rank: list[float], *, is_late: bool) -> list[int]:
        """Returns the needed ops in an order of their dependencies, by rank. `is_late`: each as late as possible.

        A late order is made from its end: the op of the largest rank whose readers have all run comes last.
        """
        before, after = (self.readers, self.inputs) if is_late else (self.inputs, self.readers)
        needed = set(self.needed)
        waits = {op: len(needed.intersection(before[op])) for op in self.needed}
        sign = -1 if is_late else 1
        ready = [(sign * rank[op], op) for op in self.needed if waits[op] == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, op = heapq.heappop(ready)
            order.append(op)
            for other in set(after[op]):
                if other in waits:
                    waits[other] -= 1
                    if waits[other] == 0:
                        heapq.heappush(ready, (sign * rank[other], other))
        assert len(order) == len(self.needed)
        return order[::-1] if is_late else order


def runs_in_order(graph: _C.Graph, order: str, seed: int, rerun_share: float) -> list[int]:
    """Returns runs of a graph: its first runs in an order of ORDER_NAMES, and that share of all ops once more.

    An op that runs again does so directly before a reader, or anywhere.
    """
    numbers = random.Random(seed)
    of = Dependencies(graph)
    rank = [ORDERS[order.removeprefix("late ")](op, numbers.random()) for op in range(len(of.inputs))]
    first = of.first_runs(rank, is_late=order.startswith("late "))
    position = {op: i for i, op in enumerate(first)}
    before: dict[int, list[int]] = {}  # By position: ops that run again before the op there.
    for op in first:
        if not of.may_rerun[op] or numbers.random() >= rerun_share or position[op] + 1 == len(first):
            continue
        readers = [position[reader] for reader in of.readers[op] if reader in position]
        anywhere = numbers.randrange(position[op] + 1, len(first))
        at = numbers.choice(readers) if readers and numbers.random() < 0.75 else anywhere
        before.setdefault(at, []).append(op)
    return [op for i, last in enumerate(first) for op in [*sorted(before.get(i, ()), key=position.get), last]]


@dataclass
class Plan:
    """Stands for a _C.Plan."""

    schedule: _C.Schedule
    peak_bytes: int
    time_ns: int = 1
    base_time_ns: int = 1
    lower_bound_ns: int = 0
    smallest_budget_bytes: int = 0
    status: str = "feasible"


@contextlib.contextmanager
def planned_in(order: str, seed: int = 0, rerun_share: float = 0.0) -> Iterator[None]:
    """Makes every captured step run in such an order, whatever its budget."""

    def plan(shape: planning.Shape, _: int) -> Any:
        schedule = _C.with_drops(shape.graph, runs_in_order(shape.graph, order, seed, rerun_share))
        return Plan(schedule, _C.simulate(shape.graph, schedule).peak_bytes)

    with mock.patch.object(planning.Shape, "plan", plan):
        yield


@contextlib.contextmanager
def kernels_planned_in(order: str, seed: int = 0, rerun_share: float = 0.0) -> Iterator[None]:
    """Makes every plan of Inductor's kernels run in such an order."""
    from headroom.exec.inductor import partitioner

    emit = partitioner.emit

    def emit_in_order(joint: Any, step: Any, _: _C.Schedule) -> Any:
        return emit(joint, step, _C.with_drops(step.graph, runs_in_order(step.graph, order, seed, rerun_share)))

    with mock.patch.object(partitioner, "emit", emit_in_order):
        yield
