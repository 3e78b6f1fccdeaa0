"""headroom.Sequential: stages that torch.compile cannot capture, inside a budget."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from torch import nn  # noqa: E402
from training_models import ResidualBlock, Trained, train  # noqa: E402

from headroom import sequential  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


class OutputOf(nn.Module):
    """Returns only the output of an LSTM."""

    def forward(self, results: tuple) -> torch.Tensor:
        return results[0]


class Loss(nn.Module):
    def __init__(self, labels: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("labels", labels)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, -2), self.labels)


def language_model() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    stages: list[nn.Module] = [nn.Embedding(64, 32)]
    for _ in range(4):
        stages += [nn.LSTM(32, 32, batch_first=True), OutputOf(), nn.Dropout(0.1)]
    return nn.Sequential(*stages, nn.Linear(32, 64), Loss(torch.randint(64, (8 * 16,)))), torch.randint(64, (8, 16))


def images() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    stages = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    stages += [ResidualBlock(16) for _ in range(4)]
    return nn.Sequential(
        *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10), Loss(torch.randint(10, (8,)))
    ), torch.randn(8, 3, 16, 16)


def train_sequential(model: nn.Sequential, run: nn.Module, inputs: torch.Tensor) -> Trained:
    return train(model, lambda batch, _: run(batch), inputs, inputs)


def expect_same(actual: Trained, expected: Trained) -> None:
    assert actual.losses == expected.losses
    assert [name for name, tensor in expected.tensors.items() if not torch.equal(actual.tensors[name], tensor)] == []


def predicted_bytes(run: headroom.Sequential) -> int:
    """Returns the memory that a step adds by its only plan."""
    (planned,) = run._plans.values()
    (chosen,) = planned.chosen.values()
    return chosen.stages_bytes


@pytest.mark.parametrize("make", [language_model, images])
def test_budgets_are_kept_and_bits_are_those_of_plain_training(make: object) -> None:
    model, inputs = make()
    start = copy.deepcopy(model.state_dict())
    expected = train_sequential(model, model, inputs)
    with pytest.raises(headroom.BudgetError, match=r"what holds the memory there: \w+") as error:
        headroom.Sequential(model, 1)(inputs)
    model.load_state_dict(start)
    model.zero_grad()
    meter = headroom._C.Meter(torch.device("cpu"))
    before = meter.current_bytes()
    everything = headroom.Sequential(model)
    everything(inputs).backward()
    added = predicted_bytes(everything)
    smallest = (error.value.smallest_budget_bytes - before) / added
    assert smallest < 0.9
    for share in (1.0, 0.7, 0.5, smallest):
        if share < smallest:
            continue
        model.load_state_dict(start)
        model.zero_grad()
        run = headroom.Sequential(model, f"{share:.9f}x")
        actual = train_sequential(model, run, inputs)
        expect_same(actual, expected)
        peak = max(actual.peaks[1:])
        assert peak <= share * added + 1
        assert peak == pytest.approx(predicted_bytes(run), rel=0.005)


def test_a_budget_in_bytes_holds_a_loss_outside_and_an_optimizers_state() -> None:
    model, inputs = images()
    model = model[:-1]
    labels = torch.randint(10, (8,))
    meter = headroom._C.Meter(torch.device("cpu"))
    state = sum(8 * parameter.numel() for parameter in model.parameters())
    everything = headroom.Sequential(model)
    everything(inputs).sum().backward()
    model.zero_grad()
    before = meter.current_bytes()
    budget = before + state + (everything.predicted_peak(inputs) - before) * 6 // 10
    run = headroom.Sequential(model, budget)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        meter.reset_peak()
        nn.functional.cross_entropy(run(inputs), labels).backward()
        if step > 0:
            assert meter.peak_bytes() <= budget
        optimizer.step()


def test_the_smallest_budget_named_works() -> None:
    model, inputs = images()
    with pytest.raises(headroom.BudgetError) as error:
        headroom.Sequential(model, 1000)(inputs)
    headroom.Sequential(model, error.value.smallest_budget_bytes)(inputs).backward()


@pytest.mark.filterwarnings("ignore:headroom. .* over the budget in this step")
def test_plans_follow_the_memory_outside_both_ways() -> None:
    """One odd step is forgotten as well, and nothing is planned while nothing changes."""
    model, inputs = images()
    everything = headroom.Sequential(model)
    everything(inputs).backward()
    added = predicted_bytes(everything)
    del everything
    model.zero_grad()
    gc.collect()
    budget = headroom.current_bytes() + sum(4 * one.numel() for one in model.parameters()) + added + 5000
    run = headroom.Sequential(model, budget)
    meter = headroom._C.Meter(torch.device("cpu"))
    taken: list[int] = []
    others = [torch.zeros(added // 3, dtype=torch.uint8)]
    for number in range(12):
        model.zero_grad()
        if number == 2:
            others.clear()
        meter.reset_peak()
        loss = run(inputs)
        if number == 3:
            torch.zeros(added // 2, dtype=torch.uint8)
        loss.backward()
        assert meter.peak_bytes() <= budget or number == 3
        taken.append(predicted_bytes(run))
    assert taken[0] == taken[1] < added
    assert taken[2] == added > taken[4]
    assert taken[11] == added


def test_a_model_is_freed_with_what_was_planned_for_it() -> None:
    model, inputs = images()
    run = headroom.Sequential(model, "0.7x")
    for _ in range(2):
        run(inputs).backward()
    references = [weakref.ref(model), *map(weakref.ref, run._plans.values())]
    del run, model
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_shapes_and_modes_are_planned_on_their_own() -> None:
    model, inputs = images()
    model = model[:-1]
    reference = copy.deepcopy(model)
    run = headroom.Sequential(model, "0.6x")
    for batch in (inputs, inputs[:4], inputs):
        torch.manual_seed(1)
        run(batch).sum().backward()
        torch.manual_seed(1)
        reference(batch).sum().backward()
    assert len(run._plans) == 2
    assert all(
        torch.equal(left.grad, right.grad)
        for left, right in zip(model.parameters(), reference.parameters(), strict=True)
    )
    run.eval()
    reference.eval()
    assert torch.equal(run(inputs), reference(inputs))
    assert len(run._plans) == 3
    with torch.no_grad():
        assert torch.equal(run(inputs[:2]), reference(inputs[:2]))
    assert len(run._plans) == 3


def test_autocast_is_the_same_when_stages_run_again() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(8)])
    reference, inputs = copy.deepcopy(model), torch.randn(256, 16)
    for run in (headroom.Sequential(model, "0.6x"), reference):
        with torch.autocast("cpu", torch.bfloat16):
            result = run(inputs)
        assert result.dtype == torch.bfloat16
        result.float().sum().backward()
    for left, right in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="found Linear"):
        headroom.Sequential(nn.Linear(2, 2), "1x")
    lstm = headroom.Sequential(nn.Sequential(nn.LSTM(4, 4)), "1x")
    with pytest.raises(headroom.Unsupported, match="the last stage must return one tensor, found tuple"):
        lstm(torch.randn(2, 3, 4))
    with pytest.raises(headroom.Unsupported, match="takes one tensor, found list"):
        lstm([torch.randn(2, 3, 4)])
    run = headroom.Sequential(nn.Sequential(nn.Linear(4, 4)), "1x")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(torch.randn(2, 3))
    loss = run(torch.randn(2, 4)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once"):
        loss.backward()


def test_a_plan_is_tried_whose_result_is_no_scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the first plan of stages is tried before it runs; the loss is outside of the stages."""
    choose = sequential._Stages._choose
    monkeypatch.setattr(
        sequential._Stages, "_choose", lambda self, room, **given: choose(self, room, **given | {"tries": True})
    )
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)])
    x = torch.randn(256, 64)
    model(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    headroom.Sequential(model, "1x")(x).square().sum().backward()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), expected, strict=True))
