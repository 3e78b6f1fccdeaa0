"""Measured costs, and those on disk."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

import headroom  # noqa: E402
from headroom import aot, costs  # noqa: E402

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("alone")


def test_what_others_saved_meanwhile_stays_and_holds() -> None:
    one, other = costs.CostCache(CPU), costs.CostCache(CPU)
    costs_of = {time_ns: costs.Cost(time_ns, 0) for time_ns in range(1, 5)}
    one.costs |= {"first": costs_of[1], "both": costs_of[2]}
    other.costs |= {"second": costs_of[3], "both": costs_of[4]}
    one.is_changed = other.is_changed = True
    one.save()
    other.save()
    expected = {"first": costs_of[1], "second": costs_of[3], "both": costs_of[2]}
    assert other.costs == costs.CostCache(CPU).costs == expected


@pytest.mark.parametrize("time_ns", [costs.move_time_ns, costs.draw_time_ns])
def test_what_moving_memory_and_drawing_take_is_measured_once(
    time_ns: Callable[[int, costs.CostCache, torch.device], int],
) -> None:
    state = torch.get_rng_state()
    first = time_ns(1 << 20, costs.CostCache(CPU), CPU)
    assert first > 0
    again = costs.CostCache(CPU)
    assert len(again.costs) == 1
    assert time_ns(1 << 20, again, CPU) == first
    assert torch.equal(torch.get_rng_state(), state)


def test_what_a_library_takes_to_set_up_is_no_cost_of_the_first_call() -> None:
    calls: list[int] = []

    @torch.library.custom_op("headroom_tests::sets_up", mutates_args=())
    def sets_up(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        time.sleep(0.3 if len(calls) == 1 else 0.001)
        return x * 2

    sets_up.register_fake(torch.empty_like)
    sets_up.register_autograd(lambda _, gradient: gradient * 2)
    batch = torch.randn(8, requires_grad=True)
    plan = headroom.plan(lambda: sets_up(batch).sum(), cache=False)
    assert 1e6 <= plan.plain_time_ns < 1e8


def test_costs_on_disk_are_those_of_the_arithmetic_that_is_chosen() -> None:
    aot.cache_of.cache_clear()
    layer = torch.nn.Linear(4, 4)
    batch = torch.randn(2, 4)
    headroom.plan(layer, batch, cache=False)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        headroom.plan(layer, batch)
    assert costs.CostCache(CPU).costs == {}
    headroom.plan(layer, batch)
    usual = set(costs.CostCache(CPU).costs)
    headroom.plan(layer, batch)
    assert set(costs.CostCache(CPU).costs) == usual
    torch.use_deterministic_algorithms(True)
    try:
        headroom.plan(layer, batch)
    finally:
        torch.use_deterministic_algorithms(False)
    with_both = set(costs.CostCache(CPU).costs)
    assert len(with_both) == 2 * len(usual) > 0
    assert usual < with_both


def test_layouts_are_kept_on_disk() -> None:
    cache = costs.CostCache(CPU)
    cost = costs.Cost(5, 6, [None, costs.Layout([1, 2], 64)])
    cache.costs["one"] = cost
    cache.is_changed = True
    cache.save()
    assert costs.CostCache(CPU).costs == {"one": cost}


def test_a_failed_measurement_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> costs.Cost:
        raise torch.OutOfMemoryError("tried to allocate 2 MiB")

    aot.cache_of.cache_clear()
    layer, batch = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with monkeypatch.context() as changed:
        changed.setattr(costs, "_measure", fail)
        estimated = headroom.plan(layer, batch)
    assert estimated.plain_time_ns > 0
    assert costs.CostCache(CPU).costs == {}
    headroom.plan(layer, batch)
    assert len(costs.CostCache(CPU).costs) > 0


def test_costs_follow_the_number_of_threads() -> None:
    aot.cache_of.cache_clear()
    layer, batch = torch.nn.Linear(4, 4), torch.randn(2, 4)
    headroom.plan(layer, batch)
    one_thread = costs.cache_file(CPU)
    assert one_thread.exists()
    torch.set_num_threads(2)
    try:
        assert not costs.cache_file(CPU).exists()
        headroom.plan(layer, batch)
        assert costs.cache_file(CPU).exists()
        assert costs.cache_file(CPU) != one_thread
    finally:
        torch.set_num_threads(1)


def test_processes_that_save_at_once_lose_nothing() -> None:
    script = (
        "import sys, torch, headroom; from headroom import costs; torch.set_num_threads(1)\n"
        "for i in range(20):\n"
        "    cache = costs.CostCache(torch.device('cpu')); cache.costs = {f'{sys.argv[1]} {i}': costs.Cost(i, 0)}\n"
        "    cache.is_changed = True; cache.save()\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(name)]) for name in range(3)]
    assert [one.wait() for one in running] == [0, 0, 0]
    assert len(costs.CostCache(CPU).costs) == 60


def test_indices_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    real = costs._real

    def noting(value: torch.Tensor, call: Any) -> torch.Tensor:
        made.append(real(value, call))
        return made[-1]

    monkeypatch.setattr(costs, "_real", noting)
    table, indices = torch.nn.Embedding(50, 4), torch.randint(0, 50, (200,))
    headroom.plan(lambda: table(indices).square().sum(), cache=False)
    found = [one for one in made if one.dtype == torch.int64 and one.numel() == 200]
    assert len(found) == 2  # of the embedding and of its backward
    assert all(one.unique().numel() > 40 and one.max() < 50 for one in found)


def test_real_layouts_of_gradients_are_counted() -> None:
    """Tracing takes gradients of weights for contiguous; beside images that are channels last they are not."""
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    images = torch.randn(1, 64, 4, 4).to(memory_format=torch.channels_last)
    plan = headroom.plan(lambda: layer(images).square().sum(), cache=False)
    meter = headroom.Meter(CPU)
    run = headroom.compile(lambda: layer(images).square().sum(), plan.smallest_budget, cache=False)
    for _ in range(2):
        layer.zero_grad(set_to_none=True)
        meter.reset_peak()
        run().backward()
        assert meter.peak_bytes() <= plan.smallest_budget
