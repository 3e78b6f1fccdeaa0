"""Steps in flight on one device: which share a budget, and how their memory is measured.

Only graphs of one compiled model (one Settings object) that one thread has entered share a budget: they are a Stack.
Other work of the thread between a graph's forward and backward, other models included, is part of the rest of its step.
What other threads do on the device at the same time is not: a step that they have disturbed teaches nothing.

A device has one peak counter, which every measurement resets. note() reads it for all steps that are measured.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from headroom import _C
from headroom._torch import current_backward
from headroom.budget.place import Chosen, Place, Room, Step
from headroom.graph.step_graph import Rest


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


class Part(enum.Enum):
    """The parts of a step, in order."""

    FORWARD = enum.auto()
    REST = enum.auto()
    BACKWARD = enum.auto()
    TAIL = enum.auto()  # What autograd does after the graph's backward.


@dataclass(eq=False)
class Flight:
    """A step from the beginning of its forward to the end of its backward."""

    step: Step
    place: Place
    root: Place  # Place of the outermost flight.
    stack: Stack
    before_bytes: int  # Bytes in use on the device before this forward.
    root_before_bytes: int  # Bytes in use on the device before the outermost flight's forward.
    is_alone: bool  # Whether no other thread has run a step on the device since this forward.
    chosen: Any = None  # What runs.
    limit_bytes: int | None = None  # Limit of the bytes in use on the device.
    inputs: Inputs | None = None  # Inputs of this forward that are live after it.
    is_learning: bool = False  # Whether this step is measured.
    part: Part = Part.FORWARD
    peak_bytes: int = 0  # Largest peak of the device that was noted in the current part.
    forward_peak_bytes: int = 0
    after_bytes: int = 0  # Bytes in use on the device after forward.
    rest_peak_bytes: int = 0
    tail_begin_bytes: int = 0  # Bytes in use on the device when the tail began.
    frame: Any = None  # What the caller keeps for backward.
    is_held: bool = False  # Whether backward has found that other code holds a gradient that it was given.
    has_inner: bool = False  # Whether graphs that were entered later were in flight when backward began.
    backward: int = -1  # Number of autograd's backward that runs this one.

    def begin(self, part: Part) -> int:
        """Begins the next part, and returns the peak of the one before it."""
        peak, self.part, self.peak_bytes = self.peak_bytes, part, 0
        return peak


class Stack:
    """The flights of one model in one thread, innermost last."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.running: Flight | None = None  # The flight that is not in its rest.
        self._waiting: list[weakref.ref[Flight]] = []

    def waiting(self) -> list[Flight]:
        """Returns the flights that wait for their backward. Flights whose graph was freed are removed."""
        flights = [flight for reference in self._waiting if (flight := reference()) is not None]
        if len(flights) < len(self._waiting):
            self._waiting = [reference for reference in self._waiting if reference() is not None]
        return flights

    def flights(self) -> list[Flight]:
        return self.waiting() if self.running is None else [*self.waiting(), self.running]

    def current(self) -> Flight | None:
        """Returns the flight to which the memory of this moment belongs.

        If the innermost one was freed without a backward, that is the flight around it.
        """
        return self.running or next(reversed(self.waiting()), None)

    def push(self, flight: Flight) -> None:
        self._waiting.append(weakref.ref(flight))

    def remove(self, flight: Flight) -> None:
        self._waiting = [reference for reference in self._waiting if reference() not in (None, flight)]


class Device:
    """The flights on a device. Threads do not hold its lock while a step runs or is tried."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            _make_workspaces(device)
        self.meter = _C.Meter(device)
        self.lock = threading.RLock()
        self.stacks: dict[tuple[int, int], Stack] = {}  # By thread and Settings object, while they have flights.
        self.roots: weakref.WeakKeyDictionary[Step, Place] = weakref.WeakKeyDictionary()
        self.pauses = 0  # Number of contexts of unwatched() that are open.

    def stack_of(self, step: Step) -> Stack:
        """Returns this thread's stack of the step's model. Stacks of others without flights are forgotten."""
        key = (threading.get_ident(), id(step.settings))
        self.stacks = {other: stack for other, stack in self.stacks.items() if other == key or stack.current()}
        return self.stacks.setdefault(key, Stack(key[0]))

    def note(self) -> None:
        """Records the peak since the last call for the current flights that are measured, and starts the next one.

        Nothing is read or reset while no step is measured, because users read the counter too.
        """
        if not any(flight.is_learning for stack in self.stacks.values() for flight in stack.flights()):
            return
        if self.pauses == 0:
            peak = self.meter.peak_bytes()
            for stack in self.stacks.values():
                if (current := stack.current()) is not None and current.is_learning:
                    current.peak_bytes = max(current.peak_bytes, peak)
        self.meter.reset_peak()

    @contextlib.contextmanager
    def forward(self, step: Step, arguments: Sequence[object]) -> Iterator[Flight]:
        """Returns a context in which the caller runs the forward of what `chosen` of its flight says.

        Something that lives as long as the forward's graph must hold the flight from then on.
        """
        flight = self._enter(step)
        with self._running(flight):
            self._begin_forward(flight, arguments)
            yield flight
        with self.lock:
            self.note()
            flight.forward_peak_bytes = flight.begin(Part.REST)
            flight.after_bytes = self.meter.current_bytes()
            flight.inputs.drop_freed()
            flight.stack.running = None
            flight.stack.push(flight)

    @contextlib.contextmanager
    def backward(self, flight: Flight, gradient_bytes: int) -> Iterator[None]:
        """Returns a context in which the caller runs the backward of a flight, given gradients of this many bytes."""
        if flight.part is not Part.REST:  # The caller finds that it has run.
            yield
            return
        with self.lock:
            self._begin_backward(flight, gradient_bytes)
        with self._running(flight):
            yield
        with self.lock:
            self._end_backward(flight)
            if flight.is_learning and flight.is_alone and not flight.stack.waiting():
                self._begin_tail(flight)

    def follow(self, flight: Flight, node: Any) -> None:
        """Measures the backward of a flight that autograd runs as this node, and has the node hold the flight.

        The backward ends, as far as can be seen, when all of autograd's backward has run or the next graph's begins: a
        post hook would make the engine hold the gradients that the hook is given.
        """

        def begin(gradients: Sequence[torch.Tensor | None]) -> None:
            with self.lock:
                if flight.part is not Part.REST:
                    return
                self._begin_backward(flight, _C.storage_bytes(list(gradients)))
            torch.autograd.Variable._execution_engine.queue_callback(end)

        def end() -> None:
            with self.lock:
                if flight.stack.running is flight:
                    self._end_backward(flight)

        node.register_prehook(begin)

    @contextlib.contextmanager
    def _running(self, flight: Flight) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self.lock:
                flight.stack.running = None
            raise

    def _enter(self, step: Step) -> Flight:
        """Returns a new flight behind those that wait."""
        with self.lock:
            stack = self.stack_of(step)
            self._close(stack)
            self.note()
            before = self.meter.current_bytes()
            is_alone = self._disturb_others(stack)
            outer = stack.waiting()
            if outer:
                place = outer[-1].place.inner.setdefault(step, Place(step))
                place.seen_at = outer[-1].place.forwards
                flight = Flight(step, place, outer[0].root, stack, before, outer[0].root_before_bytes, is_alone)
            else:
                place = self.roots.setdefault(step, Place(step))
                flight = Flight(step, place, place, stack, before, before, is_alone)
            place.forwards += 1
            if outer or place.inner:  # Which graphs are recent has changed.
                Place.learned += 1
            if outer and is_alone and outer[-1].is_alone:
                place.gaps.append(before - outer[-1].after_bytes)
            stack.running = flight
        return flight

    def _begin_forward(self, flight: Flight, arguments: Sequence[object]) -> None:
        flight.chosen = self._choose(flight, arguments)
        place = flight.place
        with self.lock:
            flight.is_learning = place.is_learning(flight.chosen)
            flight.chosen.steps += 1
            flight.inputs = Inputs(arguments if flight.is_learning else ())
            if flight.is_learning:
                place.watches += 1
                place.watched_at = place.forwards
                self.meter.reset_peak()

    def _choose(self, flight: Flight, arguments: Sequence[object]) -> Chosen:
        place, is_inner = flight.place, flight.place is not flight.root
        with self.lock:
            chosen = place.keep(self._room(flight))
        if chosen is not None:
            return chosen
        if flight.step.settings.budget is not None:
            gc.collect()  # Tensors in unreachable reference cycles count as memory in use until they are collected.
        with planning():
            with self.lock:
                flight.before_bytes = self.meter.current_bytes()
                if not is_inner:
                    flight.root_before_bytes = flight.before_bytes
                room = self._room(flight)
                chosen = place.keep(room)
            if chosen is None:
                # Threads share the plans of operators. Trials need backwards, which need the lock.
                with contextlib.nullcontext() if flight.step.is_tried else self.lock:
                    chosen = place.plan(room, arguments, is_inner=is_inner)
                with self.lock:  # Planning may have left memory, such as workspaces of libraries.
                    flight.before_bytes = self.meter.current_bytes()
        return chosen

    def _room(self, flight: Flight) -> Room:
        """Returns the room of a flight whose forward begins now, and sets its limit."""
        settings = flight.step.settings
        if isinstance(settings.budget, int) or flight.step.shares_together:
            flight.limit_bytes = settings.device_bytes(flight.root_before_bytes, flight.root)
        return flight.place.room(flight.before_bytes, flight.limit_bytes)

    def _begin_backward(self, flight: Flight, gradient_bytes: int) -> None:
        """Takes the flight from those that wait, and records what the rest of its step took and left."""
        stack, place = flight.stack, flight.place
        self._close(stack)
        self.note()
        self._disturb_others(stack)
        waiting = stack.waiting()
        inner = waiting[waiting.index(flight) + 1 :] if flight in waiting else []
        stack.remove(flight)
        stack.running = flight
        flight.backward = current_backward()
        flight.has_inner = bool(inner)
        flight.rest_peak_bytes = max(flight.begin(Part.BACKWARD), flight.after_bytes)
        if inner:
            place.crossed_at = place.forwards
            Place.learned += 1
        if not flight.is_alone:
            return
        freed_bytes = flight.inputs.freed_bytes()
        left = self.meter.current_bytes() + freed_bytes - flight.after_bytes - gradient_bytes
        if inner:
            left -= inner[-1].after_bytes - flight.after_bytes
        peak = max(flight.rest_peak_bytes - flight.after_bytes + freed_bytes, left + gradient_bytes)
        known = place.own_rest
        if flight.is_learning:
            place.learn_rest(Rest(peak, max(left, 0)))
        elif left > known.left_bytes or peak > known.peak_bytes:
            peak, left = max(peak, known.peak_bytes), max(left, known.left_bytes)
            place.learn_rest(known._replace(peak_bytes=peak, left_bytes=left))

    def _end_backward(self, flight: Flight) -> None:
        self.note()
        self._disturb_others(flight.stack)
        flight.stack.running = None
        peak = flight.begin(Part.TAIL)
        rests = flight.place.rests
        if flight.is_held:
            last = rests.pop() if rests else flight.place.own_rest
            flight.place.learn_rest(last._replace(is_held=True))
        if flight.is_learning and flight.is_alone:
            _learn_excess(flight, peak)
            Place.learned += 1

    def _begin_tail(self, flight: Flight) -> None:
        """Measures what autograd allocates from here to the end of its backward, when no other graph is in flight."""
        flight.stack.running = flight
        flight.tail_begin_bytes = self.meter.current_bytes()

        def end() -> None:
            with self.lock:
                if flight.stack.running is flight:
                    self.note()
                    flight.stack.running = None
                    tail_bytes = max(flight.peak_bytes - flight.tail_begin_bytes, 0)
                    flight.place.learn_rest(flight.place.rests.pop()._replace(tail_bytes=tail_bytes))

        torch.autograd.Variable._execution_engine.queue_callback(end)

    def _close(self, stack: Stack) -> None:
        """Ends the backward or the tail that is still open in a stack when its next graph runs.

        A tail then was no tail. A backward that another one of autograd's began has failed, which is not measured.
        """
        flight = stack.running
        if flight is not None and flight.part is Part.BACKWARD and flight.backward == current_backward():
            self._end_backward(flight)
        stack.running = None

    def _disturb_others(self, stack: Stack) -> bool:
        """Marks the flights of other threads as not alone, and returns whether there are none.

        It does so again at the end of a backward, because nothing shows whether one that is open has failed.
        """
        others = [
            flight for other in self.stacks.values() if other.thread != stack.thread for flight in other.flights()
        ]
        for flight in others:
            flight.is_alone = False
        return not any(flight.part in (Part.FORWARD, Part.REST) for flight in others)


def _learn_excess(flight: Flight, backward_peak_bytes: int) -> None:
    """Records by how much a flight exceeded its plan's prediction, beside the measured rest, and its limit.

    There is no prediction if inner graphs are still in flight, because it is not known how much they hold. In the first
    measured step, the rest was not known yet, so exceeding the limit does not count.
    """
    place = flight.place
    predicted = None if flight.has_inner else flight.step.halves_bytes(flight.chosen, place.rests[-1])
    if predicted is not None:
        forward, backward = flight.forward_peak_bytes - predicted[0], backward_peak_bytes - predicted[1]
        place.excess.measure(max(forward, backward) - flight.before_bytes)
    if isinstance(flight.step.settings.budget, int) and len(place.rests) > 1:
        over = max(flight.forward_peak_bytes, flight.rest_peak_bytes, backward_peak_bytes) - flight.limit_bytes
        place.over_bytes = max(place.over_bytes + over, 0)
        if over > 0:
            warnings.warn(
                f"headroom: {_C.format_bytes(over)} over the budget in this step; later plans leave that free",
                stacklevel=2,
            )


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
            device.note()
            device.pauses += 1
    try:
        yield
    finally:
        for device in devices:
            with device.lock:
                device.note()
                device.pauses -= 1


_planning_lock = threading.RLock()


@contextlib.contextmanager
def planning() -> Iterator[None]:
    """Returns a context for compilations and trials, in which only one thread at a time is.

    Trials measure a device's memory. No thread may wait for this with a device's lock held: on a GPU one thread runs
    all backwards, those of trials too.
    """
    with _planning_lock, unwatched():
        yield
