"""Budgets that are accepted before peaks are measured, and kept afterwards."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from headroom.budget import excess  # noqa: E402
from test_excess import train  # noqa: E402

import headroom  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


def smallest_budget() -> int:
    """Returns the budget that an error names. The error itself would keep tensors in its traceback."""
    try:
        train(1, hidden_bytes=0)
    except headroom.BudgetError as error:
        return error.smallest_budget_bytes
    raise AssertionError("one byte is enough")


def test_a_plan_that_keeps_to_its_budget_is_not_refused_once_it_is_measured() -> None:
    measure = excess.Excess.measure
    with mock.patch.object(excess, "counts_whole_blocks", return_value=True):
        peaks, before = train(smallest_budget(), hidden_bytes=0)
        taken = int(0.0265 * (peaks[-1] - before[-1]))  # Nearly all of the reserve of a first step.
        with mock.patch.object(
            excess.Excess, "measure", lambda self, measured_bytes: measure(self, measured_bytes + taken)
        ):
            same, _ = train(smallest_budget(), hidden_bytes=0)
    assert same == peaks


@pytest.mark.parametrize("kernels", ["eager", "inductor"])
def test_an_error_says_where_further_graphs_come_on_top(kernels: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())

    def cut(x: torch.Tensor) -> torch.Tensor:
        middle = model(x)
        torch._dynamo.graph_break()
        return model(middle).square().mean()

    def message(function: Callable[..., torch.Tensor]) -> str:
        torch._dynamo.reset()
        with pytest.raises(headroom.BudgetError) as error:
            headroom.compile(function, 1, kernels=kernels)(torch.randn(32, 64))
        return str(error.value)

    assert "Dynamo cuts the model into several graphs" in message(cut)
    assert "Dynamo cuts" not in message(lambda x: model(x).square().mean())


def first_row_writer(x: torch.Tensor) -> torch.Tensor:
    hidden = x.tanh() + 1
    hidden[3] = 0.0
    return (hidden * hidden).sum()


def second_row_writer(x: torch.Tensor) -> torch.Tensor:
    hidden = (x + x).sigmoid() + 1
    hidden[3] = 0.0
    return hidden.unsqueeze(1).expand(32, 3, 16).sum(1).square().sum()


def test_a_row_that_is_written_takes_a_copy_of_its_whole_storage() -> None:
    """The second time, tracing finds the copy of a row in PyTorch's cache, without the storage behind it."""
    x = torch.randn(32, 16, requires_grad=True)
    for function in (first_row_writer, second_row_writer):
        x.grad = None
        plan = headroom.plan(function, x)
        sizes = {value.name: value.bytes for value in plan._step.captured.values}
        assert sizes["copy_1"] == x.nbytes
        run = headroom.compile(function, plan.smallest_budget)
        meter = headroom.Meter(torch.device("cpu"))
        run(x).backward()  # Measures operators.
        for _ in range(2):
            x.grad = None
            meter.reset_peak()
            run(x).backward()
            assert meter.peak_bytes() <= plan.smallest_budget


def write_slice_of_row(x: torch.Tensor) -> torch.Tensor:
    hidden = x.tanh() + 2
    hidden[3][2:5].mul_(3)
    return hidden.square().sum()


def write_diagonal(x: torch.Tensor) -> torch.Tensor:
    hidden = (x @ x.t()) * 2
    hidden.diagonal().zero_()
    return (hidden @ x).sum()


def write_column_of_part(x: torch.Tensor) -> torch.Tensor:
    hidden = torch.cat([x, x.cos()], 1)
    hidden[:, :16][:, 3] += 1
    return (hidden.exp() * 0.1).sum()


@pytest.mark.parametrize("function", [write_slice_of_row, write_diagonal, write_column_of_part])
def test_writes_through_views_keep_to_the_smallest_budget(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = (0.1 * torch.randn(32, 16)).requires_grad_()
    function(x).backward()
    expected = x.grad.tolist()  # In memory that no meter counts.
    meter = headroom.Meter(torch.device("cpu"))
    for _ in range(2):  # The second time, PyTorch has cached the traced results of each operator.
        torch._dynamo.reset()
        x.grad = None
        plan = headroom.plan(function, x)
        run = headroom.compile(function, plan.smallest_budget)
        run(x).backward()  # Measures operators.
        x.grad = None
        meter.reset_peak()
        run(x).backward()
        assert meter.peak_bytes() <= plan.smallest_budget
        assert x.grad.tolist() == expected
