"""Schedules in any order that the dependencies of a graph allow give the bits of plain PyTorch, at the predicted peak.

No planner is involved: orders are random, or as far from the base order as possible, some with random reruns.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from any_order import ORDER_NAMES, Dependencies, planned_in, runs_in_order  # noqa: E402
from budgeted import Budgeted  # noqa: E402
from headroom import _C  # noqa: E402
from headroom.graph.step_graph import Rest  # noqa: E402
from test_draws import OPERATIONS  # noqa: E402
from test_promises import Stateful  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import dropout  # noqa: E402
from training_models import BEFORE_2_13, CASES, TRANSFORMERS, loss_of, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "fixed_costs", "fresh_device")

# Order, seed and share of ops that run again.
SCHEDULES = [*((name, 0, 0.0) for name in ORDER_NAMES), *((name, 1, 0.3) for name in ORDER_NAMES)]


def replan(run: Budgeted) -> None:
    run.set_budget(None)
    for step in run.steps:
        step.plans.clear()


@pytest.mark.parametrize("name", [name for name in CASES if name != "t5" or not BEFORE_2_13])
def test_bits_and_peaks_of_models(name: str) -> None:
    """The prediction counts outputs that only update counters of batches until the end, in any order."""
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = CASES[name].make()
    inputs, labels = CASES[name].inputs()
    start = copy.deepcopy(model.state_dict())
    expected = train(model, loss_of(model), inputs, labels)
    model.zero_grad()
    run = Budgeted(loss_of(model))
    for schedule in SCHEDULES:
        with planned_in(*schedule):
            model.load_state_dict(start)
            replan(run)
            actual = train(model, run, inputs, labels)
        different = [key for key, tensor in expected.tensors.items() if not torch.equal(actual.tensors[key], tensor)]
        assert (actual.losses, different) == (expected.losses, []), schedule
        peak = max(actual.peaks[1:])  # The first one may reuse memory that was freed before.
        assert 0 <= run.predicted_bytes() - peak <= 0.0005 * peak, schedule


class Branches(nn.Module):
    """Two branches with an operation each, between other draws."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.operation = operation
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = dropout(self.operation(self.linears[0](x).tanh() + 2), 0.1)
        right = self.operation(self.linears[1](x).tanh() + 2).sin()
        return self.linears[2](dropout(x.cos(), 0.3)) * left + dropout(right, 0.2)


def steps(net: nn.Module, run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Returns results, gradients and random numbers after forward and after backward of two steps."""
    import test_draws

    test_draws.calls = 0
    torch.manual_seed(1)
    actual = []
    for _ in range(2):
        x = torch.randn(32, 16, requires_grad=True)
        result = run(x)
        actual.append(torch.rand(2))
        (result * torch.rand_like(result)).sum().backward()
        actual += [result.detach(), x.grad, *[parameter.grad for parameter in net.parameters()], torch.rand(2)]
        actual += [buffer.clone() for buffer in net.buffers()]
        net.zero_grad()
    return actual


def expect_plain(net: nn.Module, *, reference: Callable[..., torch.Tensor] | None = None) -> Budgeted:
    start = copy.deepcopy(net.state_dict())
    expected = steps(net, reference or net)
    run = Budgeted(net)
    for order, seed, share in [*SCHEDULES, *itertools.product(("random", "late random"), range(2, 6), (0.0, 0.5))]:
        net.load_state_dict(start)
        replan(run)
        with planned_in(order, seed, share):
            actual = steps(net, run)
        different = [i for i, (ours, plain) in enumerate(zip(actual, expected, strict=True)) if not torch.equal(ours, plain)]
        assert different == [], (order, seed, share)
    return run


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_draws_and_hidden_state_in_branches(operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    expect_plain(Branches(operation))
