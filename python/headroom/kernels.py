"""Steps that Inductor compiles: planned, tried and set right until their real peak is under the budget."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from headroom import _C
from headroom.aot import BudgetError, Planned, Settings, _specialize, meter_of, too_small
from headroom.capture import is_tensor
from headroom.entrance import count_graph
from headroom.flight import unwatched
from headroom.inductor import Partitioner, copy_of
from headroom.ordering import KeepDraws, KeepOrder
from headroom.trial import Arguments, find_changed, hidden, try_step

_log = logging.getLogger(__name__)

# The partition is made when its halves are compiled, and is no part of what Inductor's cache goes by.
_PARTITIONED = {"custom_partitioner_fn": None, "_pre_fusion_custom_pass": KeepDraws()}
# What is worth storing the plan knows: Inductor is not to store of its own accord what kernels compute inside. And what
# is dropped is to be free: Inductor would hold on to memory that it has a use for later, however much later.
_AS_PLANNED = {
    **_PARTITIONED,
    **dict.fromkeys(("realize_reads_threshold", "realize_acc_reads_threshold", "realize_opcount_threshold"), 1000),
    "allow_buffer_reuse": False,
    "_pre_fusion_custom_pass": KeepOrder(),
}


def compiler_for(partitioner: Partitioner) -> Callable[..., Any]:
    """Inductor's compilation of one half of a step.

    By a plan, what it stores is stored and nothing else, and convolutions that backward runs again are laid out as
    forward's are: Inductor decides by the graph whether they are to be channels-last, and few of them in a large
    backward are not, though what they read is. By PyTorch's own partition all is as without a budget.
    """
    is_channels_last: bool | None = None

    def compile_one(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        nonlocal is_channels_last
        is_planned = partitioner.schedule is not None
        if is_planned and not options.get("is_backward"):
            is_channels_last = GraphLowering.decide_layout_opt(gm, is_inference=False)
        elif is_planned and gm.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
            options["layout_opt"] = is_channels_last
        with inductor_config.patch(_AS_PLANNED if is_planned else _PARTITIONED):
            return compile_fx_inner(gm, inputs, **options)

    return compile_one


def compile_static(gm: fx.GraphModule, fakes: Sequence[Any], *options: Any) -> Callable[..., Any]:
    """By Inductor for arguments like these, with its cache, which asks what is known of shapes.

    One thread at a time compiles: Dynamo's lock is held, as what PyTorch keeps of a compilation is shared by threads.
    """
    mode = next((one.fake_mode for one in fakes if is_tensor(one)), None)
    with compile_lock, tracing(TracingContext(mode)):
        return compile_fx(copy_of(gm), fakes, *options)


def make_fakes(arguments: Sequence[Any]) -> list[Any]:
    """Returns stand-ins without memory, of these shapes alone."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    return [mode.from_tensor(one, static_shapes=True) if is_tensor(one) else one for one in arguments]


# A real peak this far below the predicted one is worth one more compilation.
_LOOSE = 0.95
_MOST_TRIALS = 4


@dataclass
class Chosen:
    """A compiled step, and what is known of it."""

    run: Callable[..., Any]
    partitioner: Partitioner | None = None  # None: nothing in it takes a gradient
    added_bytes: int = 0  # at most, beyond what was there before, in the trial
    excess_bytes: int = 0  # of real peaks over simulated ones, as far as was known when it was planned
    trials: int = 0  # until it was chosen

    def fits(self) -> bool:
        if self.partitioner is None or self.partitioner.settings.budget is None:
            return True
        return self.added_bytes <= self.partitioner.allowed_bytes()

    def planned(self) -> Planned:
        by = self.partitioner
        # Of PyTorch's own partition only the trial knows.
        predicted = self.added_bytes if by.schedule is None else by.planned_bytes() + self.excess_bytes
        return Planned(predicted, by.allowed_bytes(), by.time_ns, by.step.plain_time_ns, self.added_bytes, self.trials)


def choose(
    gm: fx.GraphModule, arguments: Sequence[Any], settings: Settings, excess_bytes: int, most_bytes: int | None
) -> Chosen:
    """Plans, compiles and tries a step until its real peak is under the budget; once more if it is far below.

    Where nothing is, what was found last does not fit.
    """
    tensors = [one for one in arguments if is_tensor(one)]
    device = device_of(tensors)
    if not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors)):
        return Chosen(compile_static(gm, make_fakes(arguments)))
    trial_arguments = Arguments(arguments, find_changed(gm, make_fakes(arguments)))
    best: Chosen | None = None
    by_plan = False
    for trial in range(_MOST_TRIALS):
        # The last one is for what takes least, where nothing else fits.
        excess = excess_bytes if best is not None or trial + 1 < _MOST_TRIALS else None
        partitioner = Partitioner(settings, outside_bytes(tensors, device), excess, most_bytes, by_plan=by_plan)
        patches = {"custom_partitioner_fn": partitioner}
        before = meter_of(device).current_bytes()
        # Without AOTAutograd's cache, which goes by the graph before the partition.
        with torch._functorch.config.patch(enable_autograd_cache=False):
            compiled = compile_static(gm, make_fakes(arguments), compiler_for(partitioner), patches)
        left_by_compiling = meter_of(device).current_bytes() - before
        added, left = try_step(compiled, trial_arguments, device)
        if partitioner.step is None:
            return Chosen(compiled)
        partitioner.set_aside(left_by_compiling + left)
        found = Chosen(compiled, partitioner, added, excess_bytes)
        by = (
            "PyTorch's own partition"
            if partitioner.schedule is None
            else f"a plan of {partitioner.planned_bytes()} bytes"
        )
        given = (by, added, partitioner.allowed_bytes(), left_by_compiling, left)
        _log.info("%s took %d bytes of %d; %d stayed after compiling, %d after running", *given)
        if found.fits() and (best is None or added > best.added_bytes):
            best = found
        if partitioner.schedule is None:  # PyTorch's own partition, of which the simulation knows nothing
            if found.fits():
                break
            by_plan = True
            continue
        simulated = partitioner.planned_bytes()
        is_close = added >= _LOOSE * (simulated + excess_bytes)
        if (found.fits() and (is_close or trial > 0)) or (best is not None and best is not found):
            break
        if not found.fits() and partitioner.is_smallest:
            break
        excess_bytes = added - simulated
    return replace(found if best is None else best, trials=trial + 1)


# Steps in which the peak is measured. On a GPU that starts the device's one peak anew, so it must end.
_LEARNING_STEPS = 3


class Kernels:
    """One graph of Dynamo's. Compiled in the first call, and anew when what was chosen has no room any more.

    A trial knows neither of the graphs that run between this one's forward and backward nor of what else does. So in
    the first steps the peak from the forward of the outermost graph to the end of its backward is measured; where it
    is over the budget, or a graph in it has no room, the outermost is planned anew with less.
    """

    def __init__(self, gm: fx.GraphModule, settings: Settings) -> None:
        _specialize([node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")])
        self.gm = gm
        self.settings = settings
        self.lock = threading.RLock()  # of what follows
        self.asked: deque[int] = deque()  # bytes that it is to take less, by others and by backwards on any thread
        self.chosen: Chosen | None = None
        self.most_bytes: int | None = None  # that it may add; None: what the budget allows
        self.is_good = False  # what was chosen need not be planned anew, as far as is known
        self.steps = 0

    def __call__(self, *arguments: Any) -> Any:
        count_graph()
        device = device_of([one for one in arguments if is_tensor(one)])
        flights = flights_of_this_thread(self.settings, device)
        outer = flights[0] if flights else None
        limit = self.settings.limit_bytes()
        before = meter_of(device).current_bytes()
        with self.lock:
            while self.asked:
                self.take_less(self.asked.popleft())
            if self.chosen is None or not self.is_good or not self.has_room(limit, before):
                self.plan(arguments, outer)
            chosen = self.chosen
            has_limit = limit is not None and chosen.partitioner is not None
            is_watched = has_limit and outer is None and self.steps < _LEARNING_STEPS
            self.steps += is_watched
        flight = Flight(self, device, before, is_watched=is_watched)
        histories = {one.grad_fn for one in arguments if is_tensor(one)}
        results = chosen.run(*arguments)
        node = compiled_node([*pytree.tree_leaves(results), *arguments], histories)
        if node is not None:
            flight.begin(node)
        return results

    def has_room(self, limit: int | None, before_bytes: int) -> bool:
        return limit is None or self.chosen.partitioner is None or before_bytes + self.chosen.added_bytes <= limit

    def plan(self, arguments: Sequence[Any], outer: Flight | None) -> None:
        excess = self.chosen.excess_bytes if self.chosen is not None else 0
        with unwatched(), watches_paused(), hidden():
            self.chosen = choose(self.gm, arguments, self.settings, excess, self.most_bytes)
        self.is_good = self.chosen.fits()
        if not self.is_good:
            error = self.error()
            if outer is None or self.settings.limit_bytes() is None:
                raise error
            outer.kernels.leave_room(outer, self.chosen)
            warnings.warn(f"headroom: over the budget in this step, until it is planned again: {error}", stacklevel=2)
        elif self.chosen.partitioner is not None and self.settings.on_plan is not None:
            self.settings.on_plan(self.chosen.planned())

    def error(self) -> BudgetError:
        by = self.chosen.partitioner  # of the smallest plan: the last one that is tried
        smallest = by.resident_bytes + self.chosen.added_bytes + by.left_bytes
        return too_small(self.settings, by.step.problem, by.step.graph, smallest, by.outside_bytes)

    def leave_room(self, flight: Flight, inner: Chosen) -> None:
        """Takes less from the next step on, so that both lose the same share of what they would take."""
        by = inner.partitioner
        kept = flight.after_bytes - flight.before_bytes
        wanted = by.step.store_all_bytes - by.resident_bytes
        free = self.settings.limit_bytes() - flight.before_bytes
        fair = int(kept * (kept + wanted - free) / max(kept + wanted, 1))
        self.asked.append(max(fair, kept + inner.added_bytes - free))

    def take_less(self, less_bytes: int) -> None:
        if less_bytes > 0:
            most = max(self.chosen.added_bytes - less_bytes, 0)
            # It may be asked more than once before it is planned anew.
            self.most_bytes = most if self.most_bytes is None else min(most, self.most_bytes)
            self.is_good = False


class Flight:
    """One forward that waits for its backward, which may run on another thread."""

    def __init__(self, kernels: Kernels, device: torch.device, before_bytes: int, *, is_watched: bool) -> None:
        self.kernels = kernels
        self.device = device
        self.before_bytes = before_bytes  # on the device before forward
        self.after_bytes = before_bytes  # on the device after forward
        self.meter = _C.Meter(device) if is_watched else None  # its own, whose peak nobody else starts anew
        self.peak_bytes = 0  # on the device, as far as it was measured before the last pause
        self.node: weakref.ref[Any] | None = None  # of autograd: its backward
        if is_watched:
            with _watched_lock:
                _watched.add(self)

    def begin(self, node: Any) -> None:
        self.after_bytes = meter_of(self.device).current_bytes()
        self.node = weakref.ref(node)
        _in_flight().append(self)
        node.register_hook(lambda *_: self.end())

    def is_alive(self) -> bool:
        return self.node is not None and self.node() is not None

    def end(self) -> None:
        """Called when backward has run; what keeps the results keeps no flight.

        Waits for no lock: on a GPU one thread runs the backwards of all, a trial's included.
        """
        self.node = None
        self.pause()
        meter, self.meter = self.meter, None
        if meter is not None:
            self.kernels.asked.append(self.peak_bytes - self.kernels.settings.limit_bytes())

    def pause(self) -> None:
        if (meter := self.meter) is not None:
            self.peak_bytes = max(self.peak_bytes, meter.peak_bytes())

    def resume(self) -> None:
        if (meter := self.meter) is not None:
            meter.reset_peak()


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


@contextlib.contextmanager
def watches_paused() -> Iterator[None]:
    """Around compilations and trials, which no later step does: they count in no peak that is measured meanwhile.

    One thread at a time is in it, as trials measure memory too.
    """
    with _trials_lock:
        with _watched_lock:
            flights = list(_watched)
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


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    return next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))


def outside_bytes(tensors: Sequence[torch.Tensor], device: torch.device) -> int:
    """What is on the device beside these."""
    storages = {one.untyped_storage()._cdata: one for one in tensors if one.device == device}
    inside = sum(_C.allocated_bytes(one.untyped_storage().nbytes(), device) for one in storages.values())
    return meter_of(device).current_bytes() - inside
