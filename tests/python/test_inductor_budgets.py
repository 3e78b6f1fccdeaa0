"""kernels="inductor": a budget in bytes is kept in every step of training, or refused with one that can be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.costs import op_costs  # noqa: E402
from inductor_steps import WIDTH, Net, batch, same_costs  # noqa: E402, F401
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "same_costs")

CPU = torch.device("cpu")


def inside(model: nn.Module) -> Callable[..., torch.Tensor]:
    """The loss has a number that tracing turns into a tensor."""
    return lambda x: (model(x) * 0.3).square().mean()


def outside(model: nn.Module) -> Callable[..., torch.Tensor]:
    return model


class Training:
    """A model that trains within a budget, the peaks of its steps, and those of trials before them."""

    def __init__(self, model: nn.Module, function: Callable[..., torch.Tensor], budget: int | str) -> None:
        self.model = model
        self.plans: list[headroom.planning.Planned] = []
        options = {"budget": budget, "kernels": "inductor", "on_plan": self.note}
        self.run = torch.compile(function, backend=headroom.api.backend, options=options, dynamic=False)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.meter = headroom.Meter(CPU)
        self.peaks: list[int] = []
        self.trial_peaks: list[int] = []

    def note(self, plan: headroom.planning.Planned) -> None:
        self.trial_peaks.append(self.meter.peak_bytes())
        self.meter.reset_peak()
        self.plans.append(plan)

    def step(self, *, set_to_none: bool = True, micro_batches: int = 1) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)
        for seed in range(micro_batches):
            x = batch(seed)
            self.meter.reset_peak()
            result = self.run(x)
            (result if result.dim() == 0 else result.square().mean()).backward()
            del result
            self.peaks.append(self.meter.peak_bytes())
        self.optimizer.step()


def state_bytes(model: nn.Module) -> int:
    """Returns the bytes of AdamW's state: two moments and a count for each parameter."""
    return sum(2 * parameter.nbytes + 4 for parameter in model.parameters())


def own_bytes(function: Callable[..., torch.Tensor], x: torch.Tensor | None = None) -> int:
    """Returns the memory that a step by PyTorch's own partition adds."""
    torch._dynamo.reset()
    plans: list[headroom.planning.Planned] = []
    headroom.compile(function, "10x", kernels="inductor", on_plan=plans.append)(batch() if x is None else x)
    assert plans[-1].time_ns <= plans[-1].plain_time_ns
    return plans[-1].measured_bytes


@pytest.mark.parametrize("make", [inside, outside])
@pytest.mark.parametrize("room", [0.8, 1.1], ids=["recomputes", "recomputes when the optimizer has state"])
def test_no_step_is_over_the_budget(make: Callable[..., Any], room: float) -> None:
    model = Net()
    own = own_bytes(make(model))
    torch._dynamo.reset()
    # Weights and gradients of an earlier step, and all of the optimizer's state in the first case.
    spare = sum(parameter.nbytes for parameter in model.parameters()) + (state_bytes(model) if room < 1 else 0)
    budget = headroom.current_bytes() + batch().nbytes + int(room * own) + spare
    training = Training(model, make(model), budget)
    for _ in range(3):
        training.step()
    for _ in range(2):
        training.step(set_to_none=False)
    for _ in range(2):
        training.step(micro_batches=2)
    first = 0 if make is inside else 1
    assert max(training.peaks[first:]) <= budget, [peak - budget for peak in training.peaks]
    assert training.plans[-1].time_ns > training.plans[-1].plain_time_ns
    assert sum(plan.compilations for plan in training.plans) <= 6
    assert max(training.trial_peaks[1:]) <= budget, [peak - budget for peak in training.trial_peaks]


def named_budget(model: nn.Module, function: Callable[..., torch.Tensor], x: torch.Tensor) -> int:
    """Returns the smallest budget that an error names."""
    try:
        Training(model, function, 1).run(x)
    except headroom.BudgetError as error:
        return error.smallest_budget_bytes  # The error itself keeps tensors in its traceback.
    raise AssertionError("one byte is enough")


@pytest.mark.parametrize("make", [inside, outside])
def test_the_budget_that_an_error_names_works(make: Callable[..., Any]) -> None:
    model, x = Net(), batch()
    for _ in range(2):  # asked twice
        torch._dynamo.reset()
        smallest = named_budget(model, make(model), x)
        torch._dynamo.reset()
        training = Training(model, make(model), smallest)
        for _ in range(3):
            model.zero_grad()
            training.meter.reset_peak()
            result = training.run(x)
            (result if result.dim() == 0 else result.square().mean()).backward()
            del result
            assert training.meter.peak_bytes() <= smallest
        model.zero_grad()


class TwoGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Net(3), Net(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.first(x)
        torch._dynamo.graph_break()
        return self.second(middle).square().mean()


@pytest.mark.filterwarnings("ignore:headroom. over the budget in this step")
def test_graphs_of_one_model_keep_a_budget_when_the_optimizer_has_state() -> None:
    model, x = TwoGraphs(), batch()
    meter = headroom.Meter(CPU)
    before = meter.current_bytes()
    meter.reset_peak()
    model(x).backward()
    plain = meter.peak_bytes() - before
    model.zero_grad()
    torch._dynamo.reset()
    # In the first step both graphs store everything, and later there is no room for that.
    budget = before + int(0.75 * plain) + state_bytes(model)
    training = Training(model, model, budget)
    for _ in range(6):
        training.step()
    assert max(training.peaks[1:]) <= budget, [peak - budget for peak in training.peaks]
    assert max(training.trial_peaks[2:]) <= budget, [peak - budget for peak in training.trial_peaks]
    # A step that takes no gradient, and a result that is kept over a step, change no plan.
    count = len(training.plans)
    with torch.no_grad():
        training.run(x)
    training.optimizer.zero_grad()
    kept = training.run(batch())
    kept.backward()
    training.step()
    assert training.peaks[-1] <= budget
    assert len(training.plans) == count


def test_a_model_may_be_compiled_for_two_budgets() -> None:
    model = Net()
    own = own_bytes(inside(model))
    torch._dynamo.reset()
    x = batch()
    trainings = []
    for room in (1.5, 0.85):
        budget = headroom.current_bytes() + int(room * own)
        trainings.append((Training(model, inside(model), budget), budget))
    for _ in range(2):
        for training, budget in trainings:
            model.zero_grad()
            training.meter.reset_peak()
            training.run(x).backward()
            assert training.meter.peak_bytes() <= budget
    first, second = (training.plans[-1] for training, _ in trainings)
    assert first.measured_bytes == own
    assert second.time_ns > second.plain_time_ns


def test_pytorch_s_own_partition_is_taken_wherever_it_fits() -> None:
    cell = nn.GRUCell(WIDTH, WIDTH)

    def unrolled(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x) // 6, WIDTH)
        for part in x.chunk(6):
            state = cell(part, state)
        return state.square().mean()

    x = torch.randn(6 * 32, WIDTH)
    own = own_bytes(unrolled, x)
    torch._dynamo.reset()
    plans: list[headroom.planning.Planned] = []
    headroom.compile(unrolled, "1x", kernels="inductor", on_plan=plans.append)(x)
    # It recomputes inside kernels that run anyway, and so takes less than storing everything.
    share = (own + 100) / plans[-1].budget_bytes
    assert share < 1
    torch._dynamo.reset()
    headroom.compile(unrolled, f"{share:.6f}x", kernels="inductor", on_plan=plans.append)(x)
    for plan in plans:
        assert plan.measured_bytes == own
        assert plan.time_ns == plan.plain_time_ns


@pytest.mark.parametrize("measure", [op_costs.move_time_ns, op_costs.draw_time_ns])
def test_measurements_take_no_more_memory_than_the_step(
    measure: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # Removes the fixed costs.
    meter = headroom.Meter(CPU)
    before = meter.current_bytes()
    for largest in (1000, 100_000, 3_000_000):
        cache = op_costs.CostCache(CPU, persistent=False)
        meter.reset_peak()
        assert measure(largest, cache, CPU, largest) > 0
        rng_state = 5056
        assert meter.peak_bytes() - before <= max(2 * largest, 1 << 15) + 2 * rng_state
