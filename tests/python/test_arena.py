"""arena=True: a step's memory lies in one block, with the bits of plain training and within the budget."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from budgeted import Budgeted  # noqa: E402
from headroom.budget.flight import flights_on  # noqa: E402
from headroom.budget.place import Place  # noqa: E402
from headroom.exec.eager import compile_graph  # noqa: E402
from headroom.settings import Settings  # noqa: E402
from test_compile import expect_same, make  # noqa: E402
from training_models import CASES, loss_of, train  # noqa: E402

import headroom  # noqa: E402
from headroom import _C  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")

CPU = torch.device("cpu")


class InArena(Budgeted):
    """A compiled function whose steps run in arenas."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.steps = []

        def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable[..., object]:
            return compile_graph(gm, inputs, Settings("1x", arena=True), on_step=self.steps.append)

        self.run = torch.compile(function, backend=backend, dynamic=False)

    def set_budget(self, budget: object) -> None:
        for step in self.steps:
            step.settings = Settings(budget, arena=True)
            step.chosen.clear()

    def statistics(self) -> _C.ArenaStatistics:
        place = self.place()
        return place.step.chosen[place].arena.statistics()


def places() -> list[Place]:
    """Returns the places of all graphs, inner ones too."""
    found = list(flights_on(CPU).roots.values())
    for place in found:
        found.extend(place.inner.values())
    return found


def arenas() -> list[_C.Arena]:
    chosen = [chosen for place in places() for chosen in place.step.chosen.values()]
    return [one.arena for one in chosen if one.arena is not None]


@pytest.mark.parametrize("name", CASES)
def test_steps_in_arenas_have_the_bits_of_plain_training_and_take_what_is_predicted(name: str) -> None:
    model, inputs, labels = make(name)
    start = copy.deepcopy(model.state_dict())
    expected = train(model, loss_of(model), inputs, labels)
    # The counters of batch norms, which predictions count twice.
    counters = sum(buffer.nbytes for buffer in model.buffers() if buffer.dim() == 0)
    run = InArena(loss_of(model))

    def expect_kept(share: float) -> None:
        run.set_budget(f"{share:.9f}x")
        for is_recorded in (False, True):
            model.load_state_dict(start)
            model.zero_grad()
            actual = train(model, run, inputs, labels)
            expect_same(actual, expected)
            assert max(actual.peaks) <= share * run.place().store_all_bytes(), (share, is_recorded)
        assert 0 <= run.predicted_bytes() - max(actual.peaks) <= counters, share
        assert actual.peaks == 3 * actual.peaks[:1]
        statistics = run.statistics()
        assert 0 < statistics.block_bytes <= actual.peaks[0], share
        assert statistics.served > 0
        assert (statistics.missed, statistics.overtaken, statistics.recordings) == (0, 0, 2), share

    def smallest_share() -> float:
        return run.place().smallest_bytes() / run.place().store_all_bytes() + 1e-6

    run(inputs, labels).backward()
    expect_kept(1.0)
    if smallest_share() < 0.6:
        expect_kept(0.6)
    expect_kept(smallest_share())


def test_a_budget_in_bytes_is_kept() -> None:
    model, inputs, labels = make("resnet")
    with_arena = headroom.plan(loss_of(model), inputs, labels, arena=True)
    without = headroom.plan(loss_of(model), inputs, labels)
    assert without.smallest_budget < with_arena.smallest_budget
    assert without.peak < with_arena.peak
    with pytest.raises(headroom.BudgetError) as error:
        headroom.compile(loss_of(model), 1, arena=True)(inputs, labels)
    assert error.value.smallest_budget_bytes == with_arena.smallest_budget
    del error
    expected = train(model, loss_of(model), inputs, labels)
    for room in (10_000, 200_000):
        torch._dynamo.reset()
        model, inputs, labels = make("resnet")
        gc.collect()
        before = headroom.current_bytes()
        added = with_arena.smallest_budget - with_arena.before + room
        actual = train(model, headroom.compile(loss_of(model), before + added, arena=True), inputs, labels)
        expect_same(actual, expected)
        assert max(actual.peaks) <= added


def test_an_arena_that_turns_out_too_large_is_not_used() -> None:
    model, inputs, labels = make("resnet")
    start = copy.deepcopy(model.state_dict())
    expected = train(model, loss_of(model), inputs, labels)
    run = InArena(loss_of(model))
    run(inputs, labels).backward()
    place = run.place()
    model.zero_grad()
    model.load_state_dict(start)
    added = place.smallest_bytes()
    run.set_budget(headroom.current_bytes() + added)
    place.step.arena_excess_bytes += 1  # As if a recorded arena were one byte larger.
    with pytest.warns(UserWarning, match="without its arena"):
        actual = train(model, run, inputs, labels)
    expect_same(actual, expected)
    assert place.step.chosen[place].arena is None
    assert max(actual.peaks) <= added


def two_layers(*, arena: bool) -> tuple[torch.nn.Module, Callable[..., torch.Tensor]]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(8)])
    return model, headroom.compile(model, "0.8x", arena=arena)


def expect_as_without(steps: Callable[[torch.nn.Module, Callable[..., torch.Tensor]], None]) -> None:
    """Runs steps with and without arenas, and compares the gradients."""
    gradients = []
    for arena in (False, True):
        model, run = two_layers(arena=arena)
        steps(model, run)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(left, right) for left, right in zip(*gradients, strict=True))
    assert sum(one.statistics().served for one in arenas()) > 0


@pytest.mark.usefixtures("fresh_device")
def test_steps_in_flight_nest_and_cross() -> None:
    def nested(model: torch.nn.Module, run: Callable[..., torch.Tensor]) -> None:
        for step in range(6):
            first, second = run(torch.ones(256, 32)), run(torch.full((256, 32), 0.5))
            if step % 2:
                first, second = second, first
            second.square().sum().backward()
            first.sum().backward()

    expect_as_without(nested)


@pytest.mark.usefixtures("fresh_device")
def test_training_goes_on_after_exceptions() -> None:
    def fail(_: torch.Tensor) -> None:
        raise ValueError("stop")

    gradients = []
    for arena in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        table = torch.randn(16, 64, requires_grad=True)

        def looked_up(numbers: torch.Tensor, table: torch.Tensor = table) -> torch.Tensor:
            return torch.nn.functional.embedding(numbers, table.tanh().sin()).exp().tanh()

        run = headroom.compile(looked_up, "1x", arena=arena)
        for step in range(8):
            numbers = torch.arange(64) % 16
            if step in (1, 5):
                with pytest.raises(IndexError):
                    run(numbers + 1)
            elif step in (2, 6):
                result = run(numbers)
                result.register_hook(fail)
                with pytest.raises(ValueError, match="stop"):
                    result.sum().backward()
            else:
                run(numbers).sum().backward()
        gradients.append(table.grad)
    assert torch.equal(*gradients)
    assert sum(one.statistics().served for one in arenas()) > 0


@pytest.mark.usefixtures("fresh_device")
def test_sizes_change_and_results_are_kept() -> None:
    kept = []

    def changing(model: torch.nn.Module, run: Callable[..., torch.Tensor]) -> None:
        kept.clear()
        for step in range(9):
            result = run(torch.full((256 + 64 * (step % 3), 32), 0.1 * step))
            kept.append((result, result.tolist()))
            result.sum().backward()

    expect_as_without(changing)
    assert all(result.tolist() == numbers for result, numbers in kept)


@pytest.mark.usefixtures("fresh_device")
def test_threads_share_a_compiled_step() -> None:
    def threaded(model: torch.nn.Module, run: Callable[..., torch.Tensor]) -> None:
        run(torch.ones(256, 32)).sum().backward()
        results: dict[int, list[torch.Tensor]] = {}

        def work(number: int) -> None:
            for _ in range(20):
                x = torch.full((256, 32), float(number))
                results[number] = list(torch.autograd.grad(run(x).sum(), list(model.parameters())))

        threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(2):
            for parameter, gradient in zip(model.parameters(), results[number], strict=True):
                parameter.grad = parameter.grad + gradient

    expect_as_without(threaded)


def test_a_copy_of_a_compiled_model_trains() -> None:
    model, run = two_layers(arena=True)
    x = torch.ones(256, 32)
    for _ in range(3):
        run(x).sum().backward()
    other = copy.deepcopy(run)
    other.zero_grad()
    model.zero_grad()
    for _ in range(3):
        run(x).sum().backward()
        other(x).sum().backward()
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)


@pytest.mark.parametrize("budget", ["1x", "0.8x"])
def test_stages_run_in_arenas(budget: str) -> None:
    def trained(*, arena: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [
            torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2)) for _ in range(4)
        ]
        run = headroom.Sequential(torch.nn.Sequential(*layers), budget, arena=arena)
        torch.manual_seed(1)
        for _ in range(4):
            run(torch.ones(256, 32)).sum().backward()
        if arena:
            (stages,) = run._plans.values()
            (chosen,) = stages.chosen.values()
            statistics = chosen.arena.statistics()
            assert statistics.served > 0
            assert (statistics.missed, statistics.recordings) == (0, 2)
        return [parameter.grad for parameter in run.parameters()]

    for left, right in zip(trained(arena=False), trained(arena=True), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_compiled_steps_run_in_arenas(name: str) -> None:
    def trained(*, arena: bool) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model, inputs, labels = make(name)
        plans: list[headroom.planning.Planned] = []
        run = headroom.compile(loss_of(model), "0.7x", kernels="inductor", on_plan=plans.append, arena=arena)
        meter = headroom.Meter(CPU)
        for step in range(3):
            torch.manual_seed(7)
            model.zero_grad()
            before = meter.current_bytes()
            meter.reset_peak()
            run(inputs, labels).backward()
            added = meter.peak_bytes() - before
            assert added <= plans[-1].budget_bytes
            assert step == 0 or added == plans[-1].measured_bytes
        if arena:
            step = list(flights_on(CPU).roots)[-1]
            (chosen,) = step.chosen.values()
            statistics = chosen.candidate.arena.statistics()
            assert statistics.served > 0
            assert (statistics.missed, statistics.recordings) == (0, 2)
        return [parameter.grad for parameter in model.parameters()]

    for left, right in zip(trained(arena=False), trained(arena=True), strict=True):
        assert torch.equal(left, right)


def test_bad_options() -> None:
    with pytest.raises(TypeError, match="arena must be True or False"):
        headroom.compile(torch.nn.Linear(2, 2), arena=1)


class Cut(torch.nn.Module):
    """Two graphs, of which the second one runs between the forward and the backward of the first one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(8)]
        self.first, self.second = torch.nn.Sequential(*layers[:4]), torch.nn.Sequential(*layers[4:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.first(x)
        torch._dynamo.graph_break()
        return self.second(middle)


@pytest.mark.usefixtures("fresh_device")
@pytest.mark.parametrize("share", [1.0, 0.95])
def test_graphs_in_flight_and_a_loss_outside_share_a_budget(share: float) -> None:
    """Of the memory outside a graph, the first step does not know yet."""
    x = torch.ones(1024, 32)
    model = Cut()

    def step(run: Callable[..., torch.Tensor]) -> int:
        model.zero_grad()
        meter = headroom.Meter(CPU)
        before = meter.current_bytes()
        run(x).square().mean().backward()
        return meter.peak_bytes() - before

    step(model)
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    run = headroom.compile(model, arena=True)
    most = max(step(run) for _ in range(6))
    assert [place.store_all_bytes() for place in flights_on(CPU).roots.values()] == [most]
    torch._dynamo.reset()
    model.zero_grad()
    budget = headroom.current_bytes() + int(share * most)
    run = headroom.compile(model, budget, arena=True)
    peaks = [step(run) for _ in range(8)]
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert max(peaks[1:]) <= int(share * most), peaks
    statistics = [arena.statistics() for arena in arenas()]
    assert len([one for one in statistics if one.served > 0]) >= 2
    assert sum(one.missed for one in statistics) == 0
