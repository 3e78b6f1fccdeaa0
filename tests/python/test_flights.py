"""How steps in flight share a budget and are measured, whatever runs them: here, steps that only allocate memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

from headroom.budget import place  # noqa: E402
from headroom.budget.errors import BudgetError  # noqa: E402
from headroom.budget.flight import flights_on  # noqa: E402
from headroom.budget.place import Patience, Place, Room  # noqa: E402
from headroom.graph.step_graph import Rest  # noqa: E402
from headroom.settings import Settings  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone", "fresh_device")

CPU = torch.device("cpu")
KIB = 1024


class _Allocating(torch.autograd.Function):
    """Takes some memory in forward and backward, and holds some in between. Its result is a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, held: int, temporary: int) -> torch.Tensor:
        torch.empty(temporary, dtype=torch.uint8)
        ctx.held, ctx.temporary = torch.empty(held, dtype=torch.uint8), temporary
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        torch.empty(ctx.temporary, dtype=torch.uint8)
        ctx.held = None
        return gradient.expand(4), None, None


@dataclass(eq=False)
class _Chosen(place.Chosen):
    held: int

    def recomputes(self) -> bool:
        return self.held < Fake.MOST


class Fake:
    """A step that may hold any number of bytes, up to MOST."""

    MOST = 64 * KIB
    LEAST = 8 * KIB
    assumed_rest = Rest()
    is_tried = True
    shares_together = True
    device = CPU

    def __init__(self, settings: Settings, *, temporary: int = 16 * KIB, is_measured: bool = True) -> None:
        self.settings = settings
        self.patience = Patience(free_share=0.02)
        self.temporary = temporary
        self.is_measured = is_measured
        self.chosen: weakref.WeakKeyDictionary[Place, _Chosen] = weakref.WeakKeyDictionary()
        self.plans: list[int] = []
        self.x = torch.ones(4, requires_grad=True)

    def run(self) -> torch.Tensor:
        device = flights_on(CPU)
        with device.forward(self, [self.x]) as flight:
            result = _Allocating.apply(self.x, flight.chosen.held, self.temporary)
            device.follow(flight, result.grad_fn)
        return result

    def place(self) -> Place:
        return flights_on(CPU).roots[self]

    def _peak(self, held: int, rest: Rest) -> int:
        return held + max(self.temporary + KIB, rest.peak_bytes, rest.left_bytes + self.temporary)

    def smallest_bytes(self, rest: Rest) -> int:
        return self._peak(self.LEAST, rest)

    def store_all_bytes(self, rest: Rest) -> int:
        return self._peak(self.MOST, rest)

    def held_bytes(self, _: Rest) -> int:
        return self.MOST

    def added_bytes(self, chosen: _Chosen, rest: Rest) -> int:
        return self._peak(chosen.held, rest)

    def halves_bytes(self, chosen: _Chosen, rest: Rest) -> tuple[int, int]:
        added = self._peak(chosen.held, Rest())
        return added, added + rest.left_bytes

    def choose(self, room: Room, _: Sequence[Any]) -> _Chosen:
        planned = room.planned_bytes()
        held = self.MOST if planned is None else min(planned - self._peak(KIB, room.rest), self.MOST)
        if held < self.LEAST:
            raise BudgetError("too small", room.before_bytes + self.smallest_bytes(room.rest))
        return self._choose(held, room)

    def choose_smallest(self, room: Room, _: Sequence[Any]) -> _Chosen:
        return self._choose(self.LEAST, room)

    def _choose(self, held: int, room: Room) -> _Chosen:
        self.plans.append(held)
        added = self._peak(held, room.rest)
        return _Chosen(held, rest=room.rest, added_bytes=added, is_measured=self.is_measured)

    def planned(self, *_: object) -> None:
        return None


def within(added_bytes: int) -> Settings:
    return Settings(headroom.current_bytes() + added_bytes)


def test_another_model_of_the_same_thread_is_in_the_rest_of_the_step() -> None:
    first, second = Fake(Settings(1 << 30)), Fake(Settings(1 << 30), temporary=256 * KIB)
    for _ in range(2):
        (first.run() * 1 + second.run()).backward()
    assert first.place().own_rest.peak_bytes >= second.temporary + second.MOST
    assert not first.place().inner
    assert len(first.place().rests) == len(second.place().rests) == 2


def test_a_graph_of_the_same_model_is_known_by_its_plans() -> None:
    settings = Settings(1 << 30)
    outer, inner = Fake(settings), Fake(settings, temporary=256 * KIB)
    for _ in range(2):
        (outer.run() + inner.run()).backward()
    (behind,) = outer.place().inner.values()
    assert behind.step is inner
    assert outer.place().own_rest.peak_bytes < 4 * KIB
    assert outer.place().rest(1).peak_bytes >= inner.store_all_bytes(Rest())


def test_a_step_that_is_not_measured_is_in_no_rest() -> None:
    settings = Settings(1 << 30)
    outer, inner = Fake(settings), Fake(settings, temporary=256 * KIB, is_measured=False)
    for _ in range(2):
        loss = outer.run() + inner.run()
        torch.empty(5 * KIB, dtype=torch.uint8)
        loss.backward()
    (behind,) = outer.place().inner.values()
    assert not any(rest.peak_bytes > 128 * KIB for rest in behind.rests)
    assert outer.place().own_rest.peak_bytes < 128 * KIB


def test_graphs_lose_the_same_share() -> None:
    settings = within(84 * KIB)
    outer, inner = Fake(settings), Fake(settings)
    meter = headroom.Meter(CPU)
    with pytest.warns(UserWarning, match="over the budget in this step"):
        (outer.run() + inner.run()).backward()
    assert outer.plans == [Fake.MOST]
    for _ in range(3):
        meter.reset_peak()
        (outer.run() + inner.run()).backward()
        assert meter.peak_bytes() <= settings.budget
    assert Fake.LEAST < outer.plans[-1] < Fake.MOST
    assert Fake.LEAST < inner.plans[-1] < Fake.MOST
    # 84 KiB are 51 KiB more than the smallest plans take (8 + 8 + 17), and each of the two may take 56 KiB more.
    assert abs(outer.plans[-1] - inner.plans[-1]) < 4 * KIB


def test_plans_follow_the_memory_outside_both_ways() -> None:
    step = Fake(within(96 * KIB))
    other = [torch.empty(40 * KIB, dtype=torch.uint8)]
    for _ in range(3):
        step.run().backward()
    assert len(step.plans) == 1
    other.clear()
    step.run().backward()
    assert step.plans[1:] == [Fake.MOST]
    other.append(torch.empty(40 * KIB, dtype=torch.uint8))
    step.run().backward()
    assert len(step.plans) == 3
    assert step.plans[2] < Fake.MOST


def test_plans_that_cost_much_are_made_a_few_times() -> None:
    step = Fake(within(96 * KIB))
    step.patience = Patience(free_share=0.02, steps=2, plans=1)
    other = [torch.empty(40 * KIB, dtype=torch.uint8)]
    step.run().backward()
    other.clear()
    step.run().backward()
    assert len(step.plans) == 1
    step.run().backward()
    assert len(step.plans) == 2
    for _ in range(2):
        other.append(torch.empty(40 * KIB, dtype=torch.uint8))
        step.run().backward()
        other.clear()
        for _ in range(3):
            step.run().backward()
    assert len(step.plans) == 3  # The smaller plan of before is kept.


def test_an_odd_step_is_forgotten() -> None:
    step = Fake(Settings(1 << 30))
    for number in range(6):
        result = step.run()
        if number == 0:
            torch.empty(512 * KIB, dtype=torch.uint8)
        result.backward()
        assert (step.place().own_rest.peak_bytes > 500 * KIB) == (number < 3)


def test_a_backward_that_fails_is_not_measured() -> None:
    step = Fake(Settings(1 << 30))
    step.run().backward()
    assert list(step.place().excess.measured_bytes) == [0, 0]

    def fail(_: torch.Tensor) -> None:
        raise ArithmeticError("in mid-step")

    handle = step.x.register_hook(fail)
    with pytest.raises(ArithmeticError):
        step.run().backward()
    handle.remove()
    torch.empty(512 * KIB, dtype=torch.uint8)
    step.run().backward()
    assert list(step.place().excess.measured_bytes) == [0, 0]


def test_a_forward_that_fails_leaves_nothing_in_flight() -> None:
    step = Fake(Settings(1 << 30))
    with pytest.raises(ArithmeticError), flights_on(CPU).forward(step, []):
        raise ArithmeticError("in mid-step")
    assert not any(stack.flights() for stack in flights_on(CPU).stacks.values())
    step.run().backward()
    assert len(step.place().rests) == 1


def test_a_step_beside_which_another_thread_has_trained_teaches_nothing() -> None:
    step, other = Fake(Settings(1 << 30)), Fake(Settings(1 << 30))
    result = step.run()
    thread = threading.Thread(target=lambda: other.run().backward())
    thread.start()
    thread.join()
    result.backward()
    assert not step.place().rests
    assert not other.place().rests
    step.run().backward()
    assert len(step.place().rests) == 1


def test_a_device_keeps_no_step() -> None:
    settings = Settings(1 << 30)
    outer, inner = Fake(settings), Fake(settings)
    for first, second in ((outer, inner), (inner, outer)):
        (first.run() + second.run()).backward()
    references = [weakref.ref(outer), weakref.ref(inner)]
    del outer, inner, first, second
    gc.collect()
    assert [reference() for reference in references] == [None, None]
