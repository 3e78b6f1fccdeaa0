"""Compiles a graph with Inductor, measures its peak, and replans until the peak is within the budget."""

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

from headroom import _C
from headroom._torch import (
    FakeTensorMode,
    ShapeEnv,
    TracingContext,
    aot_config,
    compile_lock,
    inductor_config,
    pytree,
    tracing,
)
from headroom._torch.inductor import GraphLowering, compile_fx, compile_fx_inner
from headroom.budget.errors import BudgetError, too_small
from headroom.budget.excess import named_bytes, varied_bytes
from headroom.budget.flight import unwatched
from headroom.budget.kernel_flight import (
    Flight,
    compiled_node,
    flights_of_this_thread,
    may_have_history,
    watches_paused,
)
from headroom.budget.meter import meter_of
from headroom.entrance import count_graph
from headroom.exec.inductor.aliases import watch_changes
from headroom.exec.inductor.ordering import KeepDraws, KeepOrder, mutations_kept
from headroom.exec.inductor.partitioner import Partitioner, copy_of
from headroom.exec.inductor.trial import Arguments, Trial, find_changed, hidden, try_step
from headroom.exec.refusals import refuse_unsupported_backwards
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import Rest
from headroom.graph.tracing import is_cut, specialize
from headroom.planning import Planned
from headroom.settings import Settings

_log = logging.getLogger(__name__)

# Inductor options for the forward and backward graphs of any partition. The partitioner has already run when they are
# compiled; it is removed so that it is no part of the key of Inductor's cache.
_PARTITIONED = {"custom_partitioner_fn": None, "_pre_fusion_custom_pass": KeepDraws()}
# Inductor options for a planned graph. The plan decides which results are stored, so Inductor's own thresholds for
# storing intermediate results are set out of reach. Buffer reuse is disabled, so that dropped buffers are freed:
# Inductor would otherwise keep a buffer until a later kernel reuses it.
_AS_PLANNED = {
    **_PARTITIONED,
    **dict.fromkeys(("realize_reads_threshold", "realize_acc_reads_threshold", "realize_opcount_threshold"), 1000),
    "allow_buffer_reuse": False,
    "_pre_fusion_custom_pass": KeepOrder(),
}


def compiler_for(partitioner: Partitioner, codes: list[Any]) -> Callable[..., Any]:
    """Returns Inductor's compiler for the forward or backward graph; it appends each compiled graph to `codes`.

    For a planned graph, Inductor stores exactly what the plan stores, and convolutions that backward recomputes get the
    layout that they have in forward. Inductor would decide per graph whether convolutions are channels-last, and in a
    large backward few of them are, though their inputs are. PyTorch's own partition is compiled as it is without a
    budget.
    """
    is_channels_last: bool | None = None

    def compile_one(gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        nonlocal is_channels_last
        is_planned = partitioner.schedule is not None
        if is_planned and not options.get("is_backward"):
            is_channels_last = GraphLowering.decide_layout_opt(gm, is_inference=False)
        elif is_planned and gm.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
            options["layout_opt"] = is_channels_last
        with inductor_config.patch(_AS_PLANNED if is_planned else _PARTITIONED), mutations_kept():
            codes.append(compile_fx_inner(gm, inputs, **options))
        return codes[-1]

    return compile_one


def compile_static(gm: fx.GraphModule, fakes: Sequence[Any], *options: Any) -> Callable[..., Any]:
    """Compiles a graph with Inductor for arguments of exactly these shapes.

    Inductor's cache needs the tracing context, which holds what is known of shapes. Only one thread compiles at a time,
    under Dynamo's lock, because PyTorch shares the state of a compilation among threads.
    """
    mode = next((fake.fake_mode for fake in fakes if is_tensor(fake)), None)
    with compile_lock, tracing(TracingContext(mode)):
        return compile_fx(copy_of(gm), fakes, *options)


def make_fakes(arguments: Sequence[Any]) -> list[Any]:
    """Returns fake tensors, which have no memory, with the static shapes of the arguments."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    return [
        mode.from_tensor(argument, static_shapes=True) if is_tensor(argument) else argument for argument in arguments
    ]


# Share of the predicted peak. A plan whose measured peak is below it wastes budget, and is worth one more compilation.
_LOOSE = 0.95
# Maximum number of plans that are compiled and tried for one budget, beside PyTorch's own partition.
_MOST_TRIALS = 4
# Maximum number of compiled steps that are kept for one graph, so that a step whose available memory returns to an
# earlier value runs what it ran then.
_MOST_KEPT = 8
# Share of the available memory that the peak of a plan tried earlier must reach; otherwise a new plan is made.
_CLOSE = 0.9
# Share of the budget that must have become free before a step that recomputes is planned again.
_MUCH_MORE = 0.05
# Maximum number of times that a graph is planned again because memory became free.
_MOST_LOOSENINGS = 3


@dataclass
class Chosen:
    """A compiled step and its measurements."""

    run: Callable[..., Any]
    partitioner: Partitioner | None = None  # None: nothing in the step takes a gradient.
    trial: Trial = field(default_factory=Trial)
    expected_excess_bytes: int = 0  # Excess of the measured over the simulated peak that the plan assumed.
    trials: int = 0  # Trials until this step was chosen.
    free_bytes: int = 0  # Bytes of the budget that were free when this step was chosen.
    aliased: list[int] | None = None  # See watch_changes(); None: not known yet.

    @property
    def is_own(self) -> bool:
        """Returns whether the step is split by PyTorch's own partition."""
        return self.partitioner is not None and self.partitioner.schedule is None

    @property
    def excess_bytes(self) -> int:
        """Returns the measured peak minus the simulated peak, in bytes."""
        return self.peak_bytes(self.partitioner.rest) - self.partitioner.planned_bytes()

    def peak_bytes(self, rest: Rest) -> int:
        """Returns the bytes that a step adds at its peak, beside this rest of the step."""
        return max(self.trial.added_bytes + rest.left_bytes, self.trial.held_bytes + rest.peak_bytes)

    def fits(self) -> bool:
        if self.partitioner is None or self.partitioner.settings.budget is None:
            return True
        peak = varied_bytes(self.peak_bytes(self.partitioner.rest), self.partitioner.step.captured.device)
        return self.trial.is_complete and peak <= self.partitioner.allowed_bytes()

    def recomputes(self) -> bool:
        partitioner = self.partitioner
        return (
            partitioner is not None
            and partitioner.schedule is not None
            and partitioner.time_ns > partitioner.step.plain_time_ns
        )

    def planned(self) -> Planned:
        partitioner = self.partitioner
        measured = self.peak_bytes(partitioner.rest)
        # The simulation does not cover PyTorch's own partition, so the measured peak is the prediction.
        predicted = measured if self.is_own else partitioner.planned_bytes() + self.expected_excess_bytes
        return Planned(
            predicted,
            partitioner.allowed_bytes(),
            partitioner.time_ns,
            partitioner.step.plain_time_ns,
            measured,
            self.trials,
        )


def choose(
    gm: fx.GraphModule, arguments: Sequence[Any], settings: Settings, rest: Rest | None, tried: list[Chosen]
) -> Chosen:
    """Plans, compiles and tries a step until its measured peak is within the budget.

    If the measured peak of the first plan is far below its predicted one, one more plan is tried. Every compiled step
    is appended to `tried`, and the steps already in `tried` supply the assumed excess. If no step fits, returns the
    last one, which does not fit.
    """
    tensors = [tensor for tensor in arguments if is_tensor(tensor)]
    device = device_of(tensors)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return Chosen(compile_static(gm, make_fakes(arguments)))
    trial_arguments = Arguments(arguments, find_changed(gm, make_fakes(arguments)))
    # Assume the largest excess measured so far, so that the next plan fits at once: the user sees the memory of a trial
    # that exceeds the budget.
    complete = [candidate for candidate in tried if candidate.trial.is_complete and not candidate.is_own]
    excess_bytes = max([candidate.excess_bytes for candidate in complete], default=None)
    by_plan = _is_own_too_large(tried, settings, device)
    best: Chosen | None = None
    plans = trials = 0
    while True:
        trials += 1
        # The last trial is of the plan with the smallest peak, if nothing else has fitted.
        expected_bytes = excess_bytes or 0
        excess = expected_bytes if best is not None or plans + 1 < _MOST_TRIALS else None
        outside = outside_bytes(tensors, device)
        partitioner = Partitioner(settings, outside, excess, rest, by_plan=by_plan, is_first=excess_bytes is None)
        patches = {"custom_partitioner_fn": partitioner}
        before = meter_of(device).current_bytes()
        codes: list[Any] = []
        # AOTAutograd's cache is off, because its key is the graph before partitioning. Backward is compiled together
        # with forward, not in the middle of the trial, where the memory that compilation needs would add to the saved
        # activations.
        with aot_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True):
            compiled = compile_static(gm, make_fakes(arguments), compiler_for(partitioner, codes), patches)
        left_by_compiling = meter_of(device).current_bytes() - before
        trial = try_step(compiled, trial_arguments, device, codes, partitioner.trial_bytes(left_by_compiling))
        if partitioner.step is None:
            return Chosen(compiled)
        partitioner.set_aside(left_by_compiling + trial.left_bytes)
        candidate = Chosen(compiled, partitioner, trial, expected_bytes)
        tried.append(candidate)
        peak = candidate.peak_bytes(partitioner.rest)
        name = "PyTorch's own partition" if candidate.is_own else f"a plan of {partitioner.planned_bytes()} bytes"
        took = "took" if trial.is_complete else "was stopped at"
        details = (name, took, peak, partitioner.allowed_bytes(), left_by_compiling, trial.left_bytes)
        _log.info("%s %s %d bytes of %d; %d stayed after compiling, %d after running", *details)
        if candidate.fits() and (best is None or peak > best.peak_bytes(best.partitioner.rest)):
            best = candidate
        if not trial.is_complete:
            gc.collect()  # Free what the frames of the stopped trial held.
        if candidate.is_own:  # The simulation does not cover PyTorch's own partition.
            if candidate.fits():
                break
            by_plan = True
            continue
        plans += 1
        is_close = peak >= _LOOSE * (partitioner.aimed_bytes() + expected_bytes)
        if (candidate.fits() and (is_close or plans > 1)) or (best is not None and best is not candidate):
            break
        if plans == _MOST_TRIALS or (not candidate.fits() and partitioner.is_smallest):
            break
        excess_bytes = candidate.excess_bytes if trial.is_complete else 2 * candidate.excess_bytes
    return replace(candidate if best is None else best, trials=trials)


def _is_own_too_large(tried: Sequence[Chosen], settings: Settings, device: torch.device) -> bool:
    """Returns whether PyTorch's own partition was tried and need not be compiled again.

    A complete trial measured its peak. A stopped one says only that its limit was too low.
    """
    limit = settings.limit_bytes()
    room = None if limit is None else limit - meter_of(device).current_bytes()
    return any(
        candidate.is_own
        and (candidate.trial.is_complete or room is None or room <= candidate.partitioner.allowed_bytes())
        for candidate in tried
    )


# Steps after each plan in which the rest of the step is measured.
_LEARNING_STEPS = 3
# Maximum number of measured steps of one graph. On a GPU each measurement resets the device's only peak counter.
_MOST_LEARNING_STEPS = 10


class Kernels:
    """One of Dynamo's graphs, compiled in the first call and again when the chosen step no longer fits.

    A trial sees neither the graphs that run between this graph's forward and backward nor other work there, such as a
    loss. The first plan assumes an ordinary loss. The first steps measure the rest of the step, and every later plan
    includes it. If a graph in that rest does not fit, this graph is planned again with less.
    """

    def __init__(self, gm: fx.GraphModule, settings: Settings) -> None:
        specialize([node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")])
        self.gm = gm
        self.settings = settings
        self.lock = threading.RLock()  # Guards the members below, except the two queues.
        self.learned: deque[Rest] = deque()  # Measured rests of the step, appended by backwards on any thread.
        self.asked: deque[int] = deque()  # Bytes for the rest of the step, asked for by graphs in it that did not fit.
        self.device: torch.device | None = None  # None: not called yet.
        self.with_history: list[int] = []  # Positions of arguments that other graphs may have computed.
        self.chosen: Chosen | None = None
        self.tried: list[Chosen] = []
        self.rest: Rest | None = None  # None: not known yet.
        self.wanted_bytes = 0  # Bytes that graphs in the rest of the step asked for.
        self.inner: weakref.WeakSet[Kernels] = weakref.WeakSet()  # Graphs that have run in the rest of the step.
        self.is_good = False  # Whether the chosen step fits, as far as is known.
        self.steps = 0  # Watched steps since the last plan.
        self.watches = 0  # Watched steps in all.
        self.loosenings = 0  # Plans that were made because memory became free.

    def __call__(self, *arguments: Any) -> Any:
        count_graph()
        if self.device is None:  # Dynamo's guards make both hold for every call.
            self.device = device_of([argument for argument in arguments if is_tensor(argument)])
            self.with_history = [i for i, argument in enumerate(arguments) if may_have_history(argument)]
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
        leaves = pytree.tree_leaves(results)
        node = compiled_node(leaves, histories) or compiled_node(arguments, histories)
        if node is not None:
            flight.begin(node)
            refuse_unsupported_backwards(node)
            chosen.aliased = watch_changes(node, leaves, arguments, chosen.aliased)
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
        """Returns the bytes that a step adds at its peak, beside the rest of the step as far as it is known."""
        return chosen.peak_bytes(chosen.partitioner.rest if self.rest is None else self.rest)

    def has_room(self, limit: int | None, meter: _C.Meter) -> bool:
        if limit is None or self.chosen.partitioner is None:
            return True
        room = limit - self.peak_bytes(self.chosen)
        if meter.current_bytes() <= room:
            return True
        gc.collect()  # Tensors in unreachable reference cycles count as memory in use until they are collected.
        return meter.current_bytes() <= room

    def has_much_more(self, limit: int | None, before_bytes: int) -> bool:
        """Returns whether a step that recomputes has much more memory available than when it was chosen."""
        if limit is None or self.loosenings == _MOST_LOOSENINGS or self.steps < _LEARNING_STEPS:
            return False
        free = limit - before_bytes - self.peak_bytes(self.chosen) if self.chosen.recomputes() else 0
        return free > self.chosen.free_bytes + _MUCH_MORE * limit

    def plan(self, arguments: Sequence[Any], outer: Flight | None) -> None:
        gc.collect()
        limit = self.settings.limit_bytes()
        device = device_of([argument for argument in arguments if is_tensor(argument)])
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
        """Returns the rests of the step to plan with, in order; each is used if nothing fits beside the one before it.

        The last one assumes that the graphs in the rest run their smallest plans.
        """
        if self.settings.limit_bytes() is None:
            return [Rest()]
        if self.rest is None:
            return [None]
        spare = sum(kernels.spare_bytes() for kernels in self.inner if kernels is not self)
        wanted = self.rest._replace(peak_bytes=max(self.rest.peak_bytes, self.wanted_bytes))
        smallest = self.rest._replace(peak_bytes=max(self.rest.peak_bytes - spare, self.rest.left_bytes))
        return list(dict.fromkeys([wanted, smallest]))

    def spare_bytes(self) -> int:
        """Returns the bytes at this graph's peak beyond those of its smallest plan."""
        chosen = self.chosen
        if chosen is None or chosen.partitioner is None:
            return 0
        excess = 0 if chosen.is_own else max(chosen.excess_bytes, 0)
        return max(self.peak_bytes(chosen) - excess - chosen.partitioner.smallest_bytes(), 0)

    def find_tried(self, limit: int | None, device: torch.device, rest: Rest | None) -> Chosen | None:
        """Returns a step tried earlier that suits the available memory, or None.

        It is PyTorch's own partition if that fits, or else a plan whose peak is close to the available memory.
        """
        if limit is None or rest is None:
            return None
        room = limit - meter_of(device).current_bytes()
        fitting = [
            candidate for candidate in self.tried if candidate.trial.is_complete and candidate.peak_bytes(rest) <= room
        ]
        best = min(fitting, key=lambda candidate: (not candidate.is_own, candidate.partitioner.time_ns), default=None)
        if best is None or not (best.is_own or best.peak_bytes(rest) >= _CLOSE * room):
            return None
        partitioner = copy.copy(best.partitioner)
        partitioner.rest, partitioner.budget_bytes = rest, partitioner.resident_bytes + room
        return replace(best, partitioner=partitioner)

    def error(self) -> BudgetError:
        partitioner = self.chosen.partitioner  # The last step that was tried has the smallest plan.
        # The results of a step often live until the next step has computed its own.
        smallest = named_bytes(self.chosen.peak_bytes(partitioner.rest), partitioner.step.captured.device)
        smallest += partitioner.resident_bytes + partitioner.step.result_bytes
        arguments = (
            self.settings,
            partitioner.step.problem,
            partitioner.step.graph,
            smallest,
            partitioner.outside_bytes,
        )
        is_first = is_cut(self.gm) and self.rest is None
        return too_small(*arguments, rest_bytes=partitioner.rest.peak_bytes, is_first_of_several=is_first)

    def leave_room(self, flight: Flight, inner: Chosen) -> None:
        """Reserves more for the rest of the step from the next step on, so that both graphs lose the same share."""
        partitioner = inner.partitioner
        kept = flight.after_bytes - flight.before_bytes
        wanted = partitioner.step.store_all_bytes - partitioner.resident_bytes
        free = self.settings.limit_bytes() - flight.before_bytes
        fair = int(kept * (kept + wanted - free) / max(kept + wanted, 1))
        less = max(fair, kept + inner.peak_bytes(partitioner.rest) - free)
        self.asked.append(free - kept + max(less, 0))


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), torch.device("cpu"))


def outside_bytes(tensors: Sequence[torch.Tensor], device: torch.device) -> int:
    """Returns the bytes in use on the device that are not of these tensors."""
    storages = {tensor.untyped_storage()._cdata: tensor for tensor in tensors if tensor.device == device}
    inside = sum(_C.allocated_bytes(tensor.untyped_storage().nbytes(), device) for tensor in storages.values())
    return meter_of(device).current_bytes() - inside
