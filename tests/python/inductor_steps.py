"""Small steps with kernels="inductor", and comparisons of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from headroom.costs import op_costs

import headroom

WIDTH, BATCH = 16, 64
# PyTorch's own partition, and a plan that recomputes.
BUDGETS = ["10x", "0.8x"]
each_budget = pytest.mark.parametrize("budget", BUDGETS)


@pytest.fixture
def same_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_costs, "_measure", lambda *_: op_costs.Cost(10_000, 0))
    monkeypatch.setattr(op_costs, "_sample_ns", lambda *_: 10_000_000)


def compiled(
    function: Callable[..., Any], budget: int | str, dynamic: bool | None = False
) -> tuple[Callable[..., Any], list[headroom.planning.Planned]]:
    """Compiles a function within a budget. Returns it with the list of plans that it runs."""
    torch._dynamo.reset()
    plans: list[headroom.planning.Planned] = []
    options = {"budget": budget, "kernels": "inductor", "on_plan": plans.append}
    return torch.compile(function, backend=headroom.api.backend, options=options, dynamic=dynamic), plans


class Net(torch.nn.Module):
    """Stores twice the memory that it needs."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).sin().exp()
        return x


def batch(seed: int = 1, *, requires_grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, WIDTH, generator=generator).requires_grad_(requires_grad)


def gradients(model: torch.nn.Module) -> list[torch.Tensor | None]:
    made = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return made


def assert_close(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for position, (gradient, other) in enumerate(zip(actual, expected, strict=True)):
        assert (gradient is None) == (other is None), position
        if other is not None:
            scale = float(other.detach().abs().max())
            torch.testing.assert_close(
                gradient, other, rtol=1e-4, atol=1e-5 * scale, msg=lambda m, i=position: f"{i}: {m}"
            )


def assert_recomputes(plans: list[headroom.planning.Planned], budget: str) -> None:
    """Checks that a step runs by a plan, not by PyTorch's own partition."""
    assert (plans[-1].time_ns > plans[-1].plain_time_ns) == (budget != BUDGETS[0]), plans[-1]
