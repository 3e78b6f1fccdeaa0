"""The error for a budget that cannot be kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headroom import _C

if TYPE_CHECKING:
    from headroom.settings import Settings


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
    tightest = _C.make_plan(problem, settings.planner, smallest_bytes, settings.keep_order)
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
