"""A compiled function whose budget can be changed, so that tests trace each model once."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from headroom.budget.flight import flights_on
from headroom.budget.place import Place
from headroom.exec.eager import compile_graph
from headroom.graph.step_graph import Rest
from headroom.planning import Step
from headroom.settings import Settings


class Budgeted:
    """Compiles with eager kernels, at first with nothing recomputed."""

    def __init__(self, function: Callable[..., torch.Tensor], *, keep_order: bool = False) -> None:
        self.steps: list[Step] = []
        self.keep_order = keep_order

        def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable[..., object]:
            return compile_graph(gm, inputs, Settings("1x", keep_order=keep_order), on_step=self.steps.append)

        self.run = torch.compile(function, backend=backend, dynamic=False)

    def __call__(self, *args: object) -> torch.Tensor:
        return self.run(*args)

    def place(self) -> Place:
        """Returns the state of the only graph."""
        (step,) = self.steps
        return flights_on(torch.device("cpu")).roots[step]

    def predicted_bytes(self) -> int:
        """Returns the memory that a step adds by its plan."""
        place = self.place()
        return place.step.chosen[place].added_bytes

    def set_budget(self, budget: object) -> None:
        for step in self.steps:
            step.settings = Settings(budget, keep_order=self.keep_order)
            step.chosen.clear()

    def set_smallest_budget(self) -> None:
        place = self.place()
        self.set_budget(f"{place.smallest_bytes() / place.store_all_bytes() + 1e-6:.9f}x")

    def ran(self) -> list[str]:
        """Returns the names of the operators that its plan runs, in order."""
        place = self.place()
        schedule = json.loads(place.step.chosen[place].plan.schedule.to_json(place.step.shape(Rest()).graph))
        return [step["run"] for step in schedule["steps"] if "run" in step]

    def reruns(self) -> set[str]:
        ran = self.ran()
        return {name for name in ran if ran.count(name) > 1}


def places() -> list[Place]:
    """Returns the state of each graph that was entered while no other was in flight."""
    return list(flights_on(torch.device("cpu")).roots.values())
