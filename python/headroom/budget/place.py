"""What is learned of a graph at one place in a step, and the choice of what runs there.

Between a graph's forward and its backward, other work runs on the device: other graphs of the model, further forwards,
a loss outside the graph. In a plan all of that is one op, the rest of the step (step_graph.Rest). Its memory is
measured in the first steps, until three in a row agree, and occasionally later. Graphs that run in the rest are known
by their own plans, and are forgotten if they have not run for a while. If there is more memory than the smallest plans
need, each graph gets the same share of the distance from its smallest plan to store-all.

Measured steps also show by how much real peaks exceed predicted ones (excess.Excess). Later plans leave that free.

All of this is independent of what runs the graph: operators, Inductor's kernels or the stages of a Sequential. Each of
these is a Step, which plans within a number of bytes.
"""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch

from headroom import _C
from headroom.budget.errors import BudgetError
from headroom.budget.excess import Excess
from headroom.graph.step_graph import Rest

if TYPE_CHECKING:
    from headroom.planning import Planned
    from headroom.settings import Settings

# Number of consecutive steps that must agree about the rest of the step.
_LEARNING_STEPS = 3
# Maximum number of steps in which the rest is measured. Each measurement resets the device's only peak counter.
_MOST_LEARNING_STEPS = 10
# Largest relative difference between measurements that agree.
_AGREEMENT = 0.02
# Number of steps without a graph after which it is forgotten, and after which the rest of a step that recomputes is
# measured again.
_REMEMBERED_STEPS = 32
# Number of first steps of a new plan in which its peak is measured.
_MEASURED_STEPS = 2
# Resolution of fair shares: a share is rounded down to a multiple of 1 / _SHARE_STEPS.
_SHARE_STEPS = 64


Answer = TypeVar("Answer")
_NO_EXCESS = Excess(torch.device("cpu"))


class Room(NamedTuple):
    """The memory for a step that begins."""

    before_bytes: int  # Bytes in use on the device before it.
    limit_bytes: int | None  # Limit of the bytes in use on the device during the step; None: no limit.
    rest: Rest  # Rest of the step, in which the graphs in it have a fair share of the memory.
    smallest_rest: Rest  # Rest of the step, in which the graphs in it run their smallest plans.
    excess: Excess  # Excess that a plan leaves free.

    def available_bytes(self) -> int | None:
        """Returns the bytes that the step may really add; None: no limit."""
        return None if self.limit_bytes is None else self.limit_bytes - self.before_bytes

    def planned_bytes(self) -> int | None:
        """Returns the bytes that the step may be planned to add; None: no limit."""
        available = self.available_bytes()
        return None if available is None else self.excess.subtract(available)


@dataclass(eq=False, kw_only=True)
class Chosen:
    """What runs at a place."""

    rest: Rest  # Rest of the step that it was last compared with.
    added_bytes: int | None  # Bytes that it is predicted to add beside that rest; None: it cannot run beside it.
    free_bytes: int = 0  # Bytes that it was planned to add, beyond the peak of its rest.
    steps: int = 0  # Steps that have run it.
    is_measured: bool = True  # Whether its steps may be measured.
    arena: _C.Arena | None = None  # The arena in which its steps run.
    memory: _C.ArenaMemory | None = None  # What the next step takes in the arena; None: it records, without its block.

    def recomputes(self) -> bool:
        """Returns whether it takes more time than store-all."""
        raise NotImplementedError


class Patience(NamedTuple):
    """When a step that recomputes is planned again because memory became free."""

    free_share: float  # Share of the bytes available to it that must have become free.
    steps: int = 0  # Number of steps that its plan must have run.
    plans: float = math.inf  # Maximum number of such plans at one place.


class Step(Protocol):
    """A graph that can be planned within a number of bytes. All bytes are those that a step adds.

    Steps of one kind run what they have chosen in their own way, between the calls of flight.Device.
    """

    settings: Settings
    device: torch.device
    chosen: WeakKeyDictionary[Place, Any]  # What runs at each place.
    assumed_rest: Rest  # Rest of the step before it has been measured.
    patience: Patience
    is_tried: bool  # Whether peaks of plans are those of trials, to which the assumed excess need not be added.
    shares_together: bool  # Whether a share is of all graphs in flight together, and includes the rest of the step.

    def smallest_bytes(self, rest: Rest) -> int: ...
    def store_all_bytes(self, rest: Rest) -> int: ...
    def held_bytes(self, rest: Rest) -> int:
        """Returns an upper bound of the bytes that are left of a forward."""

    def added_bytes(self, chosen: Any, rest: Rest) -> int | None:
        """Returns the bytes that a plan adds beside this rest; None: it cannot run beside it."""

    def halves_bytes(self, chosen: Any, rest: Rest) -> tuple[int, int] | None:
        """Returns the predicted bytes that forward and backward add at their peaks; None: not known."""

    def choose(self, room: Room, arguments: Sequence[Any]) -> Any:
        """Returns the fastest plan that fits; raises BudgetError if none does."""

    def choose_smallest(self, room: Room, arguments: Sequence[Any]) -> Any:
        """Returns the smallest plan, after choose() has found none that fits."""

    def planned(self, chosen: Any, room: Room) -> Planned | None:
        """Returns what on_plan() is told; None: nothing."""


def _asked_once(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Caches what a method of Place returns until something is learned.

    Each of these methods asks several others for every inner graph, so the work would double with each graph in flight.
    """

    @functools.wraps(method)
    def ask(place: Place, *arguments: float) -> Answer:
        if place.answered_at != Place.learned:
            place.answers.clear()
            place.answered_at = Place.learned
        key = (method.__name__, *arguments)
        if key not in place.answers:
            place.answers[key] = method(place, *arguments)
        return place.answers[key]

    return ask


class Place:
    """A graph behind the graphs that are in flight when it is entered, and what was learned of it there."""

    learned: ClassVar[int] = 0  # Number of times that something was learned of any place.

    def __init__(self, step: Step) -> None:
        self._step = weakref.ref(step)  # Places of a device must not keep its steps.
        # Graphs that were entered next while this one was in flight.
        self.inner: WeakKeyDictionary[Step, Place] = WeakKeyDictionary()
        self.forwards = 0
        self.seen_at = 0  # Number of the outer graph's forward in which it was entered last.
        self.gaps: deque[int] = deque(maxlen=_LEARNING_STEPS)  # See gap_bytes.
        self.rests: deque[Rest] = deque(maxlen=_LEARNING_STEPS)  # Last measured rests.
        self.watches = 0  # Measurements that have begun.
        self.watched_at = 0  # Number of the forward at which the last measurement began.
        # Number of the last forward whose backward came while graphs in it were in flight.
        self.crossed_at: int | None = None
        self.over_bytes = 0  # Bytes to leave free, because earlier steps exceeded their limit by that.
        self.loosenings = 0  # Plans that were made because memory became free.
        self.excess = Excess(step.device)
        if step.is_tried:
            self.excess.measure(0)
        self.answers: dict[tuple[Any, ...], Any] = {}  # Cached results of methods, by name and arguments.
        self.answered_at = -1  # Value of `learned` for which `answers` are valid.

    @property
    def step(self) -> Step:
        """Returns the graph, which the caller keeps alive."""
        return self._step()

    def counted_excess(self) -> Excess:
        """Returns the excess to leave free: none if the budget is a share, which is of simulated bytes."""
        return self.excess if isinstance(self.step.settings.budget, int) else _NO_EXCESS

    @property
    def gap_bytes(self) -> int:
        """Returns the bytes that were allocated between the forward of the outer graph and this one's."""
        return max(self.gaps, default=0)

    def learn_rest(self, rest: Rest) -> None:
        self.rests.append(rest)
        Place.learned += 1

    @property
    @_asked_once
    def own_rest(self) -> Rest:
        """Returns the measured rest of the step, without the graphs in it, or the assumed one."""
        if not self.rests:
            return self.step.assumed_rest
        peak = max(rest.peak_bytes for rest in self.rests)
        left = max(rest.left_bytes for rest in self.rests)
        tail = max(rest.tail_bytes for rest in self.rests)
        return Rest(peak, left, any(rest.is_held for rest in self.rests), tail)

    @_asked_once
    def rest(self, share: float) -> Rest:
        own = self.own_rest
        recent = self._recent_inner()
        inner = max([place.gap_bytes + place.added_bytes(share) for place in recent], default=0)
        left = own.left_bytes
        if self.crossed_at is not None and self.crossed_at + _REMEMBERED_STEPS >= self.forwards:
            left += max([place.gap_bytes + place.held_bytes(share) for place in recent], default=0)
            left = max(left, 0)  # Between two forwards, more may be freed than the second one holds.
        return own._replace(peak_bytes=max(own.peak_bytes, inner, left), left_bytes=left)

    def _recent_inner(self) -> list[Place]:
        return [place for place in self.inner.values() if place.seen_at + _REMEMBERED_STEPS >= self.forwards]

    def is_learning(self, chosen: Chosen) -> bool:
        """Returns whether to measure this step, which is going to run this."""
        if not chosen.is_measured:
            return False
        if self.forwards - self.watched_at >= _REMEMBERED_STEPS:
            return chosen.recomputes() and bool(self.rests)
        if chosen.steps < _MEASURED_STEPS and self.watches < _MOST_LEARNING_STEPS:
            return True
        if len(self.rests) < _LEARNING_STEPS:
            return self.watches < _MOST_LEARNING_STEPS
        peaks = [rest.peak_bytes for rest in self.rests]
        return max(peaks) > (1 + _AGREEMENT) * min(peaks) and self.watches < _MOST_LEARNING_STEPS

    def added_bytes(self, share: float) -> int:
        """Returns the bytes that the graph adds to the memory in use before it, with its excess and the graphs in it.

        A share of 0 stands for its smallest plan, a share of 1 for store-all.
        """
        smallest = self.smallest_bytes() if share < 1 else 0
        store_all = self.store_all_bytes() if share > 0 else 0
        return round((1 - share) * smallest + share * store_all)

    @_asked_once
    def held_bytes(self, share: float) -> int:
        """Returns an upper bound of the bytes that it and the graphs in it hold while they wait for their backwards."""
        inner = max([place.gap_bytes + place.held_bytes(1) for place in self._recent_inner()], default=0)
        return min(self.step.held_bytes(self.rest(1)) + inner, self.added_bytes(share))

    @_asked_once
    def smallest_bytes(self) -> int:
        return self.counted_excess().add(self.step.smallest_bytes(self.rest(0)))

    @_asked_once
    def store_all_bytes(self) -> int:
        return self.counted_excess().add(self.step.store_all_bytes(self.rest(1)))

    def fair_rest(self, available_bytes: int) -> Rest:
        """Returns the rest of the step if all graphs share the available bytes; it fits if the smallest plans do."""
        if not self.inner:
            return self.rest(0)
        store_all = self.store_all_bytes()
        if available_bytes >= store_all:
            return self.rest(1)
        smallest = self.smallest_bytes()
        share = min(1.0, max(0.0, (available_bytes - smallest) / max(store_all - smallest, 1)))
        # The share is rounded down, so that small changes of the memory outside do not change the plan.
        return self.rest(math.floor(share * _SHARE_STEPS) / _SHARE_STEPS)

    def room(self, before_bytes: int, limit_bytes: int | None) -> Room:
        """Returns the room of a step with this many bytes in use on the device before it and this many allowed."""
        if limit_bytes is None:
            return Room(before_bytes, None, self.rest(1), self.rest(1), _NO_EXCESS)
        available = limit_bytes - before_bytes
        rest = self.fair_rest(available)
        excess = self.counted_excess()
        if self.over_bytes > 0:  # Fall back to the smallest plan: the excess may have another cause.
            smallest = excess.add(self.step.smallest_bytes(rest))
            available = min(available, max(available - self.over_bytes, smallest))
        return Room(before_bytes, before_bytes + available, rest, self.rest(0), excess)

    def keep(self, room: Room) -> Any:
        """Returns what was chosen before, or None if it does not fit or is to be planned again."""
        now = self.step.chosen.get(self)
        if now is None:
            return None
        memory = None if now.arena is None else now.arena.memory()
        if now.rest != room.rest or now.memory != memory:
            if now.memory != memory:
                now.memory = memory
                Place.learned += 1
            now.added_bytes, now.rest = self.step.added_bytes(now, room.rest), room.rest
        if now.added_bytes is None or room.limit_bytes is None:
            return None if now.added_bytes is None else now
        planned = room.planned_bytes()
        if now.added_bytes > planned:
            measured = room.excess.subtract_measured(room.available_bytes())
            # Keep it if no other plan is more certain to fit.
            fits = now.added_bytes <= measured and planned < self.step.smallest_bytes(room.rest)
            return now if fits else None
        return None if self._loosens(now, room) else now

    def _loosens(self, now: Chosen, room: Room) -> bool:
        """Returns whether a step that recomputes has much more memory available than when it was planned."""
        patience, planned = self.step.patience, room.planned_bytes()
        if self.loosenings >= patience.plans or now.steps < patience.steps or not now.recomputes():
            return False
        return planned - room.rest.peak_bytes > now.free_bytes + patience.free_share * planned

    def plan(self, room: Room, arguments: Sequence[Any], *, is_inner: bool) -> Any:
        """Returns what to run from now on. Raises BudgetError if nothing fits, unless graphs around it are in flight.

        What is kept is planned again only because memory became free.
        """
        step = self.step
        before = step.chosen.get(self)
        try:
            try:
                now = step.choose(room, arguments)
            except BudgetError:
                if room.rest == room.smallest_rest:
                    raise
                room = room._replace(rest=room.smallest_rest)
                now = step.choose(room, arguments)
        except BudgetError as error:
            if not is_inner:
                raise
            # The graphs in flight did not know of this one. In the next step they reserve memory for it.
            warnings.warn(f"headroom: over the budget in this step, until it is planned again: {error}", stacklevel=2)
            return step.choose_smallest(room, arguments)
        planned = room.planned_bytes()
        Place.learned += 1  # A trial shows what a plan really adds.
        if planned is not None:
            now.free_bytes = planned - now.rest.peak_bytes
            fitted = before is not None and before.added_bytes is not None and before.added_bytes <= planned
            self.loosenings += fitted and before.rest == room.rest
        step.chosen[self] = now
        if step.settings.on_plan is not None and (told := step.planned(now, room)) is not None:
            step.settings.on_plan(told)
        return now
