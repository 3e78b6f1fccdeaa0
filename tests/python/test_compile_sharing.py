"""Several graphs, several forwards and eager code around them inside one budget."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.budget.flight import flights_on  # noqa: E402
from training_models import BEFORE_2_13  # noqa: E402

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
    """Returns the bytes before each step, and its peak."""
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
    return [parameter.grad.clone() for parameter in model.parameters()]


def one_step(run: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], None]:
    return lambda: run(inputs).backward()


def two_forwards(run: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], None]:
    return lambda: (run(inputs) + run(2 * inputs)).backward()


def with_eager_loss(run: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        y = run(inputs)
        (y.exp() * y.sin().square()).log1p().mean().backward()

    return step


def crossed(run: Callable[..., torch.Tensor], inputs: torch.Tensor) -> Callable[[], None]:
    """Runs the backward of the first forward first."""

    def step() -> None:
        first, second = run(inputs).sum(), run(2 * inputs).sum()
        first.backward()
        second.backward()

    return step


def make(kind: str) -> tuple[torch.nn.Module, torch.Tensor, Callable[..., Callable[[], None]]]:
    torch.manual_seed(0)
    inputs = torch.randn(256, 16)
    if kind == "three graphs":
        return Broken(), inputs, one_step
    model = torch.nn.Sequential(layers(8, 16), torch.nn.Linear(16, 1), torch.nn.Flatten(0))
    if kind == "two forwards":
        return model, inputs, lambda run, x: two_forwards(lambda batch: run(batch).sum(), x)
    if kind == "crossed":
        return model, inputs, crossed
    return layers(10, 16), inputs, with_eager_loss


KINDS = ["three graphs", "two forwards", "crossed", "a loss outside"]


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
        state = sum(4 * parameter.numel() for parameter in model.parameters())
        budget = meter.current_bytes() + state + int(share * added)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            actual = peaks_of(step_of(headroom.compile(model, budget), inputs), model)
        assert all(torch.equal(left, right) for left, right in zip(gradients(model), expected, strict=True))
        assert max(peak for _, peak in actual[1:]) <= budget


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
            actual = peaks_of(step_of(headroom.compile(model, f"{share}x"), inputs), model)
        assert max(peak - before for before, peak in actual[1:]) <= share * added


def test_a_graph_without_room_says_so_once() -> None:
    model, inputs, step_of = make("three graphs")
    plain = peaks_of(step_of(model, inputs), model, steps=1)
    torch._dynamo.reset()
    model, inputs, step_of = make("three graphs")
    budget = headroom.current_bytes() + sum(4 * parameter.numel() for parameter in model.parameters())
    budget += (plain[0][1] - plain[0][0]) // 2
    step = step_of(headroom.compile(model, budget), inputs)
    with pytest.warns(UserWarning, match="over the budget in this step"):
        step()
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()


def test_models_of_their_own_budgets_in_one_step_keep_to_both() -> None:
    models = layers(8, 16), layers(8, 16)
    both, inputs = torch.nn.Sequential(*models), torch.randn(256, 16)
    plain = peaks_of(lambda: both(inputs).square().mean().backward(), both)
    both.zero_grad()
    added = plain[-1][1] - plain[-1][0]
    state = sum(4 * one.numel() for one in both.parameters())
    budget = headroom.current_bytes() + state + int(0.8 * added)
    first, second = (headroom.compile(model, budget) for model in models)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = peaks_of(lambda: second(first(inputs)).square().mean().backward(), both, steps=6)
    assert max(peak for _, peak in found[1:]) <= budget


def test_a_forward_without_backward_leaves_nothing() -> None:
    model, inputs, _ = make("two forwards")
    run = headroom.compile(model, "0.6x")
    run(inputs).sum().backward()
    model.zero_grad()
    before = headroom.current_bytes()
    result = run(inputs)
    assert headroom.current_bytes() > before + 4 * result.numel()
    del result
    assert headroom.current_bytes() == before
    run(inputs).sum().backward()
    actual = gradients(model)
    model.zero_grad()
    model(inputs).sum().backward()
    assert all(torch.equal(left, right) for left, right in zip(actual, gradients(model), strict=True))


def peaks_with_wide_output(*, holds: bool) -> tuple[int, int]:
    """Returns the maximum that backward adds if the output has a large gradient, and the bytes of that gradient."""

    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(1, 64)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)], torch.nn.Linear(128, 16), Wide())
    run = headroom.compile(model, "1x")
    meter = headroom._C.Meter(torch.device("cpu"))
    for _ in range(3):
        model.zero_grad()
        output = run(torch.ones(64, 128))
        before = meter.current_bytes()
        meter.reset_peak()
        if holds:
            gradient = torch.full_like(output, 2)
            output.backward(gradient)
            del gradient
        else:
            (output * 2).sum().backward()
        added = meter.peak_bytes() - before
        (place,) = [root for step, root in flights_on(torch.device("cpu")).roots.items() if root.step is step][-1:]
        assert place.own_rest.is_held == holds
    return added, output.nbytes


@pytest.mark.skipif(BEFORE_2_13, reason="autograd itself holds it")
def test_the_outputs_gradient_is_freed_where_nobody_holds_it() -> None:
    freed, size = peaks_with_wide_output(holds=False)
    held, _ = peaks_with_wide_output(holds=True)
    assert held >= freed + size // 2
