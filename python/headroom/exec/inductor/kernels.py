"""Compiles a graph with Inductor, measures its peak, and replans until the peak is within the budget."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

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
from headroom.budget import place
from headroom.budget.arena import uses_arena
from headroom.budget.errors import BudgetError, too_small
from headroom.budget.excess import named_bytes, varied_bytes
from headroom.budget.flight import flights_on, planning
from headroom.budget.meter import meter_of
from headroom.budget.place import Patience, Place, Room
from headroom.entrance import count_graph
from headroom.exec.inductor.aliases import watch_changes
from headroom.exec.inductor.halves import in_flight, run_in_arena, set_running
from headroom.exec.inductor.ordering import KeepDraws, KeepOrder, mutations_kept
from headroom.exec.inductor.partitioner import Partitioner, copy_of
from headroom.exec.inductor.trial import Arguments, Trial, find_changed, hidden, try_step
from headroom.exec.nodes import compiled_node, may_have_history
from headroom.exec.refusals import refuse_unsupported_backwards
from headroom.graph.operators import is_tensor
from headroom.graph.step_graph import Rest, make_graph
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


def compiler_for(partitioner: Partitioner, codes: list[Any], *, has_arena: bool = False) -> Callable[..., Any]:
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
        if has_arena:
            run_in_arena(codes[-1], is_backward=bool(options.get("is_backward")))
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


@dataclass
class Candidate:
    """A compiled step and its measurements."""

    run: Callable[..., Any]
    partitioner: Partitioner | None = None  # None: nothing in the step takes a gradient.
    trial: Trial = field(default_factory=Trial)
    expected_excess_bytes: int = 0  # Excess of the measured over the simulated peak that the plan assumed.
    trials: int = 0  # Trials until this step was chosen.
    aliased: list[int] | None = None  # See watch_changes(); None: not known yet.
    arena: _C.Arena | None = None  # The arena in which it runs, which the first run of the trial has recorded.

    @property
    def is_own(self) -> bool:
        """Returns whether the step is split by PyTorch's own partition."""
        return self.partitioner is not None and self.partitioner.schedule is None

    @property
    def is_smallest(self) -> bool:
        return self.partitioner is not None and self.partitioner.is_smallest

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


def try_plans(
    gm: fx.GraphModule,
    arguments: Sequence[Any],
    settings: Settings,
    limit_bytes: int | None,
    rest: Rest | None,
    tried: list[Candidate],
) -> Candidate:
    """Plans, compiles and tries a step until its measured peak is within the budget.

    `limit_bytes` limits the bytes in use on the device, if the budget is a number of bytes. If the measured peak of the
    first plan is far below its predicted one, one more plan is tried. Every compiled step is appended to `tried`, and
    the steps already in `tried` supply the assumed excess. If no step fits, returns the last one, which does not fit.
    """
    tensors = [tensor for tensor in arguments if is_tensor(tensor)]
    device = device_of(tensors)
    trial_arguments = Arguments(arguments, find_changed(gm, make_fakes(arguments)))
    # Assume the largest excess measured so far, so that the next plan fits at once: the user sees the memory of a trial
    # that exceeds the budget.
    complete = [candidate for candidate in tried if candidate.trial.is_complete and not candidate.is_own]
    excess_bytes = max([candidate.excess_bytes for candidate in complete], default=None)
    by_plan = _is_own_too_large(tried, limit_bytes, device)
    best: Candidate | None = None
    plans = trials = 0
    while True:
        trials += 1
        # The last trial is of the plan with the smallest peak, if nothing else has fitted.
        expected_bytes = excess_bytes or 0
        excess = expected_bytes if best is not None or plans + 1 < _MOST_TRIALS else None
        before = meter_of(device).current_bytes()
        partitioner = Partitioner(
            settings, limit_bytes, before, excess, rest, by_plan=by_plan, is_first=excess_bytes is None
        )
        candidate = _compile_and_try(gm, trial_arguments, device, partitioner, expected_bytes)
        if candidate.partitioner is None:
            return candidate
        tried.append(candidate)
        peak = candidate.peak_bytes(partitioner.rest)
        if candidate.fits() and (best is None or peak > best.peak_bytes(best.partitioner.rest)):
            best = candidate
        if not candidate.trial.is_complete:
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
        excess_bytes = (1 if candidate.trial.is_complete else 2) * candidate.excess_bytes
    return replace(candidate if best is None else best, trials=trials)


def _compile_and_try(
    gm: fx.GraphModule, arguments: Arguments, device: torch.device, partitioner: Partitioner, expected_bytes: int
) -> Candidate:
    """Returns a step that is split by a partitioner, without one if the step turns out to take no gradient."""
    fakes, codes = make_fakes(arguments.arguments), []
    has_arena = uses_arena(partitioner.settings, device)
    before = meter_of(device).current_bytes()
    # AOTAutograd's cache is off, because its key is the graph before partitioning. Backward is compiled together with
    # forward, not in the middle of the trial, where the memory that compilation needs would add to the saved
    # activations.
    with aot_config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True):
        patches = {"custom_partitioner_fn": partitioner}
        compiled = compile_static(gm, fakes, compiler_for(partitioner, codes, has_arena=has_arena), patches)
    left_by_compiling = meter_of(device).current_bytes() - before
    arena = _C.Arena(device) if has_arena else None
    trial = try_step(compiled, arguments, device, codes, partitioner.trial_bytes(left_by_compiling), arena)
    if partitioner.step is None:
        return Candidate(compiled)
    partitioner.set_aside(left_by_compiling + trial.left_bytes)
    candidate = Candidate(compiled, partitioner, trial, expected_bytes, arena=arena)
    name = "PyTorch's own partition" if candidate.is_own else f"a plan of {partitioner.planned_bytes()} bytes"
    took = "took" if trial.is_complete else "was stopped at"
    peak = candidate.peak_bytes(partitioner.rest)
    details = (name, took, peak, partitioner.allowed_bytes(), left_by_compiling, trial.left_bytes)
    _log.info("%s %s %d bytes of %d; %d stayed after compiling, %d after running", *details)
    return candidate


def _is_own_too_large(tried: Sequence[Candidate], limit_bytes: int | None, device: torch.device) -> bool:
    """Returns whether PyTorch's own partition was tried and need not be compiled again.

    A complete trial measured its peak. A stopped one says only that its limit was too low.
    """
    room = None if limit_bytes is None else limit_bytes - meter_of(device).current_bytes()
    return any(
        candidate.is_own
        and (candidate.trial.is_complete or room is None or room <= candidate.partitioner.allowed_bytes())
        for candidate in tried
    )


# Maximum number of rests of the step for which a graph's smallest and largest peaks are kept.
_MOST_RESTS = 64


@dataclass(eq=False)
class Chosen(place.Chosen):
    """The compiled step that runs at a place."""

    candidate: Candidate

    def recomputes(self) -> bool:
        return self.candidate.recomputes()


class Kernels:
    """One of Dynamo's graphs, compiled in the first call and again when what it runs no longer fits.

    It is one of the steps that share a budget (place.Step). A trial sees neither the graphs that run between this
    graph's forward and backward nor other work there, such as a loss. The first plan assumes an ordinary loss.
    """

    patience = Patience(free_share=0.05, steps=3, plans=3)  # Each plan is compiled.
    is_tried = True
    shares_together = False

    def __init__(self, gm: fx.GraphModule, settings: Settings) -> None:
        specialize([node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")])
        self.gm = gm
        self.settings = settings
        self.device: torch.device | None = None  # None: not called yet.
        self.with_history: list[int] = []  # Positions of arguments that other graphs may have computed.
        self.chosen: WeakKeyDictionary[Place, Chosen] = WeakKeyDictionary()
        self.without_gradients: Callable[..., Any] | None = None  # What runs if nothing in the step takes a gradient.
        self.assumed_rest = Rest()  # Of the first plan that was tried.
        self.tried: list[Candidate] = []
        self.simulated: dict[Rest, tuple[int, int]] = {}  # Added bytes of the smallest plan and of store-all.

    def __call__(self, *arguments: Any) -> Any:
        count_graph()
        if self.device is None:  # Dynamo's guards make all of this hold for every call.
            tensors = [argument for argument in arguments if is_tensor(argument)]
            self.device = device_of(tensors)
            self.with_history = [i for i, argument in enumerate(arguments) if may_have_history(argument)]
            if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
                with planning(), hidden():
                    self.without_gradients = compile_static(self.gm, make_fakes(arguments))
        if self.without_gradients is not None:  # Its memory is part of the rest of a step, like that of other work.
            return self.without_gradients(*arguments)
        device = flights_on(self.device)
        histories = {arguments[i].grad_fn for i in self.with_history}
        with device.forward(self, arguments) as flight:
            candidate = flight.chosen.candidate
            with in_flight(candidate.arena) as run:
                results = candidate.run(*arguments)
            leaves = pytree.tree_leaves(results)
            node = compiled_node(leaves, histories) or compiled_node(arguments, histories)
            if node is not None:
                if run is not None:
                    node.register_prehook(lambda _: set_running(run))
                device.follow(flight, node)
                refuse_unsupported_backwards(node)
                candidate.aliased = watch_changes(node, leaves, arguments, candidate.aliased)
        return results

    def smallest_bytes(self, rest: Rest) -> int:
        """Returns the bytes that the smallest plan adds, as far as is known: each plan that was tried is an example."""
        measured = [candidate.peak_bytes(rest) for candidate in self._complete()]
        return min([self._simulate(rest)[0] + self._excess_bytes(), *measured])

    def store_all_bytes(self, rest: Rest) -> int:
        """Returns the bytes that PyTorch's own partition adds, or if that is not known, those of storing everything."""
        own = [candidate.peak_bytes(rest) for candidate in self._complete() if candidate.is_own]
        return own[-1] if own else self._simulate(rest)[1] + self._excess_bytes()

    def held_bytes(self, _: Rest) -> int:
        return max([candidate.trial.held_bytes for candidate in self._complete()], default=0)

    def added_bytes(self, chosen: Chosen, rest: Rest) -> int:
        return chosen.candidate.peak_bytes(rest)

    def halves_bytes(self, chosen: Chosen, rest: Rest) -> tuple[int, int]:
        added = chosen.candidate.trial.added_bytes
        return added, added + rest.left_bytes

    def choose(self, room: Room, arguments: Sequence[Any]) -> Chosen:
        limit = None if room.limit_bytes is None else room.limit_bytes - room.excess.largest_bytes()
        rest = Rest() if limit is None else room.rest if self.tried else None
        candidate = None if limit is None else self._find_tried(limit, room.rest)
        if candidate is None:
            is_first = not self.tried
            with hidden():
                candidate = try_plans(self.gm, arguments, self.settings, limit, rest, self.tried)
            gc.collect()
            del self.tried[:-_MOST_KEPT]
            if candidate.partitioner is None:
                self.without_gradients = candidate.run
            elif is_first:
                self.assumed_rest = candidate.partitioner.rest
        if not candidate.fits():
            if not self.settings.allows_store_all():
                raise self._error(candidate, room)
            candidate = min(self._complete(), key=lambda tried: tried.peak_bytes(tried.partitioner.rest))
            candidate.partitioner.allow(candidate.peak_bytes(candidate.partitioner.rest))
        return self._chosen(candidate, room)

    def choose_smallest(self, room: Room, _: Sequence[Any]) -> Chosen:
        return self._chosen(next(candidate for candidate in reversed(self.tried) if candidate.is_smallest), room)

    def planned(self, chosen: Chosen, _: Room) -> Planned | None:
        return None if chosen.candidate.partitioner is None else chosen.candidate.planned()

    def _chosen(self, candidate: Candidate, room: Room) -> Chosen:
        rest = room.rest if candidate.partitioner is None else candidate.partitioner.rest
        is_measured = candidate.partitioner is not None and room.limit_bytes is not None
        return Chosen(candidate, rest=rest, added_bytes=candidate.peak_bytes(rest), is_measured=is_measured)

    def _complete(self) -> list[Candidate]:
        return [candidate for candidate in list(self.tried) if candidate.trial.is_complete]

    def _excess_bytes(self) -> int:
        """Returns the largest excess that trials of plans have measured."""
        return max([candidate.excess_bytes for candidate in self._complete() if not candidate.is_own] + [0])

    def _simulate(self, rest: Rest) -> tuple[int, int]:
        """Returns the simulated bytes that the smallest plan and storing everything add beside a rest of the step."""
        if not self.tried:
            return 0, 0
        if rest not in self.simulated:
            if len(self.simulated) == _MOST_RESTS:
                self.simulated.clear()
            graph, _ = make_graph(self.tried[-1].partitioner.step.fused, rest, accumulates=False)
            store_all = _C.simulate(graph, _C.store_all(graph)).peak_bytes
            smallest = _C.make_plan(_C.Problem(graph), self.settings.planner, 0, self.settings.keep_order)
            self.simulated[rest] = (
                smallest.smallest_budget_bytes - graph.resident_bytes(),
                store_all - graph.resident_bytes(),
            )
        return self.simulated[rest]

    def _find_tried(self, limit_bytes: int, rest: Rest) -> Candidate | None:
        """Returns a step tried earlier that suits the limit, or the smallest plan if that was tried and is too large.

        A step that suits is PyTorch's own partition if that fits, or else a plan whose peak is close to the limit.
        """
        before = meter_of(self.device).current_bytes()
        complete = []
        for candidate in self._complete():
            partitioner = copy.copy(candidate.partitioner)
            is_smallest = partitioner.is_smallest and partitioner.rest == rest
            partitioner.rest, partitioner.is_smallest = rest, is_smallest
            partitioner.before_bytes = before
            partitioner.budget_bytes = limit_bytes - before + partitioner.resident_bytes
            complete.append(replace(candidate, partitioner=partitioner))
        fitting = [candidate for candidate in complete if candidate.fits()]
        if not fitting:
            return next((candidate for candidate in complete if candidate.partitioner.is_smallest), None)
        best = min(fitting, key=lambda candidate: (not candidate.is_own, candidate.partitioner.time_ns))
        is_close = best.peak_bytes(rest) >= _CLOSE * best.partitioner.allowed_bytes()
        return best if best.is_own or is_close else None

    def _error(self, candidate: Candidate, room: Room) -> BudgetError:
        partitioner = candidate.partitioner
        # The results of a step often live until the next step has computed its own.
        smallest = named_bytes(candidate.peak_bytes(partitioner.rest), self.device)
        smallest += partitioner.resident_bytes + partitioner.step.result_bytes
        return too_small(
            self.settings,
            partitioner.step.problem,
            partitioner.step.graph,
            smallest,
            partitioner.before_bytes - partitioner.resident_bytes,
            rest_bytes=partitioner.rest.peak_bytes,
            excess_bytes=room.excess.largest_bytes(),
            is_first_of_several=is_cut(self.gm) and partitioner.rest == self.assumed_rest,
        )


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), torch.device("cpu"))
