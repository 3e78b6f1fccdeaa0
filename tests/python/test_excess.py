"""Peaks above the prediction of a plan are measured, and the excess is reserved in later steps."""

from __future__ import annotations

from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from fixed_costs import fixed_costs  # noqa: E402
from headroom.budget import excess  # noqa: E402
from headroom.costs import op_costs  # noqa: E402
from torch import nn  # noqa: E402

import headroom  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")

CPU = torch.device("cpu")


def test_nothing_is_left_free_where_predictions_are_exact() -> None:
    exact = excess.Excess(CPU)
    assert exact.add(1000) == 1000
    assert exact.subtract(1000) == 1000


def test_the_largest_of_the_last_two_steps_counts() -> None:
    measured = excess.Excess(CPU)
    for value, expected in [(50, 50), (-7, 50), (20, 20), (10, 20)]:
        measured.measure(value)
        assert measured.add(1000) == 1000 + expected
        assert measured.subtract(1000 + expected) == 1000


def test_blocks_have_slack_until_they_are_measured_and_some_afterwards() -> None:
    with mock.patch.object(excess, "counts_whole_blocks", return_value=True):
        slack = excess.Excess(CPU)
    sizes = (0, 1, 12_345, 500 << 20, (500 << 20) + 1, 10**10 + 7)
    assert slack.add(1_000_000) == 1_075_000
    assert slack.add(10**10) == 10_250_000_000 + (24 << 20)
    # Planning for the predicted peak gives the same plan.
    assert [slack.subtract(slack.add(planned)) for planned in sizes] == list(sizes)
    slack.measure(2_000)
    assert slack.add(1_000_000) == 1_005_000
    assert [slack.subtract(slack.add(planned)) for planned in sizes] == list(sizes)


def train(budget: int | str, *, hidden_bytes: int) -> tuple[list[int], list[int]]:
    """Returns peaks of five steps of a model whose convolutions' workspaces are said to be smaller than they are.

    Also returns what was there before each step.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (nn.Conv1d(8, 8, 3, padding=1), nn.Tanh())]
    model, inputs = nn.Sequential(*layers), torch.randn(4, 8, 64)
    measure = op_costs._measure

    def too_little(call: op_costs.Call, *rest: object) -> op_costs.Cost:
        cost = measure(call, *rest)
        return cost._replace(workspace_bytes=cost.workspace_bytes - hidden_bytes)

    meter, peaks, before = headroom.Meter(CPU), [], []
    with fixed_costs(), mock.patch.object(op_costs, "_measure", too_little):
        run = headroom.compile(lambda x: model(x).square().mean(), budget, cache=False)
        for _ in range(5):
            model.zero_grad()
            before.append(meter.current_bytes())
            meter.reset_peak()
            run(inputs).backward()
            peaks.append(meter.peak_bytes())
    return peaks, before


def test_steps_after_the_first_keep_to_the_budget_where_predictions_are_too_low() -> None:
    honest, before = train("1x", hidden_bytes=0)
    budget = before[-1] + (honest[-1] - before[-1]) * 8 // 10
    peaks, _ = train(budget, hidden_bytes=2000)
    assert peaks[0] > budget
    assert max(peaks[1:]) <= budget


def test_sums_of_gradients_after_backward_are_part_of_the_step() -> None:
    """Autograd adds the gradient from inside the graph to that from outside when the graph's backward is done."""
    x = torch.randn(64, 64, requires_grad=True)
    size = 64 * 64 * 4
    meter = headroom.Meter(CPU)

    def peaks(budget: int) -> list[int]:
        torch._dynamo.reset()
        run, peak_bytes = headroom.compile(torch.tanh, budget, cache=False), []
        for _ in range(4):
            meter.reset_peak()
            y = run(x)
            gradients = torch.autograd.grad(((x + y) * 2).sum(), [y, x])
            peak_bytes.append(meter.peak_bytes())
            del y, gradients
        return peak_bytes

    # Live at the peak: y, its gradient, which is asked for, the graph's gradient of x, and the sum of that and the
    # gradient of x from outside. While the loss is computed there is one tensor less.
    enough = meter.current_bytes() + 4 * size + 1024
    assert max(peaks(enough)) > enough - size // 2
    with pytest.raises(headroom.BudgetError) as caught:
        peaks(enough - size // 2)
    assert max(peaks(caught.value.smallest_budget_bytes)[1:]) <= caught.value.smallest_budget_bytes <= enough
