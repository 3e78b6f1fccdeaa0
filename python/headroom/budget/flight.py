"""Steps in flight on one device, and how they share a budget.

Between a graph's forward and its backward, other work runs on the device: other graphs of the model, further forwards,
a loss outside the graph. In a plan all of that is one op, the rest of the step (step_graph.Rest). Its memory is
measured in the first steps, until three in a row agree, and occasionally later. Graphs that run in the rest are known
by their own plans, and are forgotten if they have not run for a while. If there is more memory than the smallest plans
need, each graph gets the same share of the distance from its smallest plan to store-all.

Measured steps also show by how much real peaks exceed predicted ones (excess.Excess). Later plans leave that free.

Only graphs of one compiled model (one Settings object) that one thread has entered share a budget: they are a Stack.
What other stacks do on the device at the same time is not counted as part of a step.
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


@dataclass(eq=False)
class Place:
    """A graph behind the graphs that are in flight when it is entered, and what was learned of it there."""

    step: Step
    # Graphs that were entered next while this one was in flight.
    inner: dict[Step, Place] = field(default_factory=dict)
    forwards: int = 0
    seen_at: int = 0  # Number of the outer graph's forward in which it was entered last.
    gaps: deque[int] = field(default_factory=lambda: deque(maxlen=_LEARNING_STEPS))  # See gap_bytes.
    rests: deque[Rest] = field(default_factory=lambda: deque(maxlen=_LEARNING_STEPS))  # Last measured rests.
    watches: int = 0  # Measurements that have begun.
    watched_at: int = 0  # Number of the forward at which the last measurement began.
    crossed_at: int | None = None  # Number of the last forward whose backward came while graphs in it were in flight.
    over_bytes: int = 0  # Bytes to leave free, because earlier steps exceeded their limit by that.
    excess: Excess = field(init=False)
    # Cached results of methods, by name and arguments.
    answers: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    answered_at: int = -1  # Value of `learned` for which `answers` are valid.
    learned: ClassVar[int] = 0  # Number of times that something was learned of any place.

    def __post_init__(self) -> None:
        self.excess = Excess(self.step.captured.device)

    def counted_excess(self) -> Excess:
        """Returns the excess to leave free: none if the budget is a share, which is of simulated bytes."""
        return self.excess if isinstance(self.step.settings.budget, int) else _NO_EXCESS

    @property
    def gap_bytes(self) -> int:
        """Returns the bytes that were allocated between the forward of the outer graph and this one's."""
        return max(self.gaps, default=0)

    @property
    def own_rest(self) -> Rest:
        """Returns the measured rest of the step, without the graphs in it."""
        peak = max([rest.peak_bytes for rest in self.rests], default=0)
        left = max([rest.left_bytes for rest in self.rests], default=0)
        tail = max([rest.tail_bytes for rest in self.rests], default=0)
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

    def is_learning(self, *, recomputes: bool, plan_steps: int) -> bool:
        """Returns whether to measure this step, whose plan has run in `plan_steps` steps before."""
        if self.forwards - self.watched_at >= _REMEMBERED_STEPS:
            return recomputes and bool(self.rests)
        if plan_steps < _MEASURED_STEPS and self.watches < _MOST_LEARNING_STEPS:
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
        return min(self.step.shape(self.rest(1)).held_bytes - self.step.input_bytes + inner, self.added_bytes(share))

    @_asked_once
    def smallest_bytes(self) -> int:
        return self.counted_excess().add(self.step.shape(self.rest(0)).smallest_bytes() - self.step.input_bytes)

    @_asked_once
    def store_all_bytes(self) -> int:
        return self.counted_excess().add(self.step.shape(self.rest(1)).store_all_bytes - self.step.input_bytes)

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


class Inputs:
    """The storages of a forward's inputs.

    A plan counts inputs as live for the whole step. An input that backward does not need, and that nobody else holds,
    is freed in the rest of the step. Under another plan it might be needed, so it must not lower the measured rest.
    """

    def __init__(self, arguments: Iterable[object]) -> None:
        tensors = [
            tensor for tensor in arguments if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        ]
        storages = {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        self._storages = [(StorageWeakRef(storage), storage.nbytes()) for storage in storages.values()]

    def drop_freed(self) -> None:
        self._storages = [(storage, size) for storage, size in self._storages if not storage.expired()]

    def freed_bytes(self) -> int:
        return sum(size for storage, size in self._storages if storage.expired())


@dataclass(eq=False)
class Flight:
    """A forward that waits for its backward."""

    place: Place
    chosen: Chosen
    frame: _C.Frame
    stack: Stack
    root_before_bytes: int  # Bytes in use on the device before the outermost flight's forward.
    limit_bytes: int | None  # Limit of the bytes in use on the device.
    before_bytes: int  # Bytes in use on the device before this forward.
    forward_peak_bytes: int  # Peak of the device during this forward, if it was measured.
    after_bytes: int  # Bytes in use on the device after this forward.
    root: Place
    is_alone: bool  # Whether no other stack has run on the device since this forward.
    is_learning: bool  # Whether this step is measured.
    inputs: Inputs  # Inputs of this forward that are live after it.
    peak_bytes: int = 0  # Peak so far of the rest of this step, above after_bytes.


class Stack:
    """The flights of one model in one thread, innermost last."""

    def __init__(self) -> None:
        self._flights: list[weakref.ref[Flight]] = []

    def flights(self) -> list[Flight]:
        """Returns the flights that still wait for their backward. Flights whose graph was freed are removed."""
        self._flights = [reference for reference in self._flights if reference() is not None]
        return [flight for reference in self._flights if (flight := reference()) is not None]

    def push(self, flight: Flight) -> None:
        self._flights.append(weakref.ref(flight))

    def remove(self, flight: Flight) -> None:
        self._flights = [reference for reference in self._flights if reference() not in (None, flight)]


class Device:
    """The flights on a device. Threads hold its lock except while they run operators."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            _make_workspaces(device)
        self.meter = _C.Meter(device)
        self.lock = threading.RLock()
        self.stacks: dict[tuple[int, int], Stack] = {}  # By thread and Settings object, while they have flights.
        self.roots: weakref.WeakKeyDictionary[Step, Place] = weakref.WeakKeyDictionary()
        self.watched: Stack | None = None  # Stack whose innermost flight's rest has been measured since resume().
        self.tail: object | None = None  # Stands for the backward after which the peak is measured.

    def stack_of(self, step: Step) -> Stack:
        """Returns this thread's stack of the step's model. Stacks of others without flights are forgotten."""
        key = (threading.get_ident(), id(step.settings))
        self.stacks = {other: stack for other, stack in self.stacks.items() if other == key or stack.flights()}
        return self.stacks.setdefault(key, Stack())

    def pause(self) -> None:
        """Ends the measurement of a flight's rest."""
        self.tail = None
        flights = [] if self.watched is None else self.watched.flights()
        self.watched = None
        # If the innermost flight was freed without a backward, the peak belongs to the flight around it.
        if flights:
            flights[-1].peak_bytes = max(flights[-1].peak_bytes, self.meter.peak_bytes() - flights[-1].after_bytes)

    def resume(self) -> None:
        """Measures the rest of the innermost flight, if there is only one stack."""
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
        """Measures what autograd allocates from here to the end of its backward, if no other graph is in flight."""
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
        """Records by how much a flight exceeded its plan's prediction, beside the measured rest, and its limit.

        There is no prediction if inner graphs are still in flight, because it is not known how much they hold. In the
        first measured step, the rest was not known yet, so exceeding the limit does not count.
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
        """Removes the flight from its stack and records what the rest of the step left.

        Returns whether graphs that were entered after it are still in flight.
        """
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
        """Marks the flights of other stacks as not alone, and returns whether there are none."""
        others = [flight for flight in self._flights() if flight.stack is not stack]
        for flight in others:
            flight.is_alone = False
        return not others


def _make_workspaces(device: torch.device) -> None:
    """Makes cuBLAS allocate its workspaces for this thread and for autograd's, so that no step's peak includes them."""
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
    """Returns a context for work that no later step repeats, whose memory is not measured."""
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
