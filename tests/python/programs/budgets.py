"""Compiles a program once, and runs it in several budgets. Only this file uses internals of headroom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from headroom.budget.flight import flights_on
from headroom.budget.place import Place
from headroom.exec.eager import compile_graph
from headroom.exec.inductor import kernels
from headroom.planning import Step
from headroom.settings import Settings


@contextlib.contextmanager
def smallest_kernel_plans() -> Iterator[None]:
    """Makes steps of Inductor's kernels run by their smallest plans, whatever their peaks.

    Kernels of tiny graphs allocate more than their plans predict, so that every budget that forces a choice is refused.
    """
    with (
        mock.patch.object(kernels, "_MOST_TRIALS", 1),  # The last trial is that of the smallest plan.
        mock.patch.object(kernels, "_is_own_too_large", return_value=True),
        mock.patch.object(kernels, "_LOOSE", 0),
        mock.patch.object(kernels.Candidate, "fits", return_value=True),
    ):
        yield


class Budgeted:
    """A compiler of functions whose budget can be changed later."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.settings = Settings("1x")
        self.steps: list[Step] = []
        self.graph_count = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend=self.backend, dynamic=False)

    def backend(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graph_count += 1
        return compile_graph(gm, inputs, self.settings, on_step=self.steps.append)

    def is_all_planned(self) -> bool:
        """Returns whether every graph takes a gradient. The results of others are outside of all plans."""
        return 0 < self.graph_count == len(self.steps)

    def roots(self) -> list[Place]:
        """Returns the states of the graphs that a step has entered while no other was in flight."""
        known = flights_on(self.device).roots
        return [known[step] for step in self.steps if step in known]

    def smallest_share(self) -> float:
        """Returns the smallest share of storing everything that all graphs can keep, including their first step."""
        places = [place for root in self.roots() for place in (root, Place(root.step))]
        shares = [place.smallest_bytes() / max(place.store_all_bytes(), 1) for place in places]
        return max(shares, default=1.0)

    def store_all_bytes(self) -> int:
        """Returns the memory that a step that stores everything is predicted to add, of which shares are taken."""
        return max([place.store_all_bytes() for place in self.roots()], default=0)

    def predicted_bytes(self) -> int:
        """Returns the memory that the plans of these graphs are predicted to add, graphs in flight with them."""
        added = [place.step.chosen[place].added_bytes for place in self.roots() if place in place.step.chosen]
        return max(added, default=0)

    def set_budget(self, budget: int | str | None) -> None:
        """Changes the budget, and forgets the measurements of earlier runs."""
        self.settings = Settings(budget)
        known = flights_on(self.device).roots
        for step in self.steps:
            step.settings = self.settings
            step.chosen.clear()
            step.plans.clear()
            known.pop(step, None)
