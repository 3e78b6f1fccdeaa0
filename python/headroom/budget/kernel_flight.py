"""Forwards of Inductor's steps that wait for their backwards, and what is measured of them."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headroom import _C
from headroom.budget.meter import meter_of
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import Rest
from headroom.settings import Settings

if TYPE_CHECKING:
    from headroom.exec.inductor.kernels import Chosen, Kernels


class Flight:
    """One forward that waits for its backward, which may run on another thread."""

    def __init__(self, kernels: Kernels, chosen: Chosen, device: torch.device, *, is_watched: bool) -> None:
        self.kernels = kernels
        self.chosen = chosen
        self.device = device
        self.before_bytes = meter_of(device).current_bytes()
        self.after_bytes = self.before_bytes  # on the device after forward
        self.meter = _C.Meter(device) if is_watched else None
        self.is_paused = False
        self.is_backward = False  # its backward has begun
        self.thread = threading.get_ident()  # of its forward
        self.peak_bytes = 0  # on the device, as far as it was noted, in this part of the step
        self.forward_peak_bytes = 0
        self.rest = Rest()
        self.node: weakref.ref[Any] | None = None  # of autograd: its backward
        if is_watched:
            with _watched_lock:
                _watched.add(self)
            note_peaks()

    def begin(self, node: Any) -> None:
        self.after_bytes = meter_of(self.device).current_bytes()
        self.node = weakref.ref(node)
        _in_flight().append(self)
        if self.meter is not None:
            self.forward_peak_bytes = self.take_peak()
        # A hook that is called after it would have the engine hold the gradients that it is given.
        node.register_prehook(self.begin_backward)

    def is_alive(self) -> bool:
        return self.node is not None and self.node() is not None

    def begin_backward(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Notes what was done since forward, and what that left.

        Waits for no lock that is held for long: on a GPU one thread runs the backwards of all, a trial's included.
        """
        self.node = None  # What keeps the results keeps no flight.
        if self.meter is None or self.is_backward:
            return
        with _watched_lock:
            others = [one for one in _watched if one.is_backward and one.thread == self.thread]
        for other in others:
            other.end()
        given = _C.storage_bytes(list(gradients))
        peak = max(self.take_peak() - self.after_bytes, given)
        left = meter_of(self.device).current_bytes() - self.after_bytes - given
        self.rest = Rest(peak, max(left, 0))
        self.is_backward = True
        torch.autograd.Variable._execution_engine.queue_callback(self.end)

    def end(self) -> None:
        """Called when all of backward has run, or before the next graph's."""
        if self.meter is None:
            return
        backward_peak = self.take_peak()
        self.meter = None
        with _watched_lock:
            _watched.discard(self)
        known = self.before_bytes + self.chosen.trial.added_bytes
        left = self.rest.left_bytes
        # Copies of gradients that come in another layout than in the trial, for instance.
        unknown = max(self.forward_peak_bytes - known, backward_peak - known - left, 0)
        self.kernels.learned.append(self.rest._replace(left_bytes=left + unknown))

    def take_peak(self) -> int:
        """Returns the peak of the part of the step that ends here."""
        note_peaks()
        peak, self.peak_bytes = self.peak_bytes, 0
        return peak

    def pause(self) -> None:
        if (meter := self.meter) is not None and not self.is_paused:
            self.peak_bytes = max(self.peak_bytes, meter.peak_bytes())
            self.is_paused = True

    def resume(self) -> None:
        if (meter := self.meter) is not None:
            meter.reset_peak()
            self.is_paused = False


_threads = threading.local()
_trials_lock = threading.RLock()
_watched: weakref.WeakSet[Flight] = weakref.WeakSet()  # in all threads
_watched_lock = threading.Lock()


def _in_flight() -> list[Flight]:
    """Returns the flights of this thread's forwards, outermost first."""
    if not hasattr(_threads, "flights"):
        _threads.flights = []
    return _threads.flights


def flights_of_this_thread(settings: Settings, device: torch.device) -> list[Flight]:
    """Returns those that share a budget on the device: graphs of one compiled model, which have one Settings object."""
    flights = _in_flight()
    flights[:] = [one for one in flights if one.is_alive()]
    return [one for one in flights if one.device == device and one.kernels.settings is settings]


def note_peaks() -> None:
    """Notes the peaks of all flights that are watched, and starts them anew: on a GPU they are one and the same."""
    with _watched_lock:
        flights = [one for one in _watched if not one.is_paused]
    for flight in flights:
        flight.pause()
    for flight in flights:
        flight.resume()


@contextlib.contextmanager
def watches_paused() -> Iterator[None]:
    """Around compilations and trials, which no later step does: they count in no peak that is measured meanwhile.

    One thread at a time is in it, as trials measure memory too.
    """
    with _trials_lock:
        with _watched_lock:
            flights = [one for one in _watched if not one.is_paused]
        for flight in flights:
            flight.pause()
        try:
            yield
        finally:
            for flight in flights:
                flight.resume()


def compiled_node(tensors: Sequence[Any], histories: set[Any]) -> Any:
    """Returns the node of autograd that stands for a compiled graph which made some of these tensors.

    Results may be views, which have nodes of their own in front of it. `histories` are the nodes of the graph's
    arguments: what is behind them was there before.
    """
    stack = [one.grad_fn for one in tensors if is_tensor(one)]
    seen = set(histories) | {None}
    while stack:
        node = stack.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return node
        stack.extend(before for before, _ in node.next_functions)
    return None
