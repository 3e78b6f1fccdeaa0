"""Steps that Inductor compiles: planned, tried and set right until their real peak is under the budget."""

from __future__ import annotations

import copy
import gc
import logging
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
from headroom.budget.excess import named_bytes, varied_bytes
from headroom.budget.flight import unwatched
from headroom.budget.kernel_flight import Flight, compiled_node, flights_of_this_thread, watches_paused
from headroom.budget.meter import meter_of
from headroom.entrance import count_graph
from headroom.exec.inductor.ordering import KeepDraws, KeepOrder
from headroom.exec.inductor.partitioner import Partitioner, copy_of
from headroom.exec.inductor.trial import Arguments, Trial, find_changed, hidden, try_step
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import Rest
from headroom.graph.tracing import is_cut, specialize
from headroom.planning import BudgetError, Planned, too_small
from headroom.settings import Settings

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


def compiler_for(partitioner: Partitioner, codes: list[Any]) -> Callable[..., Any]:
    """Inductor's compilation of one half of a step, which adds what it compiles to `codes`.

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
            codes.append(compile_fx_inner(gm, inputs, **options))
        return codes[-1]

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
# Plans that are compiled and tried for one budget, beside PyTorch's own partition.
_MOST_TRIALS = 4
# What was compiled for a graph and is kept: a step that has its former room again runs what it ran then.
_MOST_KEPT = 8
# The part of its room that a step tried before must take for no other to be planned in its place.
_CLOSE = 0.9
# The part of the budget that must have become free before a step that recomputes is planned anew, and how often.
_MUCH_MORE = 0.05
_MOST_LOOSENINGS = 3


@dataclass
class Chosen:
    """A compiled step, and what is known of it."""

    run: Callable[..., Any]
    partitioner: Partitioner | None = None  # None: nothing in it takes a gradient
    trial: Trial = field(default_factory=Trial)
    expected_excess_bytes: int = 0  # of real peaks over simulated ones, as far as was known when it was planned
    trials: int = 0  # until it was chosen
    free_bytes: int = 0  # of the budget, when it was chosen

    @property
    def is_own(self) -> bool:
        """Whether it is split by PyTorch's own partition."""
        return self.partitioner is not None and self.partitioner.schedule is None

    @property
    def excess_bytes(self) -> int:
        """The real peak over the simulated one."""
        return self.peak_bytes(self.partitioner.rest) - self.partitioner.planned_bytes()

    def peak_bytes(self, rest: Rest) -> int:
        """Returns the bytes that a step adds at its peak, with this rest of the step."""
        return max(self.trial.added_bytes + rest.left_bytes, self.trial.held_bytes + rest.peak_bytes)

    def fits(self) -> bool:
        if self.partitioner is None or self.partitioner.settings.budget is None:
            return True
        peak = varied_bytes(self.peak_bytes(self.partitioner.rest), self.partitioner.step.captured.device)
        return self.trial.is_complete and peak <= self.partitioner.allowed_bytes()

    def recomputes(self) -> bool:
        by = self.partitioner
        return by is not None and by.schedule is not None and by.time_ns > by.step.plain_time_ns

    def planned(self) -> Planned:
        by = self.partitioner
        measured = self.peak_bytes(by.rest)
        # Of PyTorch's own partition only the trial knows.
        predicted = measured if self.is_own else by.planned_bytes() + self.expected_excess_bytes
        return Planned(predicted, by.allowed_bytes(), by.time_ns, by.step.plain_time_ns, measured, self.trials)


def choose(
    gm: fx.GraphModule, arguments: Sequence[Any], settings: Settings, rest: Rest | None, tried: list[Chosen]
) -> Chosen:
    """Plans, compiles and tries a step until its real peak is under the budget; once more if it is far below.

    Adds what it tries to `tried`, and learns from what is there. Where nothing fits, what was found last does not.
    """
    tensors = [one for one in arguments if is_tensor(one)]
    device = device_of(tensors)
    if not (torch.is_grad_enabled() and any(one.requires_grad for one in tensors)):
        return Chosen(compile_static(gm, make_fakes(arguments)))
    trial_arguments = Arguments(arguments, find_changed(gm, make_fakes(arguments)))
    # The next plan is to fit at once: a trial that is over the budget is memory that the user sees.
    complete = [one for one in tried if one.trial.is_complete and not one.is_own]
    excess_bytes = max([one.excess_bytes for one in complete], default=None)
    by_plan = _is_own_too_large(tried, settings, device)
    best: Chosen | None = None
    plans = trials = 0
    while True:
        trials += 1
        # The last one is for what takes least, where nothing else fits.
        expected_bytes = excess_bytes or 0
        excess = expected_bytes if best is not None or plans + 1 < _MOST_TRIALS else None
        outside = outside_bytes(tensors, device)
        partitioner = Partitioner(settings, outside, excess, rest, by_plan=by_plan, is_first=excess_bytes is None)
        patches = {"custom_partitioner_fn": partitioner}
        before = meter_of(device).current_bytes()
        codes: list[Any] = []
        # Without AOTAutograd's cache, which goes by the graph before the partition. Backward is compiled at once, and
        # not in the middle of the trial, where what compiling takes would come on top of saved tensors.
        with torch._functorch.config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True):
            compiled = compile_static(gm, make_fakes(arguments), compiler_for(partitioner, codes), patches)
        left_by_compiling = meter_of(device).current_bytes() - before
        trial = try_step(compiled, trial_arguments, device, codes, partitioner.trial_bytes(left_by_compiling))
        if partitioner.step is None:
            return Chosen(compiled)
        partitioner.set_aside(left_by_compiling + trial.left_bytes)
        found = Chosen(compiled, partitioner, trial, expected_bytes)
        tried.append(found)
        peak = found.peak_bytes(partitioner.rest)
        by = "PyTorch's own partition" if found.is_own else f"a plan of {partitioner.planned_bytes()} bytes"
        took = "took" if trial.is_complete else "was stopped at"
        given = (by, took, peak, partitioner.allowed_bytes(), left_by_compiling, trial.left_bytes)
        _log.info("%s %s %d bytes of %d; %d stayed after compiling, %d after running", *given)
        if found.fits() and (best is None or peak > best.peak_bytes(best.partitioner.rest)):
            best = found
        if not trial.is_complete:
            gc.collect()  # what its frames held
        if found.is_own:  # of which the simulation knows little
            if found.fits():
                break
            by_plan = True
            continue
        plans += 1
        is_close = peak >= _LOOSE * (partitioner.aimed_bytes() + expected_bytes)
        if (found.fits() and (is_close or plans > 1)) or (best is not None and best is not found):
            break
        if plans == _MOST_TRIALS or (not found.fits() and partitioner.is_smallest):
            break
        excess_bytes = found.excess_bytes if trial.is_complete else 2 * found.excess_bytes
    return replace(found if best is None else best, trials=trials)


def _is_own_too_large(tried: Sequence[Chosen], settings: Settings, device: torch.device) -> bool:
    """Whether PyTorch's own partition was tried and need not be compiled again: stopped trials say less."""
    limit = settings.limit_bytes()
    room = None if limit is None else limit - meter_of(device).current_bytes()
    return any(
        one.is_own and (one.trial.is_complete or room is None or room <= one.partitioner.allowed_bytes())
        for one in tried
    )


# Steps after a plan in which the rest of the step is measured, and in how many at most. On a GPU that starts the
# device's one peak anew, so it must end.
_LEARNING_STEPS = 3
_MOST_LEARNING_STEPS = 10


class Kernels:
    """One graph of Dynamo's. Compiled in the first call, and anew when what was chosen has no room any more.

    A trial knows neither of the graphs that run between this one's forward and backward nor of what else does, such as
    a loss. A plan assumes an ordinary loss at first; in the first steps that rest of the step is measured, and is part
    of every plan from then on. Where a graph in it has no room, this one is planned anew with less.
    """

    def __init__(self, gm: fx.GraphModule, settings: Settings) -> None:
        specialize([node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")])
        self.gm = gm
        self.settings = settings
        self.lock = threading.RLock()  # of what follows
        self.learned: deque[Rest] = deque()  # by backwards on any thread
        self.asked: deque[int] = deque()  # bytes for the rest of the step, by graphs that had no room in it
        self.device: torch.device | None = None  # None: not called yet
        self.with_history: list[int] = []  # positions of arguments that other graphs may have made
        self.chosen: Chosen | None = None
        self.tried: list[Chosen] = []
        self.rest: Rest | None = None  # None: not known yet
        self.wanted_bytes = 0  # for the rest of the step
        self.inner: weakref.WeakSet[Kernels] = weakref.WeakSet()  # graphs that have run in the rest of the step
        self.is_good = False  # what was chosen need not be planned anew, as far as is known
        self.steps = 0  # that were watched since the last plan
        self.watches = 0
        self.loosenings = 0

    def __call__(self, *arguments: Any) -> Any:
        count_graph()
        if self.device is None:  # Dynamo's guards have it hold for all calls.
            self.device = device_of([one for one in arguments if is_tensor(one)])
            self.with_history = [i for i, one in enumerate(arguments) if _may_have_history(one)]
        device = self.device
        flights = flights_of_this_thread(self.settings, device)
        limit = self.settings.limit_bytes()
        meter = meter_of(device)
        with self.lock:
            self.learn()
            for outer in flights:
                outer.kernels.inner.add(self)
            if self.chosen is None or not self.is_good or not self.has_room(limit, meter):
                self.plan(arguments, flights[0] if flights else None)
            elif self.has_much_more(limit, meter.current_bytes()):
                self.loosenings += 1
                self.plan(arguments, flights[0] if flights else None)
            chosen = self.chosen
            has_limit = limit is not None and chosen.partitioner is not None
            is_watched = has_limit and self.steps < _LEARNING_STEPS and self.watches < _MOST_LEARNING_STEPS
            self.steps += is_watched
            self.watches += is_watched
        flight = Flight(self, chosen, device, is_watched=is_watched)
        histories = {arguments[i].grad_fn for i in self.with_history}
        results = chosen.run(*arguments)
        node = compiled_node(pytree.tree_leaves(results), histories) or compiled_node(arguments, histories)
        if node is not None:
            flight.begin(node)
        return results

    def learn(self) -> None:
        """Takes over what was measured and asked for since the last call."""
        while self.learned:
            rest = self.learned.popleft()
            known = rest if self.rest is None else self.rest
            self.rest = Rest(max(rest.peak_bytes, known.peak_bytes), max(rest.left_bytes, known.left_bytes))
        while self.asked:
            self.wanted_bytes = max(self.wanted_bytes, self.asked.popleft())
            self.is_good = False

    def peak_bytes(self, chosen: Chosen) -> int:
        """Returns the bytes that a step adds at its peak, as far as the rest of the step is known."""
        return chosen.peak_bytes(chosen.partitioner.rest if self.rest is None else self.rest)

    def has_room(self, limit: int | None, meter: _C.Meter) -> bool:
        if limit is None or self.chosen.partitioner is None:
            return True
        room = limit - self.peak_bytes(self.chosen)
        if meter.current_bytes() <= room:
            return True
        gc.collect()  # What nobody has any more counts as memory in use until then.
        return meter.current_bytes() <= room

    def has_much_more(self, limit: int | None, before_bytes: int) -> bool:
        """Whether a step that recomputes has much more room than when it was chosen."""
        if limit is None or self.loosenings == _MOST_LOOSENINGS or self.steps < _LEARNING_STEPS:
            return False
        free = limit - before_bytes - self.peak_bytes(self.chosen) if self.chosen.recomputes() else 0
        return free > self.chosen.free_bytes + _MUCH_MORE * limit

    def plan(self, arguments: Sequence[Any], outer: Flight | None) -> None:
        gc.collect()
        limit = self.settings.limit_bytes()
        device = device_of([one for one in arguments if is_tensor(one)])
        with unwatched(), watches_paused(), hidden():
            for rest in self.rests():
                chosen = self.find_tried(limit, device, rest)
                if chosen is None:
                    chosen = choose(self.gm, arguments, self.settings, rest, self.tried)
                    gc.collect()
                del self.tried[:-_MOST_KEPT]
                self.chosen = chosen
                self.is_good = chosen.fits()
                if self.is_good:
                    break
        self.steps = 0
        if not self.is_good:
            error = self.error()
            if outer is None or limit is None:
                raise error
            outer.kernels.leave_room(outer, self.chosen)
            warnings.warn(f"headroom: over the budget in this step, until it is planned again: {error}", stacklevel=2)
        elif self.chosen.partitioner is not None:
            if limit is not None:
                if self.rest is not None:
                    self.rest = self.chosen.partitioner.rest
                self.chosen.free_bytes = limit - meter_of(device).current_bytes() - self.peak_bytes(self.chosen)
            if self.settings.on_plan is not None:
                self.settings.on_plan(self.chosen.planned())

    def rests(self) -> list[Rest | None]:
        """Returns the rests of the step to plan with, each where nothing fits beside the one before it.

        The last leaves the graphs in it as little as they can run with.
        """
        if self.settings.limit_bytes() is None:
            return [Rest()]
        if self.rest is None:
            return [None]
        spare = sum(one.spare_bytes() for one in self.inner if one is not self)
        wanted = self.rest._replace(peak_bytes=max(self.rest.peak_bytes, self.wanted_bytes))
        least = self.rest._replace(peak_bytes=max(self.rest.peak_bytes - spare, self.rest.left_bytes))
        return list(dict.fromkeys([wanted, least]))

    def spare_bytes(self) -> int:
        """Returns the bytes that it takes beyond its smallest plan."""
        chosen = self.chosen
        if chosen is None or chosen.partitioner is None:
            return 0
        excess = 0 if chosen.is_own else max(chosen.excess_bytes, 0)
        return max(self.peak_bytes(chosen) - excess - chosen.partitioner.smallest_bytes(), 0)

    def find_tried(self, limit: int | None, device: torch.device, rest: Rest | None) -> Chosen | None:
        """Returns what was tried before and is good for this room: PyTorch's own partition, or a plan that fills it."""
        if limit is None or rest is None:
            return None
        room = limit - meter_of(device).current_bytes()
        fitting = [one for one in self.tried if one.trial.is_complete and one.peak_bytes(rest) <= room]
        best = min(fitting, key=lambda one: (not one.is_own, one.partitioner.time_ns), default=None)
        if best is None or not (best.is_own or best.peak_bytes(rest) >= _CLOSE * room):
            return None
        by = copy.copy(best.partitioner)
        by.rest, by.budget_bytes = rest, by.resident_bytes + room
        return replace(best, partitioner=by)

    def error(self) -> BudgetError:
        by = self.chosen.partitioner  # of the smallest plan: the last one that is tried
        # The results of a step are often there until the next one has made its own.
        smallest = named_bytes(self.chosen.peak_bytes(by.rest), by.step.captured.device)
        smallest += by.resident_bytes + by.step.result_bytes
        given = (self.settings, by.step.problem, by.step.graph, smallest, by.outside_bytes)
        is_first = is_cut(self.gm) and self.rest is None
        return too_small(*given, rest_bytes=by.rest.peak_bytes, is_first_of_several=is_first)

    def leave_room(self, flight: Flight, inner: Chosen) -> None:
        """Leaves more for the rest of the step from the next one on, so that both lose the same share."""
        by = inner.partitioner
        kept = flight.after_bytes - flight.before_bytes
        wanted = by.step.store_all_bytes - by.resident_bytes
        free = self.settings.limit_bytes() - flight.before_bytes
        fair = int(kept * (kept + wanted - free) / max(kept + wanted, 1))
        less = max(fair, kept + inner.peak_bytes(by.rest) - free)
        self.asked.append(free - kept + max(less, 0))


def _may_have_history(argument: Any) -> bool:
    return is_tensor(argument) and argument.requires_grad and not isinstance(argument, torch.nn.Parameter)


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    return next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))


def outside_bytes(tensors: Sequence[torch.Tensor], device: torch.device) -> int:
    """What is on the device beside these."""
    storages = {one.untyped_storage()._cdata: one for one in tensors if one.device == device}
    inside = sum(_C.allocated_bytes(one.untyped_storage().nbytes(), device) for one in storages.values())
    return meter_of(device).current_bytes() - inside
