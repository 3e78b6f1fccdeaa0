"""Forwards of Inductor's steps that wait for their backwards, and their measurements."""

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
    """A forward that waits for its backward, which may run on another thread."""

    def __init__(self, kernels: Kernels, chosen: Chosen, device: torch.device, *, is_watched: bool) -> None:
        self.kernels = kernels
        self.chosen = chosen
        self.device = device
        self.before_bytes = meter_of(device).current_bytes()
        self.after_bytes = self.before_bytes  # Bytes in use on the device after forward.
        self.meter = _C.Meter(device) if is_watched else None
        self.is_paused = False
        self.is_backward = False  # Whether its backward has begun.
        self.thread = threading.get_ident()  # Thread of its forward.
        self.peak_bytes = 0  # Largest recorded peak of the device in the current part of the step.
        self.forward_peak_bytes = 0
        self.rest = Rest()
        self.node: weakref.ref[Any] | None = None  # Autograd's node for its backward.
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
        # A post hook would make the engine hold the gradients that the hook is given.
        node.register_prehook(self.begin_backward)

    def is_alive(self) -> bool:
        return self.node is not None and self.node() is not None

    def begin_backward(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Records the peak since forward and the bytes that were left.

        It waits only for locks that are held briefly: on a GPU one thread runs all backwards, including a trial's.
        """
        self.node = None  # What keeps the results alive must not keep the flight.
        if self.meter is None or self.is_backward:
            return
        with _watched_lock:
            others = [flight for flight in _watched if flight.is_backward and flight.thread == self.thread]
        for other in others:
            other.end()
        gradient_bytes = _C.storage_bytes(list(gradients))
        peak = max(self.take_peak() - self.after_bytes, gradient_bytes)
        left = meter_of(self.device).current_bytes() - self.after_bytes - gradient_bytes
        self.rest = Rest(peak, max(left, 0))
        self.is_backward = True
        torch.autograd.Variable._execution_engine.queue_callback(self.end)

    def end(self) -> None:
        """Ends the measurement, when all of backward has run or before the next graph's backward."""
        if self.meter is None:
            return
        backward_peak = self.take_peak()
        self.meter = None
        with _watched_lock:
            _watched.discard(self)
        known = self.before_bytes + self.chosen.trial.added_bytes
        left = self.rest.left_bytes
        # Bytes that the trial did not have, for instance copies of gradients that come in another layout than there.
        unknown = max(self.forward_peak_bytes - known, backward_peak - known - left, 0)
        self.kernels.learned.append(self.rest._replace(left_bytes=left + unknown))

    def take_peak(self) -> int:
        """Returns the peak of the part of the step that ends here, and starts the next part."""
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
_watched: weakref.WeakSet[Flight] = weakref.WeakSet()  # Flights of all threads.
_watched_lock = threading.Lock()


def _in_flight() -> list[Flight]:
    """Returns the flights of this thread's forwards, outermost first."""
    if not hasattr(_threads, "flights"):
        _threads.flights = []
    return _threads.flights


def flights_of_this_thread(settings: Settings, device: torch.device) -> list[Flight]:
    """Returns this thread's flights that share a budget: of one compiled model, which has one Settings object."""
    flights = _in_flight()
    flights[:] = [flight for flight in flights if flight.is_alive()]
    return [flight for flight in flights if flight.device == device and flight.kernels.settings is settings]


def note_peaks() -> None:
    """Records the peaks of all watched flights and resets them together: on a GPU they share one counter."""
    with _watched_lock:
        flights = [flight for flight in _watched if not flight.is_paused]
    for flight in flights:
        flight.pause()
    for flight in flights:
        flight.resume()


@contextlib.contextmanager
def watches_paused() -> Iterator[None]:
    """Returns a context for compilations and trials, whose memory counts in no measured peak.

    No later step repeats that memory. Only one thread at a time is in the context, since trials measure memory too.
    """
    with _trials_lock:
        with _watched_lock:
            flights = [flight for flight in _watched if not flight.is_paused]
        for flight in flights:
            flight.pause()
        try:
            yield
        finally:
            for flight in flights:
                flight.resume()


def may_have_history(argument: Any) -> bool:
    """Returns whether another graph may have computed an argument."""
    return is_tensor(argument) and argument.requires_grad and not isinstance(argument, torch.nn.Parameter)


def compiled_node(tensors: Sequence[Any], histories: set[Any]) -> Any:
    """Returns the autograd node of the compiled graph that computed some of these tensors, or None.

    Results may be views, whose own nodes come before it. `histories` are the nodes of the graph's arguments: nodes
    behind them are older than the graph.
    """
    stack = [tensor.grad_fn for tensor in tensors if is_tensor(tensor)]
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
