"""Measured costs, and those on disk."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

import headroom  # noqa: E402
from headroom import aot, costs  # noqa: E402

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("alone")


def test_what_others_saved_meanwhile_stays_and_holds() -> None:
    one, other = costs.CostCache(CPU), costs.CostCache(CPU)
    one.costs |= {"first": (1, 0), "both": (2, 0)}
    other.costs |= {"second": (3, 0), "both": (4, 0)}
    one.is_changed = other.is_changed = True
    one.save()
    other.save()
    assert other.costs == costs.CostCache(CPU).costs == {"first": (1, 0), "second": (3, 0), "both": (2, 0)}


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
