"""Random numbers and hidden state: draws and calls of operators happen in the order of plain PyTorch.

Operators of other libraries, and draws that forward's results do not need, are not known to AOTAutograd as such.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from budgeted import Budgeted  # noqa: E402
from inductor_steps import assert_close, same_costs  # noqa: E402, F401
from programs.budgets import smallest_kernel_plans  # noqa: E402
from torch.nn.functional import dropout  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "same_costs")

calls = 0  # Of `headroom_tests::count`, whose result depends on it.


def derive(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    inputs, result = ctx.saved_tensors
    return gradient * result / inputs


def register(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    function.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    operator = torch.library.custom_op(f"headroom_tests::{name}", function, mutates_args=())
    operator.register_fake(torch.empty_like)
    operator.register_autograd(derive, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output))
    return operator


def draw(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.rand_like(x))


def count(x: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    return x * calls


draw_by_operator, count_calls = register("draw", draw), register("count", count)


class SavedDraw(torch.autograd.Function):
    """Draws numbers in forward that only backward needs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.rand_like(x))
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


class BackwardDraws(torch.autograd.Function):
    """Draws numbers in backward, in the reverse order of their use."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        last = torch.rand(32, 16)
        return gradient * torch.rand_like(gradient) * last


def draw_for_nothing(x: torch.Tensor) -> torch.Tensor:
    dropout(x, 0.2)
    torch.rand(3)
    return dropout(x, 0.3)


OPERATIONS = {
    "an operator that draws": draw_by_operator,
    "an operator that counts its calls": count_calls,
    "an operator in a checkpoint": lambda x: checkpoint(lambda y: draw_by_operator(y.cos()), x, use_reentrant=False),
    "a draw for backward": lambda x: dropout(SavedDraw.apply(dropout(x, 0.2)), 0.3),
    "draws in backward": lambda x: dropout(BackwardDraws.apply(dropout(x, 0.2)), 0.3),
    "a draw that nothing uses": draw_for_nothing,
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


class Net(torch.nn.Module):
    """Stores more before and after an operation than necessary."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.operation = operation
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x).tanh().exp()
        x = self.operation(x + 1).sin().exp()
        return dropout(self.linear(x).tanh().exp(), 0.1)


def steps(net: Net, run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Returns results and gradients of three steps from the same initial state."""
    global calls
    calls = 0
    torch.manual_seed(1)
    actual = []
    for _ in range(3):
        x = torch.randn(32, 16, requires_grad=True)
        result = run(x)
        noise = torch.rand_like(result)
        (result * noise).sum().backward()
        actual += [result.detach(), x.grad, net.linear.weight.grad, torch.rand(2)]
        net.zero_grad()
    return actual


@each_operation
def test_draws_and_calls_of_eager_kernels(operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    net = Net(operation)
    expected = steps(net, net)
    run = Budgeted(net)
    for smallest in (False, True):
        if smallest:
            run.set_smallest_budget()
        actual = steps(net, run)
        assert all(torch.equal(ours, plain) for ours, plain in zip(actual, expected, strict=True)), smallest
    assert run.reruns()


@contextlib.contextmanager
def plans(smallest: bool) -> Iterator[None]:
    with smallest_kernel_plans() if smallest else contextlib.nullcontext():
        yield


@each_operation
@pytest.mark.parametrize("smallest", [False, True], ids=["own partition", "smallest plan"])
def test_draws_and_calls_of_inductor_kernels(operation: Callable[[torch.Tensor], torch.Tensor], smallest: bool) -> None:
    """Trials run the step as well, so the calls of an operator are counted from the first step on.

    PyTorch's own partition draws in backward in another order, as torch.compile does.
    """
    net = Net(operation)
    with torch._inductor.config.patch(fallback_random=True):
        is_reordered = operation is OPERATIONS["draws in backward"] and not smallest
        expected = steps(net, torch.compile(net) if is_reordered else net)
        with plans(smallest):
            run = headroom.compile(net, "1x" if smallest else None, kernels="inductor", cache=False)
            steps(net, run)
            assert_close(steps(net, run), expected)
