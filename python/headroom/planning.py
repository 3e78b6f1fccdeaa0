"""Plans a captured graph within a budget, beside the rest of its step."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from headroom import _C
from headroom.budget import arena, place
from headroom.budget.errors import BudgetError, too_small
from headroom.budget.excess import Excess
from headroom.budget.place import Patience, Place, Room
from headroom.costs.step_costs import StepCosts
from headroom.graph.capture import Capture
from headroom.graph.op_program import make_program
from headroom.graph.step_graph import HANDS_ON, Rest, make_graph
from headroom.settings import Settings

_log = logging.getLogger(__name__)


@dataclass
class Planned:
    """A plan that later steps run. Bytes are those that a step adds at its peak to the memory in use before it."""

    predicted_bytes: int
    budget_bytes: int
    time_ns: int
    plain_time_ns: int
    measured_bytes: int | None = None  # Measured peak of a trial; None: not tried.
    compilations: int = 1


class Shape:
    """A captured graph with one rest of the step, and its plans."""

    def __init__(
        self, captured: Capture, calls: list[_C.OpCall], rest: Rest, settings: Settings, costs: StepCosts
    ) -> None:
        self.captured = captured
        self.calls = calls
        self.rest = rest
        self.costs = costs
        self.settings = settings
        self.has_arena = arena.uses_arena(settings, captured.device)
        self._smallest_bytes = 0
        self._smallest_in_arena_bytes = 0
        self._make_graph()
        self.rest_op = max(op for op, call in enumerate(self.call_of_op) if call == HANDS_ON)
        store_all = _C.store_all(self.graph)
        self.store_all_bytes = _C.simulate(self.graph, store_all).peak_bytes
        if self.has_arena:
            plans = [store_all, *([self._without_reruns.schedule] if self._without_reruns is not None else [])]
            self.store_all_bytes = min(map(self.peak_bytes, plans))
        # Bytes in use after forward under store-all, or an upper bound.
        self.held_bytes = self.store_all_bytes if self.has_arena else self.held_by(store_all)

    def held_by(self, schedule: _C.Schedule) -> int:
        """Returns the bytes in use after the forward half of a schedule."""
        rest = [step.op for step in schedule.steps].index(self.rest_op)
        return _C.simulate(self.graph, schedule).after_bytes[rest - 1]

    @staticmethod
    def last_run(schedule: _C.Schedule) -> int:
        """Returns the position of the last run of an op, which stands for the accumulation of gradients."""
        return max(position for position, step in enumerate(schedule.steps) if step.is_run)

    def peak_bytes(self, schedule: _C.Schedule) -> int:
        """Returns the peak of a schedule, in its arena if steps have arenas."""
        if self.has_arena:
            return _C.arena_peak_bytes(self.graph, schedule, self.call_of_op, arena.ALIGNMENT)
        return _C.simulate(self.graph, schedule).peak_bytes

    def _make_graph(self) -> None:
        self.graph, self.call_of_op = make_graph(self.captured, self.rest)
        self.has_times = self.costs.has_times

    @functools.cached_property
    def problem(self) -> _C.Problem:
        """Returns the planning problem, which caches the planner's Pareto front for all budgets."""
        return _C.Problem(self.graph)

    @functools.cached_property
    def program(self) -> _C.OpProgram:
        return make_program(self.captured, self.calls, self.graph, self.call_of_op)

    @functools.cached_property
    def _without_reruns(self) -> _C.Plan | None:
        return _C.find_plan_without_reruns(self.problem) if self.settings.planner == "auto" else None

    def plan(self, budget_bytes: int) -> _C.Plan:
        """Returns the plan within a budget, whose arena fits too if steps have arenas.

        A plan whose arena does not fit is followed by plans with less memory. At last it is store-all, whose arena may
        be smaller than those of other plans without reruns, or the smallest plan.
        """
        plan = self.plan_without_arena(budget_bytes)
        if not self.has_arena:
            return plan
        for _ in range(_MOST_REPLANS):
            if plan.schedule is None:
                break
            over = self.peak_bytes(plan.schedule) - budget_bytes
            if over <= 0:
                return plan
            plan = self.plan_without_arena(plan.peak_bytes - over)
        if self.store_all_bytes <= budget_bytes:
            return _C.make_plan(self.problem, "store-all", None)
        smallest = self.plan_without_arena(self._smallest_simulated_bytes())
        fits = smallest.schedule is not None and self.peak_bytes(smallest.schedule) <= budget_bytes
        return smallest if fits else self.plan_without_arena(0)

    def plan_without_arena(self, budget_bytes: int) -> _C.Plan:
        """Returns the plan within a budget. Times are measured only if something must be recomputed."""
        start = time.perf_counter()
        plan = self._without_reruns
        if plan is None or plan.peak_bytes > budget_bytes:
            self.need_times()
            start = time.perf_counter()
            settings = self.settings
            plan = _C.make_plan(self.problem, settings.planner, max(budget_bytes, 0), settings.keep_order)
            if plan.smallest_budget_bytes > 0:
                self._smallest_bytes = plan.smallest_budget_bytes
        taken = 1e3 * (time.perf_counter() - start)
        _log.info("planning of %d ops: %s, %.0f ms", self.graph.op_count(), plan.status, taken)
        return plan

    def need_times(self) -> None:
        """Measures the times of the ops, unless the graph has them."""
        self.costs.need_times()
        if not self.has_times:
            self._make_graph()
            for made_without in ("problem", "_without_reruns"):
                self.__dict__.pop(made_without, None)

    def smallest_bytes(self) -> int:
        """Returns the peak of the smallest plan; 0: the planner does not compute it."""
        smallest = self._smallest_simulated_bytes()
        if not self.has_arena or smallest == 0:
            return smallest
        if self._smallest_in_arena_bytes == 0:
            smallest_in_arena = self.peak_bytes(self.plan_without_arena(smallest).schedule)
            self._smallest_in_arena_bytes = min(smallest_in_arena, self.store_all_bytes)
        return self._smallest_in_arena_bytes

    def _smallest_simulated_bytes(self) -> int:
        if self._smallest_bytes == 0:
            self.plan_without_arena(0)
        return self._smallest_bytes


# Maximum number of plans with less memory that are made where the arena of a plan does not fit.
_MOST_REPLANS = 8
# Maximum number of plans, and of graphs with different rests of the step, that one captured graph keeps.
_MOST_KEPT = 64


def _bound(cache: dict[Any, Any]) -> None:
    """Removes the oldest entries, so that one more can be added."""
    while len(cache) >= _MOST_KEPT:
        del cache[next(iter(cache))]


@dataclass(eq=False)
class Step:
    """A captured graph with its plans, as one of the steps that share a budget (place.Step)."""

    assumed_rest: ClassVar[Rest] = Rest()
    patience: ClassVar[Patience] = Patience(free_share=0.02)
    is_tried: ClassVar[bool] = False
    shares_together: ClassVar[bool] = True

    captured: Capture
    calls: list[_C.OpCall]
    settings: Settings
    costs: StepCosts
    is_cut: bool = False  # Whether graphs of the same function follow, which are compiled when they are reached.
    # Largest excess of a recorded arena over the one that its plan showed: its temporaries and its fragmentation.
    arena_excess_bytes: int = 0
    shapes: dict[Rest, Shape] = field(default_factory=dict)
    plans: dict[tuple[Rest, int, bool], tuple[_C.Plan, _C.OpStep]] = field(default_factory=dict)
    chosen: WeakKeyDictionary[Place, Chosen] = field(default_factory=WeakKeyDictionary)

    @property
    def device(self) -> torch.device:
        return self.captured.device

    @functools.cached_property
    def input_bytes(self) -> int:
        """Returns the bytes that the graph counts as in use before a step."""
        return self.captured.resident_bytes()

    def shape(self, rest: Rest) -> Shape:
        if rest not in self.shapes:
            _bound(self.shapes)
            self.shapes[rest] = Shape(self.captured, self.calls, rest, self.settings, self.costs)
        return self.shapes[rest]

    def plan(
        self,
        budget_bytes: int,
        rest: Rest,
        outside_bytes: int,
        excess: Excess | None = None,
        *,
        without_arena: bool = False,
    ) -> tuple[_C.Plan, _C.OpStep]:
        """Returns the plan for a peak in the graph's own terms, cached by budget and rest.

        Raises BudgetError, whose number leaves the excess free, or the assumed excess if none has been measured.
        """
        budget_bytes -= 0 if without_arena else self.arena_excess_bytes
        key = (rest, budget_bytes, without_arena)
        if key not in self.plans:
            shape = self.shape(rest)
            plan = shape.plan_without_arena(budget_bytes) if without_arena else shape.plan(budget_bytes)
            if plan.schedule is None:
                smallest = shape.smallest_bytes() + self.arena_excess_bytes
                excess = excess or Excess(self.device)
                least, most = smallest - self.input_bytes, shape.store_all_bytes - self.input_bytes
                raise too_small(
                    self.settings,
                    shape.problem,
                    shape.graph,
                    smallest,
                    outside_bytes,
                    rest_bytes=rest.peak_bytes,
                    excess_bytes=excess.name(least) - least,
                    smallest_share=excess.add(least) / max(excess.add(most), 1),
                    is_first_of_several=self.is_cut and rest == Rest(),
                )
            _bound(self.plans)
            self.costs.has_run = True
            self.plans[key] = (plan, _C.OpStep(shape.program, plan.schedule))
        return self.plans[key]

    def smallest_bytes(self, rest: Rest) -> int:
        return self.shape(rest).smallest_bytes() + self.arena_excess_bytes - self.input_bytes

    def store_all_bytes(self, rest: Rest) -> int:
        return self.shape(rest).store_all_bytes + self.arena_excess_bytes - self.input_bytes

    def held_bytes(self, rest: Rest) -> int:
        held = self.shape(rest).held_bytes + self.arena_excess_bytes - self.input_bytes
        return max([held, *[now.held_bytes for now in self.chosen.values()]])

    def added_bytes(self, chosen: Chosen, rest: Rest) -> int | None:
        shape, schedule = self.shape(rest), chosen.plan.schedule
        if not _C.is_valid(shape.graph, schedule):
            return None
        if chosen.arena is None:
            return _C.simulate(shape.graph, schedule).peak_bytes - self.input_bytes
        planned = shape.peak_bytes(schedule) - self.input_bytes
        if chosen.memory is None:
            return planned + self.arena_excess_bytes
        after_backward = _C.simulate(shape.graph, schedule).moment_bytes[shape.last_run(schedule)] - self.input_bytes
        added = max(arena.peak_bytes(chosen.memory, rest, self._tangent_bytes), after_backward)
        self.arena_excess_bytes = max(self.arena_excess_bytes, added - planned)
        return added

    @functools.cached_property
    def _tangent_bytes(self) -> int:
        of = self.captured
        values = {of.value_of_tensor[tensor] for tensor in of.backward_inputs if tensor >= 0}
        return sum(of.values[value].bytes for value in values)

    def halves_bytes(self, chosen: Chosen, rest: Rest) -> tuple[int, int] | None:
        shape, schedule = self.shape(rest), chosen.plan.schedule
        if not _C.is_valid(shape.graph, schedule):
            return None
        if chosen.memory is not None:
            if chosen.arena.statistics().bad_in_row > 0:
                return None
            return arena.halves_bytes(chosen.memory, rest, self._tangent_bytes)
        moments = _C.simulate(shape.graph, schedule).moment_bytes
        middle = [step.op for step in schedule.steps].index(shape.rest_op)
        halves = (moments[:middle], moments[middle + 1 :])
        return tuple(max(half, default=self.input_bytes) - self.input_bytes for half in halves)

    def choose(self, room: Room, _: Sequence[Any]) -> Chosen:
        planned = room.planned_bytes()
        return self._choose(room, self.store_all_bytes(room.rest) if planned is None else planned)

    def choose_smallest(self, room: Room, _: Sequence[Any]) -> Chosen:
        return self._choose(room, self.smallest_bytes(room.rest))

    def _choose(self, room: Room, added_bytes: int) -> Chosen:
        outside = room.before_bytes - self.input_bytes
        budget = self.input_bytes + added_bytes
        has_arena = arena.uses_arena(self.settings, self.device)
        try:
            plan, op_step = self.plan(budget, room.rest, outside, room.excess)
        except BudgetError as error:
            if self.arena_excess_bytes == 0:
                raise
            # The recorded arenas are larger than their plans showed.
            has_arena = False
            plan, op_step = self.plan(budget, room.rest, outside, room.excess, without_arena=True)
            arena.warn_of_too_large(error.smallest_budget_bytes, budget + outside)
        held = self.shape(room.rest).held_by(plan.schedule) - self.input_bytes
        chosen = Chosen(plan, op_step, held, rest=room.rest, added_bytes=None)
        if has_arena:
            chosen.arena = _C.Arena(self.device)
        chosen.added_bytes = self.added_bytes(chosen, room.rest)
        return chosen

    def planned(self, chosen: Chosen, room: Room) -> Planned:
        planned = room.planned_bytes()
        budget = self.store_all_bytes(room.rest) if planned is None else planned
        return Planned(chosen.added_bytes, budget, chosen.plan.time_ns, chosen.plan.base_time_ns)


@dataclass(eq=False)
class Chosen(place.Chosen):
    """The plan that runs at a place."""

    plan: _C.Plan
    op_step: _C.OpStep
    held_bytes: int  # Bytes that its forward leaves. A plan that moves ops may leave more than store-all.

    def recomputes(self) -> bool:
        return self.plan.time_ns > self.plan.base_time_ns
