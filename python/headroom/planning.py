"""Plans a captured graph within a budget, beside the rest of its step."""

from __future__ import annotations

import functools
import logging
import math
import time
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

from headroom import _C
from headroom.budget.excess import Excess
from headroom.budget.flight import Place
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


class BudgetError(ValueError):
    """Raised if no plan is feasible within the budget."""

    def __init__(self, message: str, smallest_budget_bytes: int) -> None:
        super().__init__(message)
        self.smallest_budget_bytes = smallest_budget_bytes


def _largest_at_peak(graph: _C.Graph, schedule: _C.Schedule) -> str:
    """Returns the part of an error message that lists the largest values at the peak."""
    live = _C.alive_during(graph, schedule, _C.simulate(graph, schedule).peak_step)
    live.sort(key=graph.value_bytes, reverse=True)
    return "; what holds the memory there: " + ", ".join(
        f"{graph.value_name(value)} ({_C.format_bytes(graph.value_bytes(value))})" for value in live[:5]
    )


def too_small(
    settings: Settings,
    problem: _C.Problem,
    graph: _C.Graph,
    smallest_bytes: int,
    outside_bytes: int,
    *,
    rest_bytes: int = 0,
    excess_bytes: int = 0,
    smallest_share: float | None = None,
    is_first_of_several: bool = False,
) -> BudgetError:
    """Returns the error for a budget that is below the smallest feasible peak plus the memory outside the graph.

    `rest_bytes` is the peak of the work between forward and backward, which the smallest peak includes. `excess_bytes`
    is what steps take beyond the prediction of their plans. If `is_first_of_several`, the memory of the graphs that
    follow is not known.
    """
    kept_free = settings.kept_free_bytes()
    outside = outside_bytes + excess_bytes + kept_free
    smallest = smallest_bytes + outside
    tightest = _C.make_plan(problem, settings.planner, smallest_bytes)
    largest = "" if tightest.schedule is None else _largest_at_peak(graph, tightest.schedule)
    shown = _C.format_bytes(settings.budget) if isinstance(settings.budget, int) else settings.budget
    named = f"{smallest} bytes ({_C.format_bytes(smallest)})"
    if isinstance(settings.budget, str) and smallest_share is not None:
        named = f"{math.ceil(1000 * smallest_share) / 1000:g}x, {named}"
    others = []
    if settings.reserve:
        others.append(f"{_C.format_bytes(settings.reserve)} reserved")
    if kept_free > settings.reserve:
        others.append(
            f"{_C.format_bytes(kept_free - settings.reserve)} for the optimizer's state, which is yet to come"
        )
    if outside_bytes > 0:
        others.append(
            f"{_C.format_bytes(outside_bytes)} that is there beside the model's own tensors, such as an optimizer's "
            "state, gradients of earlier steps, other models"
        )
    elif outside_bytes < 0:
        others.append(
            f"{_C.format_bytes(-outside_bytes)} of the model's own tensors are not counted: import headroom before "
            "you make the model"
        )
    if excess_bytes > 0:
        others.append(f"{_C.format_bytes(excess_bytes)} that steps take beyond the sum of their tensors")
    if rest_bytes > 0:
        others.append(f"and {_C.format_bytes(rest_bytes)} taken between forward and backward, as by a loss outside")
    of = f" ({'; '.join(others)})" if others else ""
    hint = ""
    if isinstance(settings.budget, int) and settings.optimizer is None:
        hint = "; the state that an optimizer makes in its first step comes on top, unless optimizer= names it"
    if is_first_of_several:
        hint += (
            "; Dynamo cuts the model into several graphs (TORCH_LOGS=graph_breaks says where), and what those after "
            "this one take comes on top"
        )
    return BudgetError(
        f"the budget {shown} cannot be kept; the smallest that can is {named}, "
        f"{_C.format_bytes(max(outside, 0))} of it outside the step{of}{largest}{hint}",
        smallest,
    )


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
        self._smallest_bytes = 0
        self._make_graph()
        store_all = _C.store_all(self.graph)
        simulation = _C.simulate(self.graph, store_all)
        self.store_all_bytes = simulation.peak_bytes
        ops = [op for op, _ in store_all.steps()]
        rest_op = max(op for op, call in enumerate(self.call_of_op) if call == HANDS_ON)
        # Bytes in use after forward under store-all.
        self.held_bytes = simulation.after_bytes[ops.index(rest_op) - 1]
        self.rest_op = rest_op

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
        """Returns the plan within a budget. Times are measured only if something must be recomputed."""
        start = time.perf_counter()
        plan = self._without_reruns
        if plan is None or plan.peak_bytes > budget_bytes:
            self.need_times()
            start = time.perf_counter()
            plan = _C.make_plan(self.problem, self.settings.planner, max(budget_bytes, 0))
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
        if self._smallest_bytes == 0:
            self.plan(0)
        return self._smallest_bytes


# Maximum number of plans, and of graphs with different rests of the step, that one captured graph keeps.
_MOST_KEPT = 64
# Share of a budget that must have become free before a step that recomputes is planned again.
_MUCH_MORE = 0.02


def _bound(cache: dict[Any, Any]) -> None:
    """Removes the oldest entries, so that one more can be added."""
    while len(cache) >= _MOST_KEPT:
        del cache[next(iter(cache))]


@dataclass(eq=False)
class Step:
    """A captured graph with its plans."""

    captured: Capture
    calls: list[_C.OpCall]
    settings: Settings
    costs: StepCosts
    is_cut: bool = False  # Whether graphs of the same function follow, which are compiled when they are reached.
    shapes: dict[Rest, Shape] = field(default_factory=dict)
    plans: dict[tuple[Rest, int], tuple[_C.Plan, _C.OpStep]] = field(default_factory=dict)
    chosen: weakref.WeakKeyDictionary[Place, Chosen] = field(default_factory=weakref.WeakKeyDictionary)

    def shape(self, rest: Rest) -> Shape:
        if rest not in self.shapes:
            _bound(self.shapes)
            self.shapes[rest] = Shape(self.captured, self.calls, rest, self.settings, self.costs)
        return self.shapes[rest]

    def plan(
        self, budget_bytes: int, rest: Rest, outside_bytes: int, excess: Excess | None = None
    ) -> tuple[_C.Plan, _C.OpStep]:
        """Returns the plan for a peak in the graph's own terms, cached by budget and rest.

        Raises BudgetError, whose number leaves the excess free, or the assumed excess if none has been measured.
        """
        key = (rest, budget_bytes)
        if key not in self.plans:
            shape = self.shape(rest)
            plan = shape.plan(budget_bytes)
            if plan.schedule is None:
                smallest = plan.smallest_budget_bytes
                excess = excess or Excess(self.captured.device)
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

    def choose(self, place: Place, before_bytes: int, device_bytes: int | None, *, is_inner: bool) -> Chosen:
        """Returns what to run at a place, with this many bytes in use on the device and this many allowed.

        The plan chosen before is kept where it fits.
        """
        if device_bytes is None:
            rest = place.rest(1)
            measured_budget = budget = self.shape(rest).store_all_bytes
        else:
            rest = place.fair_rest(device_bytes - before_bytes)
            budget = self.input_bytes + place.counted_excess().subtract(device_bytes - before_bytes)
            measured_budget = self.input_bytes + place.counted_excess().subtract_measured(device_bytes - before_bytes)
            if place.over_bytes > 0:  # Fall back to the smallest plan: the excess may have another cause.
                smallest = self.shape(rest).smallest_bytes()
                budget = min(budget, max(budget - place.over_bytes, smallest))
        now = self.chosen.get(place)
        if now is not None:
            if rest != now.rest and now.rest_fits != rest:
                now.peak_bytes = self._peak_beside(rest, now.plan.schedule)
                now.rest_fits = rest
            has_more = budget - rest.peak_bytes > now.free_bytes + _MUCH_MORE * budget
            fits = now.peak_bytes is not None and now.peak_bytes <= budget
            if not fits and now.peak_bytes is not None and now.peak_bytes <= measured_budget:
                fits = budget < self.shape(rest).smallest_bytes()  # No other plan is more certain to fit.
            if fits and not (has_more and now.recomputes()):
                return now
        outside = before_bytes - self.input_bytes
        try:
            plan, op_step = self.plan(budget, rest, outside, place.counted_excess())
        except BudgetError as error:
            if not is_inner:
                raise
            # The graphs in flight did not know of this one. In the next step they reserve memory for it.
            warnings.warn(f"headroom: over the budget in this step, until it is planned again: {error}", stacklevel=2)
            plan, op_step = self.plan(self.shape(rest).smallest_bytes(), rest, outside, place.counted_excess())
            return Chosen(plan, op_step, rest, rest, plan.peak_bytes, 0)
        now = self.chosen[place] = Chosen(plan, op_step, rest, rest, plan.peak_bytes, budget - rest.peak_bytes)
        if self.settings.on_plan is not None:
            peak, inputs = plan.peak_bytes, self.input_bytes
            self.settings.on_plan(Planned(peak - inputs, budget - inputs, plan.time_ns, plan.base_time_ns))
        return now

    def _peak_beside(self, rest: Rest, schedule: _C.Schedule) -> int | None:
        """Returns the peak of a schedule beside a rest of the step other than its own; None: it is invalid there."""
        graph = self.shape(rest).graph
        return _C.simulate(graph, schedule).peak_bytes if _C.is_valid(graph, schedule) else None

    def predicted_peaks(self, schedule: _C.Schedule, rest: Rest) -> tuple[int, int] | None:
        """Returns the bytes that forward and backward add at their peaks, or None if the schedule is invalid here."""
        shape = self.shape(rest)
        if not _C.is_valid(shape.graph, schedule):
            return None
        moments = _C.simulate(shape.graph, schedule).moment_bytes
        middle = [op for op, _ in schedule.steps()].index(shape.rest_op)
        halves = (moments[:middle], moments[middle + 1 :])
        return tuple(max(half, default=self.input_bytes) - self.input_bytes for half in halves)

    @functools.cached_property
    def input_bytes(self) -> int:
        """Returns the bytes that the graph counts as in use before a step."""
        return self.captured.resident_bytes()


@dataclass(eq=False)
class Chosen:
    """The plan that runs at a place."""

    plan: _C.Plan
    op_step: _C.OpStep
    rest: Rest  # Rest of the step that it was planned with.
    rest_fits: Rest  # Rest of the step that its peak was last simulated with.
    peak_bytes: int | None  # None: the schedule is not valid beside rest_fits.
    free_bytes: int  # Bytes of its budget beyond the peak of its rest.
    steps: int = 0  # Steps that have run it.

    def recomputes(self) -> bool:
        """Returns whether it takes more time than store-all."""
        return self.plan.time_ns > self.plan.base_time_ns
