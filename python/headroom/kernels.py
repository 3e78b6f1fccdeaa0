"""Steps that Inductor compiles: planned, tried and set right until their real peak is under the budget."""

from __future__ import annotations

import functools
import logging
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from headroom import _C
from headroom.aot import BudgetError, Planned, Settings, meter_of, too_small
from headroom.capture import is_tensor
from headroom.costs import forked_random
from headroom.inductor import Partitioner, copy_of
from headroom.ordering import KeepOrder

_log = logging.getLogger(__name__)

# The partition is made when its halves are compiled, and is no part of what Inductor's cache goes by.
_PARTITIONED = {"custom_partitioner_fn": None}
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


def compile_static(gm: fx.GraphModule, arguments: Sequence[Any], *options: Any) -> Callable[..., Any]:
    """By Inductor for arguments of these shapes alone, with its cache, which asks what is known of shapes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    fakes = [mode.from_tensor(one, static_shapes=True) if is_tensor(one) else one for one in arguments]
    with tracing(TracingContext(mode)):
        return compile_fx(copy_of(gm), fakes, *options)


def try_step(compiled: Callable[..., Any], arguments: Sequence[Any], device: torch.device) -> tuple[int, int]:
    """What a forward and a backward take at most beyond what is there before, and what the first of them leaves there.

    The first compiles, tries out how to run kernels and has libraries make their workspaces. Changes nothing that the
    user has.
    """

    def copied(one: object) -> object:
        if not is_tensor(one):
            return one
        return one.detach().requires_grad_() if one.requires_grad else one.detach().clone()

    meter = meter_of(device)
    copies = [copied(one) for one in arguments]
    leaves = [one for one in copies if is_tensor(one) and one.requires_grad]

    def run() -> None:
        results = [one for one in pytree.tree_leaves(compiled(*copies)) if is_tensor(one) and one.requires_grad]
        torch.autograd.backward(results, [torch.ones_like(one) for one in results])
        for one in leaves:
            one.grad = None

    with forked_random(device), torch.enable_grad():
        at_first = meter.current_bytes()
        run()
        before = meter.current_bytes()
        meter.reset_peak()
        run()
        return meter.peak_bytes() - before, before - at_first


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
        return self.partitioner is None or self.added_bytes <= self.partitioner.allowed_bytes()

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
        return Chosen(compile_static(gm, arguments))
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
            compiled = compile_static(gm, arguments, compiler_for(partitioner), patches)
        left_by_compiling = meter_of(device).current_bytes() - before
        added, left = try_step(compiled, arguments, device)
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


# Steps in which the peak is looked at. Looking starts the device's one peak anew, so it must end.
_LEARNING_STEPS = 3


class Kernels:
    """One graph of Dynamo's. Compiled in the first call, and anew when what was chosen has no room any more.

    A trial knows neither of the graphs that run between this one's forward and backward nor of what else does. So in
    the first steps the peak from the forward of the outermost graph to the end of its backward is measured; where it
    is over the budget, or a graph in it has no room, the outermost is planned anew with less.
    """

    def __init__(self, gm: fx.GraphModule, settings: Settings) -> None:
        self.gm = gm
        self.settings = settings
        self.meter: _C.Meter | None = None  # of the device of its first call's arguments, which all calls have
        self.chosen: Chosen | None = None
        self.most_bytes: int | None = None  # that it may add; None: what the budget allows
        self.is_good = False  # what was chosen need not be planned anew, as far as is known
        self.steps = 0
        self.before_bytes = 0  # on the device, at its last call
        self.after_bytes = 0

    def __call__(self, *arguments: Any) -> Any:
        if self.meter is None:
            self.meter = _learning_meter(device_of([one for one in arguments if is_tensor(one)]))
        meter = self.meter
        _in_flight[:] = [one for one in _in_flight if one[0]() is not None]
        outer = _in_flight[0][1] if _in_flight else None
        limit = self.settings.limit_bytes()
        self.before_bytes = meter.current_bytes()
        if self.chosen is None or not self.is_good or not self.has_room(limit):
            self.plan(arguments, outer)
        is_watched = outer is None and limit is not None and self.steps < _LEARNING_STEPS
        if is_watched:
            meter.reset_peak()
        results = self.chosen.run(*arguments)
        self.after_bytes = meter.current_bytes()
        node = next((one.grad_fn for one in pytree.tree_leaves(results) if is_tensor(one) and one.grad_fn), None)
        if node is not None:
            _in_flight.append((weakref.ref(node), self))
            if is_watched:
                self.steps += 1
                node.register_hook(lambda *_: self.take_less(meter.peak_bytes() - limit))
        return results

    def has_room(self, limit: int | None) -> bool:
        by = self.chosen.partitioner
        return limit is None or by is None or self.before_bytes + self.chosen.added_bytes <= limit

    def plan(self, arguments: Sequence[Any], outer: Kernels | None) -> None:
        excess = self.chosen.excess_bytes if self.chosen is not None else 0
        self.chosen = choose(self.gm, arguments, self.settings, excess, self.most_bytes)
        by = self.chosen.partitioner
        self.is_good = self.chosen.fits()
        if not self.is_good:
            error = self.error()
            if outer is None or self.settings.limit_bytes() is None:
                raise error
            outer.leave_room(self.chosen)
            warnings.warn(f"headroom: over the budget in this step, until it is planned again: {error}", stacklevel=2)
        elif by is not None and self.settings.on_plan is not None:
            self.settings.on_plan(self.chosen.planned())

    def error(self) -> BudgetError:
        by = self.chosen.partitioner  # of the smallest plan: the last one that is tried
        smallest = by.resident_bytes + self.chosen.added_bytes + by.left_bytes
        return too_small(self.settings, by.step.problem, by.step.graph, smallest, by.outside_bytes)

    def leave_room(self, inner: Chosen) -> None:
        """Takes less from the next step on, so that both lose the same share of what they would take."""
        by = inner.partitioner
        kept = self.after_bytes - self.before_bytes
        wanted = by.step.store_all_bytes - by.resident_bytes
        there = self.settings.limit_bytes() - self.before_bytes
        fair = int(kept * (kept + wanted - there) / max(kept + wanted, 1))
        self.take_less(max(fair, kept + inner.added_bytes - there))

    def take_less(self, less_bytes: int) -> None:
        if less_bytes > 0:
            most = max(self.chosen.added_bytes - less_bytes, 0)
            # It may be asked more than once before it is planned anew.
            self.most_bytes = most if self.most_bytes is None else min(most, self.most_bytes)
            self.is_good = False


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    return next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))


def outside_bytes(tensors: Sequence[torch.Tensor], device: torch.device) -> int:
    """What is on the device beside these."""
    storages = {one.untyped_storage()._cdata: one for one in tensors if one.device == device}
    inside = sum(_C.allocated_bytes(one.untyped_storage().nbytes(), device) for one in storages.values())
    return meter_of(device).current_bytes() - inside


@functools.cache
def _learning_meter(device: torch.device) -> _C.Meter:
    """Apart from all others, whose peaks trials and users start anew."""
    return _C.Meter(device)


_in_flight: list[tuple[weakref.ref[Any], Kernels]] = []  # results that wait for their backward
