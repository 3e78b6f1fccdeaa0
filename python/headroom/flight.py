"""Steps in flight on one device, and how they share a budget.

Between a graph's forward and its backward other things happen on the device: other graphs of the model, further
forwards, a loss outside the graph. To a plan that is one op, the rest of the step (capture.Rest). What it has is
learned in the first steps; graphs that run in it are known by their own plans. Where there is more memory than the
smallest plans need, each graph gets the same share of the way from its smallest plan to storing all.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from headroom import _C
from headroom.capture import Rest

if TYPE_CHECKING:
    from headroom.aot import Step

# Steps in which the rest is measured. A measurement starts the device's one peak anew, so it must end.
_LEARNING_STEPS = 3
_SHARE_STEPS = 64


@dataclass(eq=False)
class Place:
    """A graph behind those that are in flight when it is entered, and what is known of it there."""

    step: Step
    inner: dict[Step, Place] = field(default_factory=dict)  # what has been entered next while it was in flight
    gap_bytes: int = 0  # what was made between the forward before it and its own
    own_rest: Rest = field(default_factory=Rest)  # but for the graphs in it
    is_crossed: bool = False  # its backward has come while graphs in it were still in flight
    backwards: int = 0

    def rest(self, share: float) -> Rest:
        inner = max([one.gap_bytes + one.added_bytes(share) for one in self.inner.values()], default=0)
        left = self.own_rest.left_bytes + (inner if self.is_crossed else 0)
        return Rest(max(self.own_rest.peak_bytes, inner, left), left, self.own_rest.is_held)

    def added_bytes(self, share: float) -> int:
        """What it adds to what was there before it, the graphs in it included; of 0 the least, of 1 in storing all."""
        least = self.smallest_bytes() if share < 1 else 0
        most = self.store_all_bytes() if share > 0 else 0
        return round((1 - share) * least + share * most)

    def smallest_bytes(self) -> int:
        return self.step.shape(self.rest(0)).smallest_bytes() - self.step.input_bytes

    def store_all_bytes(self) -> int:
        return self.step.shape(self.rest(1)).store_all_bytes - self.step.input_bytes

    def fair_rest(self, available_bytes: int) -> Rest:
        """The rest where this graph and those in it share that. Whatever fits the smallest plans fits so."""
        if not self.inner:
            return self.rest(0)
        least, most = self.smallest_bytes(), self.store_all_bytes()
        share = min(1.0, max(0.0, (available_bytes - least) / max(most - least, 1)))
        # In steps, so that small changes of what is outside change no plan.
        return self.rest(math.floor(share * _SHARE_STEPS) / _SHARE_STEPS)


@dataclass(eq=False)
class Flight:
    """One forward that waits for its backward."""

    place: Place
    op_step: _C.OpStep
    frame: _C.Frame
    root_before_bytes: int  # on the device before the first of those in flight
    after_bytes: int  # on the device after its forward
    root: Place | None = None
    is_watched: bool = False  # the peak since its forward, or since the last graph in it, is its rest's


class Device:
    """What is in flight on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.meter = _C.Meter(device)
        self.flights: list[weakref.ref[Flight]] = []
        self.roots: weakref.WeakKeyDictionary[Step, Place] = weakref.WeakKeyDictionary()

    def alive(self) -> list[Flight]:
        self.flights = [one for one in self.flights if one() is not None]
        return [flight for one in self.flights if (flight := one()) is not None]

    def pause(self) -> None:
        """From here on the peak is no longer that of the innermost rest."""
        alive = self.alive()
        if alive and alive[-1].is_watched:
            self._learn(alive[-1])
            alive[-1].is_watched = False

    def resume(self) -> None:
        alive = self.alive()
        if alive and alive[-1].place.backwards < _LEARNING_STEPS:
            self.meter.reset_peak()
            alive[-1].is_watched = True

    def forward(self, step: Step, arguments: list[object]) -> tuple[list[torch.Tensor], Flight]:
        self.pause()
        alive = self.alive()
        before = self.meter.current_bytes()
        if alive:
            place = alive[-1].place.inner.setdefault(step, Place(step))
            place.gap_bytes = max(place.gap_bytes, before - alive[-1].after_bytes)
            root, root_before = alive[0].root, alive[0].root_before_bytes
        else:
            place = root = self.roots.setdefault(step, Place(step))
            root_before = before
        op_step = step.choose(place, before, step.settings.device_bytes(root_before, root), is_inner=bool(alive))
        outputs, frame = op_step.forward(arguments)
        flight = Flight(place, op_step, frame, root_before, self.meter.current_bytes(), root)
        self.flights.append(weakref.ref(flight))
        self.resume()
        return outputs, flight

    def backward(self, flight: Flight, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        if self.alive() and self.alive()[-1] is flight:
            self.pause()
        place = flight.place
        alive = self.alive()
        inner = alive[alive.index(flight) + 1 :] if flight in alive else []
        self.flights = [one for one in self.flights if one() is not flight]
        given: list[StorageWeakRef] = []
        if place.backwards < _LEARNING_STEPS:
            given_bytes = _bytes_of(gradients)
            left = self.meter.current_bytes() - flight.after_bytes - given_bytes
            if inner:
                place.is_crossed = True
                left -= inner[-1].after_bytes - flight.after_bytes
            known = place.own_rest
            peak = max(known.peak_bytes, left + given_bytes)
            place.own_rest = known._replace(peak_bytes=peak, left_bytes=max(known.left_bytes, left))
            place.backwards += 1
            large = [one for one in gradients if one is not None and one.numel() > 1]
            given = [StorageWeakRef(one.untyped_storage()) for one in large]
            del large
        results = flight.op_step.backward(flight.frame, gradients)
        made = {one.untyped_storage()._cdata for one in results if one is not None} if given else set()
        if any(not one.expired() and one.cdata not in made for one in given):
            place.own_rest = place.own_rest._replace(is_held=True)
        self.resume()
        return results

    def _learn(self, flight: Flight) -> None:
        known = flight.place.own_rest
        peak = max(known.peak_bytes, self.meter.peak_bytes() - flight.after_bytes)
        flight.place.own_rest = known._replace(peak_bytes=peak)


def _bytes_of(tensors: list[torch.Tensor | None]) -> int:
    storages = {one.untyped_storage()._cdata: one.untyped_storage() for one in tensors if one is not None}
    return sum(_C.allocated_bytes(one.nbytes(), one.device) for one in storages.values())


_devices: dict[torch.device, Device] = {}


def flights_on(device: torch.device) -> Device:
    if device not in _devices:
        _devices[device] = Device(device)
    return _devices[device]


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Around work that no later step does."""
    for device in _devices.values():
        device.pause()
    try:
        yield
    finally:
        for device in _devices.values():
            device.resume()
