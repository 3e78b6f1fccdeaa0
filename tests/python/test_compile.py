"""torch.compile's backend: budgets kept, gradients those of plain training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.aot import Settings, Step, compile_graph  # noqa: E402
from training_models import CASES, Trained, loss_of, train  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    torch._dynamo.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def make(name: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = CASES[name].make()
    inputs, labels = CASES[name].inputs()
    return model, inputs, labels


class Budgeted:
    """A compiled function whose budget can be changed, so that tests trace each model once."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.steps: list[Step] = []

        def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable[..., object]:
            return compile_graph(gm, inputs, Settings("1x"), on_step=self.steps.append)

        self.run = torch.compile(function, backend=backend, dynamic=False)

    def __call__(self, *args: object) -> torch.Tensor:
        return self.run(*args)

    def set_budget(self, budget: object) -> None:
        for step in self.steps:
            step.settings = Settings(budget)
            step.chosen.clear()


def expect_same(found: Trained, expected: Trained) -> None:
    assert found.losses == expected.losses
    assert found.tensors.keys() == expected.tensors.keys()
    different = [name for name, one in expected.tensors.items() if not torch.equal(found.tensors[name], one)]
    assert different == []


@pytest.mark.parametrize("name", CASES)
def test_budgets_are_kept_and_bits_are_those_of_plain_training(name: str) -> None:
    model, inputs, labels = make(name)
    start = copy.deepcopy(model.state_dict())
    expected = train(model, loss_of(model), inputs, labels)
    plan = headroom.plan(loss_of(model), inputs, labels)
    run = Budgeted(loss_of(model))
    run(inputs, labels).backward()
    added = plan.plain_peak - plan.before
    smallest = (plan.smallest_budget - plan.before) / added
    for share in sorted({1.0, 0.7, 0.5, 0.35, smallest + 1e-6}, reverse=True):
        if share < smallest:
            continue
        model.load_state_dict(start)
        run.set_budget(f"{share:.9f}x")
        found = train(model, run, inputs, labels)
        expect_same(found, expected)
        predicted = plan.within(f"{share:.9f}x")
        print(name, share, found.peaks, predicted.peak - predicted.before, added)
        assert max(found.peaks) <= share * added, share
        assert abs(max(found.peaks) - (predicted.peak - predicted.before)) <= 0.005 * max(found.peaks), share


def test_a_budget_in_bytes_is_the_whole_peak() -> None:
    model, inputs, labels = make("resnet")
    plan = headroom.plan(loss_of(model), inputs, labels)
    budget = (plan.plain_peak + plan.smallest_budget) // 2 + 200_000
    from headroom.aot import meter_of

    meter = meter_of(torch.device("cpu"))
    run = headroom.compile(loss_of(model), budget)
    train(model, run, inputs, labels)
    meter.reset_peak()
    run(inputs, labels).backward()
    assert meter.peak_bytes() <= budget


def test_too_small_a_budget_names_the_smallest() -> None:
    model, inputs, _labels = make("resnet")
    with pytest.raises(Exception, match="the smallest that can is") as error:
        headroom.compile(model, "0.01x")(inputs)
    assert "what holds the memory" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "8 apples"}, "8 apples"),
        ({"budget": 1000, "planner": "fastest"}, "planner must be one of"),
        ({"budget": 1000, "reserve": "much"}, "much"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        headroom.compile(torch.nn.Linear(2, 2), **options)


def test_a_second_backward_is_refused() -> None:
    model, inputs, labels = make("mlp")
    loss = torch.nn.functional.cross_entropy(headroom.compile(model, "1x")(inputs), labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once"):
        loss.backward()


def test_gradients_accumulate_over_two_forwards() -> None:
    def both(run: Callable[..., torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> None:
        torch.manual_seed(3)
        losses = [torch.nn.functional.cross_entropy(run(inputs * scale), labels) for scale in (1.0, 0.5)]
        (losses[0] + losses[1]).backward()
        torch.nn.functional.cross_entropy(run(inputs), labels).backward()

    model, inputs, labels = make("resnet")
    both(model, inputs, labels)
    other, _, _ = make("resnet")
    both(headroom.compile(other, "0.6x"), inputs, labels)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


def test_frozen_parameters_get_no_gradient() -> None:
    model, inputs, labels = make("vgg")
    model[0].requires_grad_(False)
    torch.nn.functional.cross_entropy(headroom.compile(model, "1x")(inputs), labels).backward()
    assert model[0].weight.grad is None
    assert model[2].weight.grad is not None


def test_bf16_autocast() -> None:
    def run(
        model: torch.nn.Module, function: Callable[..., torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
    ) -> list[torch.Tensor]:
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(function(inputs), labels)
        loss.backward()
        return [loss.detach(), *[one.grad for one in model.parameters()]]

    model, inputs, labels = make("vit")
    expected = run(model, model, inputs, labels)
    model, inputs, labels = make("vit")
    found = run(model, headroom.compile(model, "0.6x"), inputs, labels)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_a_model_in_two_graphs() -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            torch._dynamo.graph_break()
            return self.second(x.tanh())

    torch.manual_seed(0)
    model = Broken()
    inputs = torch.randn(8, 16)
    headroom.compile(model, "1x")(inputs).sum().backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    model(inputs).sum().backward()
    assert all(torch.equal(one, other.grad) for one, other in zip(found, model.parameters(), strict=True))


def test_several_inputs_and_outputs() -> None:
    linear = torch.nn.Linear(8, 8)

    def model(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = linear(x) * y
        return z, z.exp(), x

    x, y = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    one, two, same = headroom.compile(model, "1x")(x, y)
    (one.sum() + 2 * two.sum() + same.sum()).backward()
    found = [x.grad.clone(), y.grad.clone(), linear.weight.grad.clone()]
    x.grad = y.grad = linear.weight.grad = None
    one, two, same = model(x, y)
    (one.sum() + 2 * two.sum() + same.sum()).backward()
    assert all(torch.equal(a, b) for a, b in zip(found, [x.grad, y.grad, linear.weight.grad], strict=True))


def test_max_batch_fits_and_one_more_does_not() -> None:
    model, inputs, _labels = make("resnet")
    single = headroom.plan(model, inputs[:1])
    budget = single.smallest_budget + 6 * (single.plain_peak - single.smallest_budget)
    largest = headroom.max_batch(model, lambda n: (torch.randn(n, 3, 16, 16),), budget, most=64)
    assert 1 <= largest < 64
    assert headroom.plan(model, torch.randn(largest, 3, 16, 16)).smallest_budget <= budget


def test_without_gradients_nothing_is_planned() -> None:
    model, inputs, _ = make("resnet")
    model.eval()
    with torch.no_grad():
        assert torch.equal(headroom.compile(model, "0.01x")(inputs), model(inputs))
