"""The backend of torch.compile: captures, plans, and hands AOTAutograd two functions that run the plan."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified

from headroom import _C
from headroom.capture import Capture, capture, in_place_of, make_graph, normalized_arguments
from headroom.costs import CostCache, fill_costs
from headroom.rewrite import call_eager_batch_norms

_meters: dict[torch.device, _C.Meter] = {}
_caches: dict[torch.device, CostCache] = {}


def meter_of(device: torch.device) -> _C.Meter:
    if device not in _meters:
        _meters[device] = _C.Meter(device)
    return _meters[device]


def cache_of(device: torch.device, *, persistent: bool) -> CostCache:
    if device not in _caches:
        _caches[device] = CostCache(device, persistent=persistent)
    return _caches[device]


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
    on_plan: Callable[[Any], None] | None = None  # called with each step that has been planned

    def __post_init__(self) -> None:
        if self.planner not in _C.planner_names():
            raise ValueError(f"planner must be one of {', '.join(_C.planner_names())}, found {self.planner!r}")
        if self.kernels not in ("eager", "inductor"):
            raise ValueError(f"kernels must be eager or inductor, found {self.kernels!r}")
        if isinstance(self.reserve, str):
            self.reserve = _C.parse_bytes(self.reserve)
        if isinstance(self.budget, str) and not self.budget.endswith("x"):
            self.budget = _C.parse_bytes(self.budget)

    def graph_budget(self, graph: _C.Graph, store_all_bytes: int, outside_bytes: int) -> int:
        """The largest simulated peak, where this much is on the device beside the graph's values."""
        if self.budget is None:
            return store_all_bytes
        if isinstance(self.budget, str):
            resident = graph.resident_bytes()
            return resident + _C.parse_budget(self.budget, store_all_bytes - resident)
        return self.budget - outside_bytes - int(self.reserve)


class BudgetError(ValueError):
    """No plan keeps to the budget."""

    def __init__(self, message: str, smallest_budget_bytes: int) -> None:
        super().__init__(message)
        self.smallest_budget_bytes = smallest_budget_bytes


def too_small(
    settings: Settings, problem: _C.Problem, graph: _C.Graph, smallest_bytes: int, outside_bytes: int
) -> BudgetError:
    """What to raise where nothing below this peak, beside what is outside the graph, can be planned."""
    outside = outside_bytes + int(settings.reserve)
    smallest = smallest_bytes + outside
    tightest = _C.make_plan(problem, settings.planner, smallest_bytes, 0)
    largest = ""
    if tightest.schedule is not None:
        peak_step = _C.simulate(graph, tightest.schedule).peak_step
        alive = _C.alive_during(graph, tightest.schedule, peak_step)
        alive.sort(key=graph.value_bytes, reverse=True)
        largest = "; what holds the memory there: " + ", ".join(
            f"{graph.value_name(one)} ({_C.format_bytes(graph.value_bytes(one))})" for one in alive[:5]
        )
    shown = _C.format_bytes(settings.budget) if isinstance(settings.budget, int) else settings.budget
    return BudgetError(
        f"the budget {shown} cannot be kept; the smallest that can is {smallest} bytes "
        f"({_C.format_bytes(smallest)}), {_C.format_bytes(outside)} of it outside the step{largest}",
        smallest,
    )


@dataclass
class Step:
    """One captured graph with its plans."""

    captured: Capture
    graph: _C.Graph
    problem: _C.Problem
    program: _C.OpProgram
    settings: Settings
    store_all_bytes: int
    plans: dict[int, tuple[_C.Plan, _C.OpStep]] = field(default_factory=dict)
    current: _C.OpStep | None = None
    outside_bytes: int = -1

    def plan(self, outside_bytes: int) -> _C.Plan:
        """The plan where this much is on the device beside the graph's values; each budget is planned once."""
        budget = self.settings.graph_budget(self.graph, self.store_all_bytes, outside_bytes)
        if budget not in self.plans:
            plan = _C.make_plan(self.problem, self.settings.planner, max(budget, 0), 0)
            if plan.schedule is None:
                raise too_small(self.settings, self.problem, self.graph, plan.smallest_budget_bytes, outside_bytes)
            self.plans[budget] = (plan, _C.OpStep(self.program, plan.schedule))
        plan, self.current = self.plans[budget]
        self.outside_bytes = outside_bytes
        return plan

    def enter(self) -> _C.OpStep:
        """Reads what is on the device and plans anew if that has grown."""
        outside = self.outside_now()
        if self.current is None or (
            not isinstance(self.settings.budget, (str, type(None))) and outside > self.outside_bytes
        ):
            self.plan(outside)
        return self.current

    def outside_now(self) -> int:
        return meter_of(self.captured.device).current_bytes() - self.input_bytes()

    def input_bytes(self) -> int:
        """Of what the graph counts as resident, what is there before a step: all but the outputs' gradients."""
        tangents = {self.captured.value_of_tensor[one] for one in self.captured.backward_inputs if one >= 0}
        return self.graph.resident_bytes() - sum(self.captured.values[one][1] for one in tangents)


def make_program(captured: Capture, graph: _C.Graph, call_of_op: list[int]) -> _C.OpProgram:
    def reference(node: fx.Node) -> object:
        if node in captured.constants:
            return captured.constants[node]
        if node in captured.number:
            return _C.TensorReference(captured.number[node])
        return node.meta["val"]

    calls = []
    for call in captured.calls:
        node = call.node
        schema = node.target._schema
        arguments = normalized_arguments(node, reference)
        variant = in_place_of(node.target)
        in_place = ("", "") if variant is None else (variant._schema.name, variant._schema.overload_name)
        calls.append(_C.make_call(schema.name, schema.overload_name, arguments, call.makes, call.draws, in_place))
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
    call_eager_batch_norms(joint)
    captured = capture(joint, forward_output_count, name)
    device = captured.device
    fill_costs(captured, cache_of(device, persistent=settings.cache), meter_of(device))
    graph, call_of_op = make_graph(captured)
    store_all_bytes = _C.simulate(graph, _C.store_all(graph)).peak_bytes
    return Step(
        captured, graph, _C.Problem(graph), make_program(captured, graph, call_of_op), settings, store_all_bytes
    )


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


def _not_called(*_: object) -> Any:
    raise RuntimeError("the plan runs instead of this")


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Settings,
    on_step: Callable[[Step], None] = Step.enter,
) -> Callable[..., Any]:
    """One graph of Dynamo's as a function that trains inside the budget. `on_step` sees each captured step."""
    steps: list[Step] = []

    def partition(
        joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        step = make_step(joint, num_fwd_outputs, settings, "step")
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
        forward = _stub("forward", primals, [*outputs[:num_fwd_outputs], token])
        backward = _stub("backward", [token, *tangents], outputs[num_fwd_outputs:])
        return forward, backward

    def forward_compiler(_: fx.GraphModule, __: Sequence[Any]) -> Callable[[list[Any]], Any]:
        step = steps[-1]

        def forward(arguments: list[Any]) -> list[Any]:
            op_step = step.enter()
            outputs, frame = op_step.forward(arguments)
            token = torch.empty(0)
            token.headroom = (op_step, frame)
            return [*outputs, token]

        forward._boxed_call = True
        return forward

    def backward_compiler(_: fx.GraphModule, __: Sequence[Any]) -> Callable[[list[Any]], Any]:
        def backward(arguments: list[Any]) -> list[Any]:
            op_step, frame = arguments[0].headroom
            gradients = arguments[1:]
            arguments.clear()
            return op_step.backward(frame, gradients)

        backward._boxed_call = True
        return backward

    def inference_compiler(inference: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        return make_boxed_func(inference.forward)

    return aot_module_simplified(
        gm,
        example_inputs,
        fw_compiler=forward_compiler,
        bw_compiler=backward_compiler,
        partition_fn=partition,
        inference_compiler=inference_compiler,
        keep_inference_input_mutations=False,
    )
