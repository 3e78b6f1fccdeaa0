"""Several graphs, several forwards and eager code around them inside one budget."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

pytestmark = pytest.mark.usefixtures("alone")


def layers(count: int, width: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(count)]
    )


class Broken(torch.nn.Module):
    """Three graphs, the last of them small."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = layers(8, 16), layers(6, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        x = self.second(x.tanh())
        torch._dynamo.graph_break()
        return self.head(x.relu()).square().mean()


def peaks_of(step: Callable[[], None], model: torch.nn.Module, steps: int = 4) -> list[tuple[int, int]]:
    """By step: bytes before it, and its peak."""
    meter = headroom._C.Meter(torch.device("cpu"))
    result = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        before = meter.current_bytes()
        meter.reset_peak()
        step()
        result.append((before, meter.peak_bytes()))
        optimizer.step()
    return result


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [one.grad.clone() for one in model.parameters()]


def one_step(run: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], None]:
    return lambda: run(inputs).backward()


def two_forwards(run: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], None]:
    return lambda: (run(inputs) + run(2 * inputs)).backward()


def with_eager_loss(run: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        y = run(inputs)
        (y.exp() * y.sin().square()).log1p().mean().backward()

    return step


def make(kind: str) -> tuple[torch.nn.Module, torch.Tensor, Callable[..., Callable[[], None]]]:
    torch.manual_seed(0)
    if kind == "three graphs":
        return Broken(), torch.randn(256, 16), one_step
    if kind == "two forwards":
        return (
            torch.nn.Sequential(layers(8, 16), torch.nn.Linear(16, 1), torch.nn.Flatten(0)),
            torch.randn(256, 16),
            lambda run, inputs: two_forwards(lambda x: run(x).sum(), inputs),
        )
    return layers(10, 16), torch.randn(256, 16), with_eager_loss


KINDS = ["three graphs", "two forwards", "a loss outside"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_step_keeps_to_a_budget_in_bytes(kind: str) -> None:
    model, inputs, step_of = make(kind)
    plain = peaks_of(step_of(model, inputs), model)
    expected = gradients(model)
    added = plain[-1][1] - plain[-1][0]
    for share in (1.1, 0.7, 0.5):
        torch._dynamo.reset()
        model, inputs, step_of = make(kind)
        meter = headroom._C.Meter(torch.device("cpu"))
        state = sum(4 * one.numel() for one in model.parameters())
        budget = meter.current_bytes() + state + int(share * added)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = peaks_of(step_of(headroom.compile(model, budget), inputs), model)
        assert all(torch.equal(one, two) for one, two in zip(gradients(model), expected, strict=True))
        print(kind, share, budget, [budget - peak for _, peak in found])
        assert max(peak for _, peak in found[1:]) <= budget


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_step_keeps_to_a_share(kind: str) -> None:
    model, inputs, step_of = make(kind)
    plain = peaks_of(step_of(headroom.compile(model, "1x"), inputs), model)
    added = plain[-1][1] - plain[-1][0]
    for share in (0.7, 0.5):
        torch._dynamo.reset()
        model, inputs, step_of = make(kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = peaks_of(step_of(headroom.compile(model, f"{share}x"), inputs), model)
        print(kind, share, added, [peak - before for before, peak in found])
        assert max(peak - before for before, peak in found[1:]) <= share * added
