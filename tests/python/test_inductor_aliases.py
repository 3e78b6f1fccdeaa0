"""kernels="inductor": memory that backward, the user or a kernel changes in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from programs.budgets import smallest_kernel_plans  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


# Inductor removes the clone, so that the output becomes a view of what backward reads.
def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.exp().clone().reshape(16, 32).t()


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = x.sigmoid().clone().split(16)
    return first.t(), second[0]


def written(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result.copy_(x.tanh())
    return result.contiguous().reshape(16, 32).t()


@pytest.mark.parametrize("plan", ["own", "least"])
@pytest.mark.parametrize("function", [transposed, halves, written])
def test_outputs_are_as_before_backward(function: Callable[..., object], plan: str) -> None:
    plans = smallest_kernel_plans() if plan == "least" else contextlib.nullcontext()
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with plans:
        compiled = headroom.compile(function, "1x" if plan == "least" else None, kernels="inductor", cache=False)
        results = compiled(x)
    expected = function(x)
    results, expected = ((result,) if isinstance(result, torch.Tensor) else result for result in (results, expected))
    actual, correct = (
        torch.autograd.grad(sum(tensor.exp().sum() for tensor in tensors), x)[0] for tensors in (results, expected)
    )
    torch.testing.assert_close(actual, correct)
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other)


def test_code_that_overwrites_a_saved_tensor_is_not_taken_for_one_that_is_an_output() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 1.0

    def handed_out(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    for function in (inside, handed_out):
        torch._dynamo.reset()
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
        result = headroom.compile(function, None, kernels="inductor", cache=False)(x)
        expected = result.detach().clone()
        result.sum().backward()
        assert torch.equal(result, expected), function.__name__


@pytest.mark.parametrize("plan", ["own", "least"])
def test_a_result_that_shares_memory_with_a_saved_tensor_must_not_change(plan: str) -> None:
    plans = smallest_kernel_plans() if plan == "least" else contextlib.nullcontext()
    with plans:
        run = headroom.compile(lambda x: x.exp().t(), "1x" if plan == "least" else None, kernels="inductor")
        for is_changed in (False, True, False):
            x = torch.ones(8, 16, requires_grad=True)
            result = run(x)
            with torch.no_grad():
                result.mul_(1) if is_changed else result.mul(1)
            if is_changed:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    result.sum().backward()
            else:
                result.sum().backward()
                assert torch.equal(x.grad, x.detach().exp())


class Remembering(torch.nn.Module):
    """Reads a buffer and writes its input to it. Backward then reads a view of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.clone()
        result = (h @ self.kept.clone().t()).softmax(-1) @ h
        self.kept.copy_(h.detach())
        return result


@pytest.mark.parametrize("plan", ["own", "least"])
def test_an_input_of_which_a_view_is_saved_must_not_change(plan: str) -> None:
    plans = smallest_kernel_plans() if plan == "least" else contextlib.nullcontext()
    with plans:
        run = headroom.compile(Remembering(), "1x" if plan == "least" else None, kernels="inductor", cache=False)
        for is_changed in (False, True):
            x = torch.linspace(-1, 1, 512).view(32, 16).requires_grad_()
            result = run(x)
            if is_changed:
                with torch.no_grad():
                    x.mul_(1.5)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    result.sum().backward()
            else:
                result.sum().backward()


def test_a_kernel_that_reads_the_result_of_a_scatter_runs_after_it() -> None:
    """The gradient of a maximum is scattered into zeros, which a sum comes before and an addition after."""

    def function(x: torch.Tensor) -> torch.Tensor:
        h = x @ weight
        h = h.clone()
        h[:, :4] = x[:, 4:8].tanh()
        return h - h.max(dim=1, keepdim=True).values

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 16, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(16, 16, dtype=torch.float64, generator=generator)
    with smallest_kernel_plans():
        result = headroom.compile(function, "1x", kernels="inductor", cache=False)(x)
    actual, expected = (torch.autograd.grad((value * 2).sum(), x)[0] for value in (result, function(x)))
    torch.testing.assert_close(actual, expected)
