"""The backend of torch.compile: captures, plans, and hands AOTAutograd two functions that run the plan."""

from __future__ import annotations

import functools
import gc
import logging
import math
import operator
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified

from headroom import _C
from headroom.budgets import read_budget, read_bytes
from headroom.capture import (
    HANDS_ON,
    Call,
    Capture,
    Rest,
    capture,
    concrete,
    flat_results,
    in_place_of,
    make_graph,
    needs_a_tensor,
    normalized_arguments,
)
from headroom.costs import CostCache
from headroom.excess import Excess
from headroom.flight import Place, flights_on, unwatched
from headroom.optimizers import PendingState
from headroom.rewrite import (
    call_eager_batch_norms,
    draw_in_layout,
    drop_unused_statistics,
    protect_changed_inputs,
    share_masks,
    update_statistics,
    updated_by,
)
from headroom.step_costs import StepCosts
from headroom.tracing import eager_kernels
from headroom.unsupported import located, place_of

_log = logging.getLogger(__name__)


@functools.cache
def meter_of(device: torch.device) -> _C.Meter:
    return _C.Meter(device)


@functools.cache
def cache_of(device: torch.device, *, persistent: bool, threads: int) -> CostCache:
    return CostCache(device, persistent=persistent)


def cost_cache(device: torch.device, settings: Settings) -> CostCache:
    """With cudnn.benchmark every process tries out by itself how to convolve: what others measured is no help."""
    persistent = settings.cache and not torch.backends.cudnn.benchmark
    return cache_of(device, persistent=persistent, threads=torch.get_num_threads())


# From here on every tensor on the CPU is counted.
meter_of(torch.device("cpu"))


@dataclass
class Settings:
    """What users can ask for."""

    budget: int | str | None = None
    planner: str = "auto"
    kernels: str = "eager"
    reserve: int | str = 0
    cache: bool = True
    on_plan: Callable[[Planned], None] | None = None  # told of each plan that is to be run
    optimizer: torch.optim.Optimizer | PendingState | None = None  # whose state is counted before it is there

    def __post_init__(self) -> None:
        if self.planner not in _C.planner_names():
            raise ValueError(f"planner must be one of {', '.join(_C.planner_names())}, found {self.planner!r}")
        if self.kernels not in ("eager", "inductor"):
            raise ValueError(f"kernels must be eager or inductor, found {self.kernels!r}")
        self.reserve = read_bytes(self.reserve, "reserve")
        self.budget = read_budget(self.budget)
        if self.optimizer is not None and not isinstance(self.optimizer, PendingState):
            self.optimizer = PendingState(self.optimizer)

    def graph_budget(self, graph: _C.Graph, store_all_bytes: int, outside_bytes: int) -> int:
        """The largest simulated peak, where this much is on the device beside the graph's values."""
        if self.budget is None:
            return store_all_bytes
        if isinstance(self.budget, str):
            resident = graph.resident_bytes()
            return resident + _C.parse_budget(self.budget, store_all_bytes - resident)
        return self.limit_bytes() - outside_bytes

    def limit_bytes(self) -> int | None:
        """What may be on the device now; None: the budget is no number of bytes."""
        return self.budget - self.kept_free_bytes() if isinstance(self.budget, int) else None

    def kept_free_bytes(self) -> int:
        """What a budget in bytes keeps back: the reserve, and what the optimizer has yet to allocate."""
        pending = 0 if self.optimizer is None else self.optimizer.missing_bytes()
        return int(self.reserve) + pending

    def device_bytes(self, before_bytes: int, root: Place) -> int | None:
        """What may be on the device in a step that begins with this much there; None: no limit."""
        if self.budget is None:
            return None
        if isinstance(self.budget, str):
            return before_bytes + _C.parse_budget(self.budget, root.store_all_bytes())
        return self.limit_bytes()


class Options(TypedDict, total=False):
    """Settings beside the budget, as keywords of plan(), max_batch() and Sequential: see headroom.compile()."""

    planner: str
    kernels: str
    reserve: float | str
    cache: bool
    on_plan: Callable[[Planned], None] | None
    optimizer: torch.optim.Optimizer | None


@dataclass
class Planned:
    """A plan that steps run by from now on. Bytes are what a step has at most beyond what is there before it."""

    predicted_bytes: int
    budget_bytes: int
    time_ns: int
    plain_time_ns: int
    measured_bytes: int | None = None  # of a step tried beforehand
    compilations: int = 1


class BudgetError(ValueError):
    """No plan keeps to the budget."""

    def __init__(self, message: str, smallest_budget_bytes: int) -> None:
        super().__init__(message)
        self.smallest_budget_bytes = smallest_budget_bytes


def too_small(
    settings: Settings,
    problem: _C.Problem,
    graph: _C.Graph,
    smallest_bytes: int,
    outside_bytes: int,
    *,
    rest_bytes: int = 0,
    excess_bytes: int = 0,
    smallest_share: float | None = None,
    is_first_of_several: bool = False,
) -> BudgetError:
    """What to raise where nothing below this peak, beside what is outside the graph, can be planned.

    `rest_bytes` is the peak of what is done between forward and backward, which the smallest peak includes, and
    `excess_bytes` is what steps take beyond what plans predict. What graphs take that follow `is_first_of_several` is
    not known.
    """
    kept_free = settings.kept_free_bytes()
    outside = outside_bytes + excess_bytes + kept_free
    smallest = smallest_bytes + outside
    tightest = _C.make_plan(problem, settings.planner, smallest_bytes)
    largest = ""
    if tightest.schedule is not None:
        peak_step = _C.simulate(graph, tightest.schedule).peak_step
        alive = _C.alive_during(graph, tightest.schedule, peak_step)
        alive.sort(key=graph.value_bytes, reverse=True)
        largest = "; what holds the memory there: " + ", ".join(
            f"{graph.value_name(one)} ({_C.format_bytes(graph.value_bytes(one))})" for one in alive[:5]
        )
    shown = _C.format_bytes(settings.budget) if isinstance(settings.budget, int) else settings.budget
    named = f"{smallest} bytes ({_C.format_bytes(smallest)})"
    if isinstance(settings.budget, str) and smallest_share is not None:
        named = f"{math.ceil(1000 * smallest_share) / 1000:g}x, {named}"
    others = []
    if settings.reserve:
        others.append(f"{_C.format_bytes(settings.reserve)} reserved")
    if kept_free > settings.reserve:
        others.append(
            f"{_C.format_bytes(kept_free - settings.reserve)} for the optimizer's state, which is yet to come"
        )
    if outside_bytes > 0:
        others.append(
            f"{_C.format_bytes(outside_bytes)} that is there beside the model's own tensors, such as an optimizer's "
            "state, gradients of earlier steps, other models"
        )
    if excess_bytes > 0:
        others.append(f"{_C.format_bytes(excess_bytes)} that steps take beyond the sum of their tensors")
    if rest_bytes > 0:
        others.append(f"and {_C.format_bytes(rest_bytes)} taken between forward and backward, as by a loss outside")
    of = f" ({'; '.join(others)})" if others else ""
    hint = ""
    if isinstance(settings.budget, int) and settings.optimizer is None:
        hint = "; the state that an optimizer makes in its first step comes on top, unless optimizer= names it"
    if is_first_of_several:
        hint += (
            "; Dynamo cuts the model into several graphs (TORCH_LOGS=graph_breaks says where), and what those after "
            "this one take comes on top"
        )
    return BudgetError(
        f"the budget {shown} cannot be kept; the smallest that can is {named}, "
        f"{_C.format_bytes(outside)} of it outside the step{of}{largest}{hint}",
        smallest,
    )


class Shape:
    """A captured graph with what is known of the rest of the step."""

    def __init__(
        self, captured: Capture, calls: list[_C.OpCall], rest: Rest, settings: Settings, costs: StepCosts
    ) -> None:
        self.captured = captured
        self.calls = calls
        self.rest = rest
        self.costs = costs
        self.settings = settings
        self._smallest_bytes = 0
        self._make_graph()
        store_all = _C.store_all(self.graph)
        simulation = _C.simulate(self.graph, store_all)
        self.store_all_bytes = simulation.peak_bytes
        ops = [op for op, _ in store_all.steps()]
        rest_op = max(op for op, call in enumerate(self.call_of_op) if call == HANDS_ON)
        self.held_bytes = simulation.after_bytes[ops.index(rest_op) - 1]  # after forward, where all is stored
        self.rest_op = rest_op

    def _make_graph(self) -> None:
        self.graph, self.call_of_op = make_graph(self.captured, self.rest)
        self.has_times = self.costs.has_times

    @functools.cached_property
    def problem(self) -> _C.Problem:
        """What is planned. It keeps the planner's front for all budgets."""
        return _C.Problem(self.graph)

    @functools.cached_property
    def program(self) -> _C.OpProgram:
        return make_program(self.captured, self.calls, self.graph, self.call_of_op)

    @functools.cached_property
    def _without_reruns(self) -> _C.Plan | None:
        return _C.find_plan_without_reruns(self.problem) if self.settings.planner == "auto" else None

    def plan(self, budget_bytes: int) -> _C.Plan:
        """The plan within a budget. Times are measured only where something must be recomputed."""
        start = time.perf_counter()
        plan = self._without_reruns
        if plan is None or plan.peak_bytes > budget_bytes:
            self.need_times()
            start = time.perf_counter()
            plan = _C.make_plan(self.problem, self.settings.planner, max(budget_bytes, 0))
            if plan.smallest_budget_bytes > 0:
                self._smallest_bytes = plan.smallest_budget_bytes
        taken = 1e3 * (time.perf_counter() - start)
        _log.info("planning of %d ops: %s, %.0f ms", self.graph.op_count(), plan.status, taken)
        return plan

    def need_times(self) -> None:
        """Has the graph know the times of its ops."""
        self.costs.need_times()
        if not self.has_times:
            self._make_graph()
            for made_without in ("problem", "_without_reruns"):
                self.__dict__.pop(made_without, None)

    def smallest_bytes(self) -> int:
        if self._smallest_bytes == 0:
            self.plan(0)
        return self._smallest_bytes


# Plans, and graphs with different rests of the step, that are kept of one captured graph.
_MOST_KEPT = 64
# The part of a budget that must have become free before a step that recomputes is planned anew.
_MUCH_MORE = 0.02


def _bound(cache: dict[Any, Any]) -> None:
    """Forgets the oldest, where one more would be too many."""
    while len(cache) >= _MOST_KEPT:
        del cache[next(iter(cache))]


@dataclass(eq=False)
class Step:
    """One captured graph with its plans."""

    captured: Capture
    calls: list[_C.OpCall]
    settings: Settings
    costs: StepCosts
    is_cut: bool = False  # graphs of the same function follow, which are compiled when they are reached
    shapes: dict[Rest, Shape] = field(default_factory=dict)
    plans: dict[tuple[Rest, int], tuple[_C.Plan, _C.OpStep]] = field(default_factory=dict)
    chosen: weakref.WeakKeyDictionary[Place, Chosen] = field(default_factory=weakref.WeakKeyDictionary)

    def shape(self, rest: Rest) -> Shape:
        if rest not in self.shapes:
            _bound(self.shapes)
            self.shapes[rest] = Shape(self.captured, self.calls, rest, self.settings, self.costs)
        return self.shapes[rest]

    def plan(
        self, budget_bytes: int, rest: Rest, outside_bytes: int, excess: Excess | None = None
    ) -> tuple[_C.Plan, _C.OpStep]:
        """The plan for a peak in the graph's own terms; each is made once.

        Throws BudgetError, whose number leaves the excess free, or what is assumed of it where it is not known.
        """
        key = (rest, budget_bytes)
        if key not in self.plans:
            shape = self.shape(rest)
            plan = shape.plan(budget_bytes)
            if plan.schedule is None:
                smallest = plan.smallest_budget_bytes
                excess = excess or Excess(self.captured.device)
                least, most = smallest - self.input_bytes, shape.store_all_bytes - self.input_bytes
                raise too_small(
                    self.settings,
                    shape.problem,
                    shape.graph,
                    smallest,
                    outside_bytes,
                    rest_bytes=rest.peak_bytes,
                    excess_bytes=excess.name(least) - least,
                    smallest_share=excess.add(least) / max(excess.add(most), 1),
                    is_first_of_several=self.is_cut and rest == Rest(),
                )
            _bound(self.plans)
            self.costs.has_run = True
            self.plans[key] = (plan, _C.OpStep(shape.program, plan.schedule))
        return self.plans[key]

    def choose(self, place: Place, before_bytes: int, device_bytes: int | None, *, is_inner: bool) -> Chosen:
        """What to run at a place with this much on the device and this much allowed: as before, where that fits."""
        if device_bytes is None:
            rest = place.rest(1)
            measured_budget = budget = self.shape(rest).store_all_bytes
        else:
            rest = place.fair_rest(device_bytes - before_bytes)
            budget = self.input_bytes + place.counted_excess().subtract(device_bytes - before_bytes)
            measured_budget = self.input_bytes + place.counted_excess().subtract_measured(device_bytes - before_bytes)
            if place.over_bytes > 0:  # At the worst the smallest plan runs: it may be over for a reason of its own.
                smallest = self.shape(rest).smallest_bytes()
                budget = min(budget, max(budget - place.over_bytes, smallest))
        now = self.chosen.get(place)
        if now is not None:
            if rest != now.rest and now.rest_fits != rest:
                now.peak_bytes = self._peak_beside(rest, now.plan.schedule)
                now.rest_fits = rest
            has_more = budget - rest.peak_bytes > now.free_bytes + _MUCH_MORE * budget
            fits = now.peak_bytes is not None and now.peak_bytes <= budget
            if not fits and now.peak_bytes is not None and now.peak_bytes <= measured_budget:
                fits = budget < self.shape(rest).smallest_bytes()  # Nothing else is more certain to fit.
            if fits and not (has_more and now.recomputes()):
                return now
        outside = before_bytes - self.input_bytes
        try:
            plan, op_step = self.plan(budget, rest, outside, place.counted_excess())
        except BudgetError as error:
            if not is_inner:
                raise
            # Those in flight did not know of it; in the next step they leave it room.
            warnings.warn(f"headroom: over the budget in this step, until it is planned again: {error}", stacklevel=2)
            plan, op_step = self.plan(self.shape(rest).smallest_bytes(), rest, outside, place.counted_excess())
            return Chosen(plan, op_step, rest, rest, plan.peak_bytes, 0)
        now = self.chosen[place] = Chosen(plan, op_step, rest, rest, plan.peak_bytes, budget - rest.peak_bytes)
        if self.settings.on_plan is not None:
            peak, inputs = plan.peak_bytes, self.input_bytes
            self.settings.on_plan(Planned(peak - inputs, budget - inputs, plan.time_ns, plan.base_time_ns))
        return now

    def _peak_beside(self, rest: Rest, schedule: _C.Schedule) -> int | None:
        """The peak of a schedule that was made for another rest of the step; None: it is not valid beside this one."""
        graph = self.shape(rest).graph
        return _C.simulate(graph, schedule).peak_bytes if _C.is_valid(graph, schedule) else None

    def predicted_peaks(self, schedule: _C.Schedule, rest: Rest) -> tuple[int, int] | None:
        """What forward and backward add at most by a schedule beside this rest; None: it is not valid beside it."""
        shape = self.shape(rest)
        if not _C.is_valid(shape.graph, schedule):
            return None
        moments = _C.simulate(shape.graph, schedule).moment_bytes
        middle = [op for op, _ in schedule.steps()].index(shape.rest_op)
        halves = (moments[:middle], moments[middle + 1 :])
        return tuple(max(half, default=self.input_bytes) - self.input_bytes for half in halves)

    @functools.cached_property
    def input_bytes(self) -> int:
        """What the graph counts as there before a step."""
        return self.captured.resident_bytes()


@dataclass(eq=False)
class Chosen:
    """What runs at a place."""

    plan: _C.Plan
    op_step: _C.OpStep
    rest: Rest  # that it was planned with
    rest_fits: Rest  # that its peak was last simulated with
    peak_bytes: int | None  # None: the schedule is not valid beside that rest
    free_bytes: int  # of the budget that it was planned for, beside the peak of that rest
    steps: int = 0  # that have run it

    def recomputes(self) -> bool:
        """Whether it takes more time than storing all."""
        return self.plan.time_ns > self.plan.base_time_ns


# Where a kernel lays out its result otherwise than tracing knows, what is traced as a view may need a copy.
_RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def make_calls(captured: Capture) -> list[_C.OpCall]:
    calls = []
    for call in captured.calls:
        node = call.node
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            calls.append(_python_call(captured, call))
            continue
        schema = node.target._schema
        arguments = normalized_arguments(node, functools.partial(_argument, captured, updated_by(node)))
        variant = in_place_of(node.target)
        in_place = ("", "") if variant is None else (variant._schema.name, variant._schema.overload_name)
        name = (schema.name, schema.overload_name)
        if node.target in _RESHAPES:
            name = ("aten::reshape", "")
        with located(node):
            calls.append(_C.make_call(*name, arguments, call.makes, call.draws, in_place, place_of(node)))
    return calls


def _argument(captured: Capture, updated: Sequence[fx.Node], node: fx.Node) -> object:
    if node in captured.constants:
        return captured.constants[node]
    if node in captured.number:
        return _C.TensorReference(captured.number[node], node in updated)
    return node.meta["val"]


def _python_call(captured: Capture, call: Call) -> _C.OpCall:
    """A higher-order operator, which the dispatcher does not know, as a function of the tensors that it reads."""
    node = call.node
    order: dict[fx.Node, int] = {}
    for one in needs_a_tensor(node):
        if one in captured.number:
            order.setdefault(one, len(order))

    def run(*tensors: torch.Tensor) -> list[torch.Tensor | None]:
        def given(one: fx.Node) -> object:
            return tensors[order[one]] if one in order else captured.constants[one]

        made = node.target(*fx.node.map_arg(node.args, given), **fx.node.map_arg(node.kwargs, given))
        return [one if isinstance(one, torch.Tensor) else None for one in flat_results(made)]

    arguments = [captured.number[one] for one in order]
    return _C.make_python_call(str(node.target), run, arguments, call.makes, call.draws, place_of(node))


def make_program(captured: Capture, calls: list[_C.OpCall], graph: _C.Graph, call_of_op: list[int]) -> _C.OpProgram:
    return _C.OpProgram(
        graph,
        calls,
        call_of_op,
        captured.view_call,
        captured.value_of_tensor,
        captured.forward_inputs,
        captured.backward_inputs,
        captured.forward_outputs,
        captured.backward_outputs,
        captured.device,
    )


def make_step(joint: fx.GraphModule, forward_output_count: int, settings: Settings, name: str) -> Step:
    start = time.perf_counter()
    call_eager_batch_norms(joint)
    update_statistics(joint, forward_output_count)
    drop_unused_statistics(joint)
    draw_in_layout(joint)
    share_masks(joint)
    protect_changed_inputs(joint, forward_output_count)
    captured = capture(joint, forward_output_count, name)
    device = captured.device
    cache = functools.partial(cost_cache, device, settings)
    costs = StepCosts(captured, cache, meter_of(device), settings.limit_bytes())
    step = Step(captured, make_calls(captured), settings, costs)
    taken = 1e3 * (time.perf_counter() - start)
    _log.info("capture of %d calls of operators: %.0f ms", len(captured.calls), taken)
    if settings.on_plan is not None:  # it is told times
        costs.need_times()
    elif settings.budget is not None:
        costs.need_memory()
    return step


def _stub(name: str, inputs: Sequence[fx.Node], outputs: Sequence[Any]) -> fx.GraphModule:
    """A module that stands for a compiled function: placeholders and outputs with what AOTAutograd asks of them."""
    graph = fx.Graph()
    placeholders = []
    for node in inputs:
        placeholder = graph.placeholder(node.name)
        placeholder.meta = dict(node.meta)
        placeholders.append(placeholder)
    call = graph.call_function(_not_called, tuple(placeholders))
    results = []
    for position, output in enumerate(outputs):
        if not isinstance(output, fx.Node):
            results.append(output)
            continue
        item = graph.call_function(operator.getitem, (call, position))
        item.meta = dict(output.meta)
        results.append(item)
    graph.output(tuple(results))
    return fx.GraphModule(torch.nn.Module(), graph, name)


def is_cut(gm: fx.GraphModule) -> bool:
    """Whether Dynamo's graph ends where the function was cut, so that others follow it."""
    return getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False)


def _not_called(*_: object) -> Any:
    raise RuntimeError("the plan runs instead of this")


def _specialize(example_inputs: Sequence[Any]) -> None:
    """Makes Dynamo take this call's sizes as given, so that other sizes come as graphs of their own."""
    for one in example_inputs:
        if isinstance(one, torch.SymInt):
            concrete(one)
        elif isinstance(one, torch.Tensor):
            for size in (*one.shape, *one.stride(), one.storage_offset()):
                concrete(size)


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Settings,
    on_step: Callable[[Step], None] = lambda _: None,
) -> Callable[..., Any]:
    """One graph of Dynamo's as a function that trains inside the budget. `on_step` sees each captured step."""
    steps: list[Step] = []
    partition_s = 0.0
    start_s = time.perf_counter()
    _specialize(example_inputs)

    def partition(
        joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        nonlocal partition_s
        start = time.perf_counter()
        with unwatched():
            step = make_step(joint, num_fwd_outputs, settings, "step")
            step.is_cut = is_cut(gm)
        partition_s += time.perf_counter() - start
        on_step(step)
        steps.append(step)
        placeholders = joint.graph.find_nodes(op="placeholder")
        primals = [node for node in placeholders if not node.name.startswith("tangents")]
        tangents = [node for node in placeholders if node.name.startswith("tangents")]
        outputs = torch.utils._pytree.arg_tree_leaves(*joint.graph.output_node().args)
        token = fx.Graph().placeholder("token")
        example = next(node.meta["val"] for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor))
        with example.fake_mode:
            token.meta["val"] = torch.empty(0)
        # Kept on autograd's context as it is: hooks for saved tensors would replace it.
        token.meta["saved_tensor_with_no_vc_check"] = True
        forward = _stub("forward", primals, [*outputs[:num_fwd_outputs], token])
        backward = _stub("backward", [token, *tangents], outputs[num_fwd_outputs:])
        return forward, backward

    def forward_compiler(_: fx.GraphModule, __: Sequence[Any]) -> Callable[[list[Any]], Any]:
        step = steps[-1]
        is_first = settings.budget is not None

        def forward(arguments: list[Any]) -> list[Any]:
            nonlocal is_first
            if is_first:  # Tracing leaves tensors in reference cycles, such as copies of the generator's state.
                is_first = False
                gc.collect()
            outputs, flight = flights_on(step.captured.device).forward(step, arguments)
            token = torch.empty(0)
            token.headroom = flight
            return [*outputs, token]

        forward._boxed_call = True
        return forward

    def backward_compiler(_: fx.GraphModule, __: Sequence[Any]) -> Callable[[list[Any]], Any]:
        step = steps[-1]

        def backward(arguments: list[Any]) -> list[Any]:
            if torch.is_grad_enabled():
                raise RuntimeError("double backward (create_graph=True) is not supported by headroom")
            flight = arguments[0].headroom
            gradients = arguments[1:]
            arguments.clear()
            return flights_on(step.captured.device).backward(flight, gradients)

        backward._boxed_call = True
        return backward

    def inference_compiler(inference: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        return make_boxed_func(inference.forward)

    with eager_kernels():
        compiled = aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward_compiler,
            bw_compiler=backward_compiler,
            partition_fn=partition,
            inference_compiler=inference_compiler,
            keep_inference_input_mutations=False,
        )
    taken = 1e3 * (time.perf_counter() - start_s - partition_s)
    _log.info("compiling by AOTAutograd, without capture and measuring: %.0f ms", taken)
    return compiled
