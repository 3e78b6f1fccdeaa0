"""Turns the calls of a captured graph into the program that the C++ side runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import fx

from headroom import _C
from headroom._torch import HigherOrderOperator
from headroom.graph.capture import Call, Capture
from headroom.graph.operators import flat_results, in_place_of, needs_a_tensor, normalized_arguments
from headroom.graph.rewrite import updated_by
from headroom.graph.unsupported import located, place_of

# Operators that are traced as views but run as reshape: they need a copy if a kernel's layout differs from the traced
# one.
_RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def make_calls(captured: Capture) -> list[_C.OpCall]:
    calls = []
    for call in captured.calls:
        node = call.node
        if isinstance(node.target, HigherOrderOperator):
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
    """Returns the call of a higher-order operator as a function of its tensors; the dispatcher does not know it."""
    node = call.node
    order: dict[fx.Node, int] = {}
    for source in needs_a_tensor(node):
        if source in captured.number:
            order.setdefault(source, len(order))

    def run(*tensors: torch.Tensor) -> list[torch.Tensor | None]:
        def value_of(source: fx.Node) -> object:
            return tensors[order[source]] if source in order else captured.constants[source]

        made = node.target(*fx.node.map_arg(node.args, value_of), **fx.node.map_arg(node.kwargs, value_of))
        return [result if isinstance(result, torch.Tensor) else None for result in flat_results(made)]

    arguments = [captured.number[source] for source in order]
    return _C.make_python_call(str(node.target), run, arguments, call.makes, call.draws, place_of(node))


def make_program(captured: Capture, calls: list[_C.OpCall], graph: _C.Graph, call_of_op: list[int]) -> _C.OpProgram:
    return _C.OpProgram(
        graph=graph,
        calls=calls,
        call_of_op=call_of_op,
        call_of_view=captured.view_call,
        value_of_tensor=captured.value_of_tensor,
        forward_inputs=captured.forward_inputs,
        backward_inputs=captured.backward_inputs,
        forward_outputs=captured.forward_outputs,
        backward_outputs=captured.backward_outputs,
        device=captured.device,
    )
