"""The eager backend of torch.compile: captures and plans a graph, and gives AOTAutograd functions that run the plan."""

from __future__ import annotations

import functools
import logging
import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from headroom import _C
from headroom._torch import aot_module_simplified, make_boxed_func, pytree
from headroom.budget.flight import flights_on, unwatched
from headroom.budget.meter import meter_of
from headroom.costs.op_costs import cost_cache
from headroom.costs.step_costs import StepCosts
from headroom.entrance import count_graph
from headroom.exec.nodes import compiled_node, may_have_history
from headroom.exec.refusals import refuse_unsupported_backwards
from headroom.graph.capture import capture
from headroom.graph.mutation import write_last
from headroom.graph.op_program import make_calls
from headroom.graph.operators import is_tensor
from headroom.graph.rewrite import (
    call_eager_batch_norms,
    draw_in_layout,
    drop_unused_statistics,
    protect_changed_inputs,
    separate_gradients,
    share_masks,
    update_statistics,
)
from headroom.graph.tracing import eager_kernels, is_cut, specialize
from headroom.planning import Step
from headroom.settings import Settings

_log = logging.getLogger(__name__)


def make_step(joint: fx.GraphModule, forward_output_count: int, settings: Settings, name: str) -> Step:
    start = time.perf_counter()
    call_eager_batch_norms(joint)
    update_statistics(joint, forward_output_count)
    drop_unused_statistics(joint)
    draw_in_layout(joint)
    share_masks(joint)
    protect_changed_inputs(joint, forward_output_count)
    separate_gradients(joint, forward_output_count)
    write_last(joint)
    captured = capture(joint, forward_output_count, name)
    device = captured.device
    cache = functools.partial(cost_cache, device, settings)
    costs = StepCosts(captured, cache, meter_of(device), settings.limit_bytes())
    step = Step(captured, make_calls(captured), settings, costs)
    taken = 1e3 * (time.perf_counter() - start)
    _log.info("capture of %d calls of operators: %.0f ms", len(captured.calls), taken)
    if settings.on_plan is not None:  # on_plan() is told the time of the plan.
        costs.need_times()
    elif settings.budget is not None:
        costs.need_memory()
    return step


def _stub(name: str, inputs: Sequence[fx.Node], outputs: Sequence[Any]) -> fx.GraphModule:
    """Returns a module in place of a compiled function, with the placeholders and outputs that AOTAutograd reads."""
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


def _stubs(joint: fx.GraphModule, num_fwd_outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Returns a forward and a backward graph for AOTAutograd, which save nothing but a token for the step in flight."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    primals = [node for node in placeholders if not node.name.startswith("tangents")]
    tangents = [node for node in placeholders if node.name.startswith("tangents")]
    outputs = pytree.arg_tree_leaves(*joint.graph.output_node().args)
    token = fx.Graph().placeholder("token")
    example = next(node.meta["val"] for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor))
    with example.fake_mode:
        token.meta["val"] = torch.empty(0)
    # This flag keeps the token on autograd's context as it is; saved-tensor hooks would replace it.
    token.meta["saved_tensor_with_no_vc_check"] = True
    forward = _stub("forward", primals, [*outputs[:num_fwd_outputs], token])
    backward = _stub("backward", [token, *tangents], outputs[num_fwd_outputs:])
    return forward, backward


def _backward_of(step: Step) -> Callable[[list[Any]], Any]:
    """Returns the function that runs a step's backward; its first argument is the token of forward."""

    def backward(arguments: list[Any]) -> list[Any]:
        flight = arguments[0].headroom
        gradients = arguments[1:]
        arguments.clear()
        with flights_on(step.device).backward(flight, _C.storage_bytes(gradients)):
            results, flight.is_held = flight.chosen.op_step.backward(flight.frame, gradients)
        return results

    backward._boxed_call = True
    return backward


_entered = threading.local()  # The flight of the forward that this thread has just run.


def _watching_results(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the compiled function; its backward notices changes in place of results, also of views of saved tensors.

    AOTAutograd hands out new tensors in the place of views, so the flight gets the results that the user gets. It also
    refuses to differentiate gradients.
    """

    with_history: list[int] | None = None  # Positions of arguments that other graphs may have computed.

    def run(*arguments: Any) -> Any:
        nonlocal with_history
        if with_history is None:  # Dynamo's guards make it hold for every call.
            with_history = [i for i, argument in enumerate(arguments) if may_have_history(argument)]
        histories = {arguments[i].grad_fn for i in with_history}
        _entered.flight = None
        try:
            results = compiled(*arguments)
            flight = _entered.flight
        finally:
            _entered.flight = None
        if flight is not None:
            tensors = [result for result in results if is_tensor(result)]
            flight.chosen.op_step.watch(flight.frame, tensors)
            node = compiled_node(tensors, histories) or compiled_node(arguments, histories)
            if node is not None:
                refuse_unsupported_backwards(node)
        return results

    return run


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Settings,
    on_step: Callable[[Step], None] = lambda _: None,
) -> Callable[..., Any]:
    """Compiles one of Dynamo's graphs to a function that trains within the budget; `on_step` gets captured steps."""
    steps: list[Step] = []
    partition_s = 0.0
    start_s = time.perf_counter()
    specialize(example_inputs)

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
        return _stubs(joint, num_fwd_outputs)

    def forward_compiler(_: fx.GraphModule, __: Sequence[Any]) -> Callable[[list[Any]], Any]:
        step = steps[-1]

        def forward(arguments: list[Any]) -> list[Any]:
            count_graph()
            with flights_on(step.device).forward(step, arguments) as flight:
                outputs, flight.frame = flight.chosen.op_step.forward(arguments, flight.chosen.arena)
            _entered.flight = flight
            token = torch.empty(0)
            token.headroom = flight
            return [*outputs, token]

        forward._boxed_call = True
        return forward

    with eager_kernels():
        compiled = aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward_compiler,
            bw_compiler=lambda _, __: _backward_of(steps[-1]),
            partition_fn=partition,
            inference_compiler=lambda inference, _: make_boxed_func(inference.forward),
            keep_inference_input_mutations=False,
        )
    taken = 1e3 * (time.perf_counter() - start_s - partition_s)
    _log.info("compiling by AOTAutograd, without capture and measuring: %.0f ms", taken)
    return _watching_results(compiled)
