"""Plans adapt to more and to less memory in use on the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from budgeted import places  # noqa: E402
from headroom.budget import flight  # noqa: E402
from headroom.budget import place as place_module  # noqa: E402
from torch import nn  # noqa: E402

from headroom import planning  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "fixed_costs", "fresh_device")

CPU = torch.device("cpu")


class Trained:
    """A model in a budget, with the predicted memory of its plans and the peaks of its steps."""

    def __init__(self, budget: Callable[[headroom.MemoryPlan], int]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.GELU())])
        self.x = torch.randn(256, 32)
        self.plain = headroom.plan(self.run, self.x, cache=False)
        self.budget = budget(self.plain)
        self.slowdowns: list[float] = []
        self.compiled = headroom.compile(self.run, self.budget, cache=False, on_plan=self.note)
        self.meter = headroom.Meter(CPU)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()

    def note(self, planned: planning.Planned) -> None:
        self.slowdowns.append(planned.time_ns / planned.plain_time_ns)

    def step(self) -> int:
        self.model.zero_grad(set_to_none=True)
        self.meter.reset_peak()
        self.compiled(self.x).backward()
        return self.meter.peak_bytes()


def test_plans_loosen_where_memory_is_freed() -> None:
    trained = Trained(lambda plan: plan.plain_peak + 1000)
    half = (trained.plain.plain_peak - trained.plain.smallest_budget) // 2
    others = [torch.zeros(half // 4)]
    assert trained.step() <= trained.budget
    assert trained.slowdowns[-1] > 1
    others.clear()
    assert trained.step() <= trained.budget
    assert trained.slowdowns[-1] == 1
    count = len(trained.slowdowns)
    for _ in range(3):
        trained.step()
    assert len(trained.slowdowns) == count  # Nothing has changed, so nothing is planned.
    others.append(torch.zeros(half // 4))
    assert trained.step() <= trained.budget
    assert trained.slowdowns[-1] > 1


def test_small_changes_plan_nothing_anew() -> None:
    trained = Trained(lambda plan: (plan.plain_peak + plan.smallest_budget) // 2)
    kept = [torch.zeros(256)]
    trained.step()
    count = len(trained.slowdowns)
    assert trained.slowdowns[-1] > 1
    kept.clear()
    for _ in range(3):
        trained.step()
    assert len(trained.slowdowns) == count


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_one_odd_step_is_forgotten(odd: int) -> None:
    """A large tensor is live between forward and backward in one of the first steps."""
    trained = Trained(lambda plan: plan.plain_peak + 1000)
    for number in range(12):
        trained.model.zero_grad(set_to_none=True)
        loss = trained.compiled(trained.x)
        if number == odd:
            kept = torch.zeros((trained.plain.plain_peak - trained.plain.smallest_budget) // 8)
            del kept
        loss.backward()
    assert trained.slowdowns[-1] == 1
    assert trained.step() <= trained.budget


def test_a_second_forward_in_flight_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_module, "_REMEMBERED_STEPS", 5)
    trained = Trained(lambda plan: plan.plain_peak + (plan.plain_peak - plan.before) // 2)
    first, second = trained.compiled(trained.x), trained.compiled(trained.x)
    (first + second).backward()
    del first, second
    trained.step()
    assert trained.slowdowns[-1] > 1
    for _ in range(8):
        trained.step()
    assert trained.slowdowns[-1] == 1


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_forward_without_backward_is_measured_a_few_times_only(
    recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement resets the device's peak, which users read."""
    trained = Trained(lambda plan: plan.smallest_budget + 1000 if recomputes else plan.plain_peak + 1000)
    resets = []
    device = flight.flights_on(CPU)

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(meter, name)

        def reset_peak(self) -> None:
            resets.append(1)
            meter.reset_peak()

    meter = device.meter
    monkeypatch.setattr(device, "meter", Counting())
    for _ in range(90):
        trained.compiled(trained.x)
    assert 0 < len(resets) <= 2 * place_module._MOST_LEARNING_STEPS


def test_caches_of_plans_are_bounded() -> None:
    trained = Trained(lambda plan: plan.plain_peak + 1000)
    trained.step()
    (place,) = [root for root in flight.flights_on(CPU).roots.values() if root.step.chosen]
    step = place.step
    smallest = step.shape(place.rest(0)).smallest_bytes()
    for number in range(100):
        step.plan(smallest + number, place.rest(0), 0)
        step.shape(place.rest(0)._replace(peak_bytes=10**6 + number))
    assert len(step.plans) <= planning._MOST_KEPT
    assert len(step.shapes) <= planning._MOST_KEPT
    assert trained.step() <= trained.budget


def test_inputs_that_are_freed_after_forward_count_as_live() -> None:
    """A plan that recomputes values from the mask keeps the mask. One that stores everything does not."""
    layer = nn.Linear(16, 16)
    x = torch.randn(64, 16)
    run = headroom.compile(lambda x, mask: (layer(x) * mask.float()).square().sum(), cache=False)
    loss = run(x, torch.rand(64, 16) > 0.5)
    kept = torch.zeros(1000)
    loss.backward()
    (place,) = places()
    assert place.own_rest.left_bytes == kept.nbytes


def test_a_forward_without_a_backward_does_not_hide_what_comes_after_it() -> None:
    """The loss outside counts as the rest of the step, even if another forward has run and was dropped before it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(256, 32)
    run = headroom.compile(model, "1x", cache=False)
    for _ in range(2):
        y = run(x)
        run(x.clone())
        (y.exp() * y.sin()).sum().backward()
        del y
    (place,) = places()
    size = 256 * 32 * 4
    # Saved for the loss's backward are exp(y) and sin(y); backward makes gradients of both, and of y.
    assert place.own_rest.peak_bytes >= 4 * size


def test_memory_that_is_freed_between_two_forwards_leaves_nothing_negative() -> None:
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(4, 32)
    run = headroom.compile(lambda x: model(x).sum(), "1x", cache=False)
    for _ in range(2):
        outer, inner = run(x), run(x)
        outer.backward()  # Before the backward of the graph that was entered later.
        inner.backward()
    (place,) = places()
    (inner_place,) = place.inner.values()
    inner_place.gaps.extend([-(1 << 20)] * 3)
    place_module.Place.learned += 1
    assert place.crossed_at is not None
    assert place.rest(1).left_bytes == 0


def test_what_a_step_adds_is_known_after_the_first_where_memory_is_freed_between_graphs() -> None:
    first, second = nn.Linear(32, 32), nn.Linear(32, 32)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = first(x).sin()
        mean = x.exp().mean(1)  # Its input and its result are freed before the second graph is entered.
        torch._dynamo.graph_break()
        del mean
        torch._dynamo.graph_break()
        return second(y.sin()).square().mean()

    run, x = headroom.compile(function, "1x", cache=False), torch.randn(256, 32, requires_grad=True)
    stored = []
    for _ in range(5):
        x.grad = None
        run(x).backward()
        stored.append(places()[0].store_all_bytes())
    assert len(set(stored[1:])) == 1
    assert min(gap for place in places() for inner in place.inner.values() for gap in inner.gaps) < 0
