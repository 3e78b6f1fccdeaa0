"""Steps in flight on one device, and how they share a budget.

Between a graph's forward and its backward other things happen on the device: other graphs of the model, further
forwards, a loss outside the graph. To a plan that is one op, the rest of the step (capture.Rest). What it has is
learned in the first steps, until three in a row agree, and now and then later; graphs that run in it are known by
their own plans, and forgotten if they have not come for a while. Where there is more memory than the
smallest plans need, each graph gets the same share of the way from its smallest plan to storing all.

Measured steps also say how far real peaks are above predicted ones (excess.Excess), which later plans leave free.

Only graphs of one compiled model (one Settings object) that one thread has entered share a budget: they are a Stack.
What other stacks do on the device at the same time is not learned as part of a step.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from headroom import _C
from headroom.budget.excess import Excess
from headroom.entrance import count_graph
from headroom.graph.step_graph import Rest

if TYPE_CHECKING:
    from headroom.planning import Chosen, Step

# Steps that must agree about the rest, and in how many it is measured at most. A measurement starts the device's one
# peak anew, so it must end.
_LEARNING_STEPS = 3
_MOST_LEARNING_STEPS = 10
# How far apart measurements may be that agree.
_AGREEMENT = 0.02
# Steps after which a graph that comes no more is forgotten, and the rest of a step that recomputes is measured again.
_REMEMBERED_STEPS = 32
# Steps in which the peak of a new plan is measured.
_MEASURED_STEPS = 2
_SHARE_STEPS = 64


Answer = TypeVar("Answer")
_NO_EXCESS = Excess(torch.device("cpu"))


def _asked_once(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Keeps what a method of a place returns until something is learned.

    Each asks several others of the graphs in it, so that the work would double with every graph in flight.
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


@dataclass(eq=False)
class Place:
    """A graph behind those that are in flight when it is entered, and what is known of it there."""

    step: Step
    inner: dict[Step, Place] = field(default_factory=dict)  # what has been entered next while it was in flight
    forwards: int = 0
    seen_at: int = 0  # the number of the outer graph's forward in which it was entered last
    gaps: deque[int] = field(default_factory=lambda: deque(maxlen=_LEARNING_STEPS))  # see gap_bytes
    rests: deque[Rest] = field(default_factory=lambda: deque(maxlen=_LEARNING_STEPS))  # the last that were measured
    watches: int = 0  # measurements that have begun
    watched_at: int = 0  # the number of the forward at which a measurement began last
    crossed_at: int | None = None  # the forward whose backward came last while graphs in it were still in flight
    over_bytes: int = 0  # to leave free so that its steps, which were over their limit, keep to it
    excess: Excess = field(init=False)
    answers: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # of methods, since something was learned last
    answered_at: int = -1
    learned: ClassVar[int] = 0  # how often something has been learned of any place

    def __post_init__(self) -> None:
        self.excess = Excess(self.step.captured.device)

    def counted_excess(self) -> Excess:
        """What to leave free of a budget in bytes. A share is of simulated bytes: nothing is left free of it."""
        return self.excess if isinstance(self.step.settings.budget, int) else _NO_EXCESS

    @property
    def gap_bytes(self) -> int:
        """What was made between the forward before it and its own."""
        return max(self.gaps, default=0)

    @property
    def own_rest(self) -> Rest:
        """The rest but for the graphs in it."""
        peak = max([rest.peak_bytes for rest in self.rests], default=0)
        left = max([rest.left_bytes for rest in self.rests], default=0)
        tail = max([rest.tail_bytes for rest in self.rests], default=0)
        return Rest(peak, left, any(rest.is_held for rest in self.rests), tail)

    @_asked_once
    def rest(self, share: float) -> Rest:
        own = self.own_rest
        recent = self._recent_inner()
        inner = max([one.gap_bytes + one.added_bytes(share) for one in recent], default=0)
        left = own.left_bytes
        if self.crossed_at is not None and self.crossed_at + _REMEMBERED_STEPS >= self.forwards:
            left += max([one.gap_bytes + one.held_bytes(share) for one in recent], default=0)
            left = max(left, 0)  # Between two forwards more may be freed than the second one holds.
        return own._replace(peak_bytes=max(own.peak_bytes, inner, left), left_bytes=left)

    def _recent_inner(self) -> list[Place]:
        return [one for one in self.inner.values() if one.seen_at + _REMEMBERED_STEPS >= self.forwards]

    def is_learning(self, *, recomputes: bool, plan_steps: int) -> bool:
        """Whether to measure this step, in which its plan has run `plan_steps` times before."""
        if self.forwards - self.watched_at >= _REMEMBERED_STEPS:
            return recomputes and bool(self.rests)
        if plan_steps < _MEASURED_STEPS and self.watches < _MOST_LEARNING_STEPS:
            return True
        if len(self.rests) < _LEARNING_STEPS:
            return self.watches < _MOST_LEARNING_STEPS
        peaks = [rest.peak_bytes for rest in self.rests]
        return max(peaks) > (1 + _AGREEMENT) * min(peaks) and self.watches < _MOST_LEARNING_STEPS

    def added_bytes(self, share: float) -> int:
        """What it adds to what was there before it, its excess and the graphs in it included.

        A share of 0 is its smallest plan, of 1 storing all.
        """
        least = self.smallest_bytes() if share < 1 else 0
        most = self.store_all_bytes() if share > 0 else 0
        return round((1 - share) * least + share * most)

    @_asked_once
    def held_bytes(self, share: float) -> int:
        """What it and the graphs in it hold at most while they wait for their backwards."""
        inner = max([one.gap_bytes + one.held_bytes(1) for one in self._recent_inner()], default=0)
        return min(self.step.shape(self.rest(1)).held_bytes - self.step.input_bytes + inner, self.added_bytes(share))

    @_asked_once
    def smallest_bytes(self) -> int:
        return self.counted_excess().add(self.step.shape(self.rest(0)).smallest_bytes() - self.step.input_bytes)

    @_asked_once
    def store_all_bytes(self) -> int:
        return self.counted_excess().add(self.step.shape(self.rest(1)).store_all_bytes - self.step.input_bytes)

    def fair_rest(self, available_bytes: int) -> Rest:
        """The rest where this graph and those in it share that. Whatever fits the smallest plans fits so."""
        if not self.inner:
            return self.rest(0)
        most = self.store_all_bytes()
        if available_bytes >= most:
            return self.rest(1)
        least = self.smallest_bytes()
        share = min(1.0, max(0.0, (available_bytes - least) / max(most - least, 1)))
        # In steps, so that small changes of what is outside change no plan.
        return self.rest(math.floor(share * _SHARE_STEPS) / _SHARE_STEPS)


class Inputs:
    """The storages of a forward's inputs.

    A plan counts inputs as live for the whole step. Where it does not need one in backward, and nobody else does, that
    one is freed in the rest of the step; by another plan it might not be.
    """

    def __init__(self, arguments: Iterable[object]) -> None:
        tensors = [one for one in arguments if isinstance(one, torch.Tensor) and one.layout is torch.strided]
        storages = {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        self._storages = [(StorageWeakRef(storage), storage.nbytes()) for storage in storages.values()]

    def drop_freed(self) -> None:
        self._storages = [(storage, size) for storage, size in self._storages if not storage.expired()]

    def freed_bytes(self) -> int:
        return sum(size for storage, size in self._storages if storage.expired())


@dataclass(eq=False)
class Flight:
    """One forward that waits for its backward."""

    place: Place
    chosen: Chosen
    frame: _C.Frame
    stack: Stack
    root_before_bytes: int  # on the device before the first of those in flight
    limit_bytes: int | None  # on the device, by the budget
    before_bytes: int  # on the device before its forward
    forward_peak_bytes: int  # on the device during its forward, if that was measured
    after_bytes: int  # on the device after its forward
    root: Place
    is_alone: bool  # no other stack has run on the device since its forward
    is_learning: bool  # its step is to be measured
    inputs: Inputs  # of its forward, that are alive after it
    peak_bytes: int = 0  # of its rest, so far


class Stack:
    """The flights of one model in one thread, innermost last."""

    def __init__(self) -> None:
        self._flights: list[weakref.ref[Flight]] = []

    def flights(self) -> list[Flight]:
        """Those that still wait for their backward. What nobody will differentiate any more is gone."""
        self._flights = [reference for reference in self._flights if reference() is not None]
        return [flight for reference in self._flights if (flight := reference()) is not None]

    def push(self, flight: Flight) -> None:
        self._flights.append(weakref.ref(flight))

    def remove(self, flight: Flight) -> None:
        self._flights = [reference for reference in self._flights if reference() not in (None, flight)]


class Device:
    """What is in flight on a device. Threads take turns by its lock, except while they run operators."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            _make_workspaces(device)
        self.meter = _C.Meter(device)
        self.lock = threading.RLock()
        self.stacks: dict[tuple[int, int], Stack] = {}  # by thread and Settings object, while they have flights
        self.roots: weakref.WeakKeyDictionary[Step, Place] = weakref.WeakKeyDictionary()
        self.watched: Stack | None = None  # since resume(), the peak is of the rest of its innermost flight
        self.tail: object | None = None  # stands for the backward after which the peak is being measured

    def stack_of(self, step: Step) -> Stack:
        """This thread's stack of the step's model. Those of others without flights are forgotten."""
        key = (threading.get_ident(), id(step.settings))
        self.stacks = {other: stack for other, stack in self.stacks.items() if other == key or stack.flights()}
        return self.stacks.setdefault(key, Stack())

    def pause(self) -> None:
        """From here on the peak is no longer that of a flight's rest."""
        self.tail = None
        flights = [] if self.watched is None else self.watched.flights()
        self.watched = None
        # Where the innermost one has been freed without a backward, the peak is that of the one around it.
        if flights:
            flights[-1].peak_bytes = max(flights[-1].peak_bytes, self.meter.peak_bytes() - flights[-1].after_bytes)

    def resume(self) -> None:
        """Watches the innermost flight, where there is one stack alone."""
        flights = self._flights()
        if not flights or any(flight.stack is not flights[-1].stack for flight in flights):
            return
        if flights[-1].is_alone and flights[-1].is_learning:
            self.meter.reset_peak()
            self.watched = flights[-1].stack

    def forward(self, step: Step, arguments: list[object]) -> tuple[list[torch.Tensor], Flight]:
        count_graph()
        with self.lock:
            self.pause()
            stack = self.stack_of(step)
            outer = stack.flights()
            is_alone = self._disturb_others(stack)
            before = self.meter.current_bytes()
            if outer:
                place = outer[-1].place.inner.setdefault(step, Place(step))
                place.seen_at = outer[-1].place.forwards
                if is_alone and outer[-1].is_alone:
                    place.gaps.append(before - outer[-1].after_bytes)
                root, root_before = outer[0].root, outer[0].root_before_bytes
            else:
                place = root = self.roots.setdefault(step, Place(step))
                root_before = before
            place.forwards += 1
            Place.learned += 1
            device_bytes = step.settings.device_bytes(root_before, root)
            chosen = step.choose(place, before, device_bytes, is_inner=bool(outer))
            is_learning = place.is_learning(recomputes=chosen.recomputes(), plan_steps=chosen.steps)
            chosen.steps += 1
            if is_learning:
                place.watches += 1
                place.watched_at = place.forwards
                self.meter.reset_peak()
        inputs = Inputs(arguments if is_learning else ())
        outputs, frame = chosen.op_step.forward(arguments)
        with self.lock:
            peak = self.meter.peak_bytes() if is_learning else 0
            after = self.meter.current_bytes()
            inputs.drop_freed()
            flight = Flight(
                place=place,
                chosen=chosen,
                frame=frame,
                stack=stack,
                root_before_bytes=root_before,
                limit_bytes=device_bytes,
                before_bytes=before,
                forward_peak_bytes=peak,
                after_bytes=after,
                root=root,
                is_alone=is_alone,
                is_learning=is_learning,
                inputs=inputs,
            )
            stack.push(flight)
            self.resume()
        return outputs, flight

    def backward(self, flight: Flight, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        with self.lock:
            has_inner = self._end_rest(flight, gradients)
            Place.learned += 1
            if flight.is_learning:
                self.meter.reset_peak()
        results, is_held = flight.chosen.op_step.backward(flight.frame, gradients)
        with self.lock:
            peak = self.meter.peak_bytes() if flight.is_learning else 0
            rests = flight.place.rests
            if is_held and rests:
                rests[-1] = rests[-1]._replace(is_held=True)
            elif is_held:
                rests.append(Rest(is_held=True))
            if flight.is_learning and flight.is_alone:
                self._learn_excess(flight, peak, has_inner=has_inner)
                self._begin_tail(flight.place)
            Place.learned += 1
            self.resume()
        return results

    def _begin_tail(self, place: Place) -> None:
        """Measures what autograd takes from here to the end of its backward, where no other graph is in flight."""
        if self._flights():
            return
        tail = self.tail = object()
        self.meter.reset_peak()
        end_bytes = self.meter.current_bytes()

        def end_tail() -> None:
            with self.lock:
                if self.tail is tail:
                    tail_bytes = self.meter.peak_bytes() - end_bytes
                    place.rests[-1] = place.rests[-1]._replace(tail_bytes=tail_bytes)
                    self.tail = None
                    Place.learned += 1

        torch.autograd.Variable._execution_engine.queue_callback(end_tail)

    def _learn_excess(self, flight: Flight, backward_peak_bytes: int, *, has_inner: bool) -> None:
        """Learns what a flight took beyond what its plan predicts beside the rest that there was, and beyond its limit.

        Of graphs that are still in flight the prediction does not know how much they hold. In the first step that is
        measured, the limit may be exceeded by a rest that was not known.
        """
        place = flight.place
        predicted = None if has_inner else place.step.predicted_peaks(flight.chosen.plan.schedule, place.rests[-1])
        if predicted is not None:
            forward, backward = flight.forward_peak_bytes - predicted[0], backward_peak_bytes - predicted[1]
            place.excess.measure(max(forward, backward) - flight.before_bytes)
        if isinstance(place.step.settings.budget, int) and len(place.rests) > 1:
            rest_peak_bytes = flight.after_bytes + flight.peak_bytes
            over = max(flight.forward_peak_bytes, rest_peak_bytes, backward_peak_bytes) - flight.limit_bytes
            place.over_bytes = max(place.over_bytes + over, 0)
            if over > 0:
                warnings.warn(
                    f"headroom: {_C.format_bytes(over)} over the budget in this step; later plans leave that free",
                    stacklevel=2,
                )

    def _end_rest(self, flight: Flight, gradients: list[torch.Tensor | None]) -> bool:
        """Takes the flight off its stack, and learns what the rest of the step left. Returns whether graphs that were
        entered after it are still in flight."""
        self.pause()
        self._disturb_others(flight.stack)
        flights = flight.stack.flights()
        inner = flights[flights.index(flight) + 1 :] if flight in flights else []
        flight.stack.remove(flight)
        place = flight.place
        if inner:
            place.crossed_at = place.forwards
        if not flight.is_alone:
            return bool(inner)
        given_bytes = _C.storage_bytes(gradients)
        freed_bytes = flight.inputs.freed_bytes()
        left = self.meter.current_bytes() + freed_bytes - flight.after_bytes - given_bytes
        if inner:
            left -= inner[-1].after_bytes - flight.after_bytes
        peak = max(flight.peak_bytes + freed_bytes, left + given_bytes)
        known = place.own_rest
        if flight.is_learning:
            place.rests.append(Rest(peak, max(left, 0)))
        elif left > known.left_bytes or peak > known.peak_bytes:
            peak, left = max(peak, known.peak_bytes), max(left, known.left_bytes)
            place.rests.append(known._replace(peak_bytes=peak, left_bytes=left))
        return bool(inner)

    def _flights(self) -> list[Flight]:
        return [flight for stack in self.stacks.values() for flight in stack.flights()]

    def _disturb_others(self, stack: Stack) -> bool:
        """Notes that this stack runs beside others; whether there are none."""
        others = [flight for flight in self._flights() if flight.stack is not stack]
        for flight in others:
            flight.is_alone = False
        return not others


def _make_workspaces(device: torch.device) -> None:
    """Has cuBLAS allocate what it keeps for this thread and for autograd's, so that no step's peak includes it."""
    with torch.enable_grad():
        for dtype in (torch.float32, torch.bfloat16):
            weight = torch.ones(16, 16, device=device, dtype=dtype, requires_grad=True)
            torch.addmm(weight[0], weight, weight).sum().backward()


_devices: dict[torch.device, Device] = {}
_devices_lock = threading.Lock()


def flights_on(device: torch.device) -> Device:
    with _devices_lock:
        if device not in _devices:
            _devices[device] = Device(device)
        return _devices[device]


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Around work that no later step does."""
    devices = list(_devices.values())
    for device in devices:
        with device.lock:
            device.pause()
    try:
        yield
    finally:
        for device in devices:
            with device.lock:
                device.resume()
