"""Measured costs on disk."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from headroom import costs  # noqa: E402

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


def test_what_moving_memory_takes_is_measured_once() -> None:
    first = costs.move_time_ns(1 << 20, costs.CostCache(CPU), CPU)
    assert first > 0
    again = costs.CostCache(CPU)
    assert len(again.costs) == 1
    assert costs.move_time_ns(1 << 20, again, CPU) == first
