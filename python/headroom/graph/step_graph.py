"""The graph that is planned: a captured graph, and the rest of the step that it is part of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import fx

from headroom import _C
from headroom.graph.capture import Call, Capture, real_strides
from headroom.graph.effects import forward_effects
from headroom.graph.operators import IN_FORWARD, concrete, flat_results, in_place_of, needs_a_tensor

# In place of a call's number: an op that hands on forward outputs, of which the rest of the step is the last, and one
# that stands for what autograd does with the gradients. As in headroom/runtime/op_program.h.
HANDS_ON = -1
ACCUMULATES = -2


class Rest(NamedTuple):
    """The part of a step outside of a graph: between its forward and its backward as one op, and after its backward."""

    peak_bytes: int = 0  # between them, the outputs' gradients and what is left included
    left_bytes: int = 0  # live from then on, beside the outputs' gradients
    is_held: bool = False  # somebody else holds the outputs' gradients to the end of backward
    tail_bytes: int = 0  # allocated after the graph's backward, at the peak, beside what that returns


def make_graph(of: Capture, rest: Rest = Rest(), *, accumulates: bool = True) -> tuple[_C.Graph, list[int]]:  # noqa: B008
    """The graph that is planned, and the call of each op, or HANDS_ON or ACCUMULATES.

    The rest of the step reads the forward outputs and makes their gradients. The last op stands for what autograd
    does after the graph's backward, if the graph `accumulates`: if the layouts of gradients are known.
    """
    forward, backward = base_order(of)
    outputs = {of.value_of_tensor[one] for one in of.forward_outputs if one >= 0}
    values: list[tuple[str, int, bool, list[int]]] = []
    ops: list[tuple[str, bool, list[int], list[int], int, int, bool, list[int]]] = []
    call_of_op: list[int] = []
    handed_on: list[int] = []

    def add(position: int, *, is_backward: bool) -> None:
        call = of.calls[position]
        reads = list(dict.fromkeys(of.value_of_tensor[one] for one in call.reads))
        costs = (call.time_ns, call.workspace_bytes)
        ops.append((call.node.name, is_backward, reads, call.values, *costs, call.may_recompute, overwritten(call, of)))
        call_of_op.append(position)

    for position in forward:
        add(position, is_backward=False)
        for value in of.calls[position].values:
            if value in outputs:
                handed_on.append(value)
                kept = len(of.values) + len(handed_on) - 1
                ops.append((f"output {of.values[value].name}", False, [value], [kept], 0, 0, False, []))
                call_of_op.append(HANDS_ON)
    kept_outputs = list(range(len(of.values), len(of.values) + len(handed_on)))
    tangents = list(dict.fromkeys(of.value_of_tensor[one] for one in of.backward_inputs if one >= 0))
    left = len(of.values) + len(handed_on)
    workspace = max(0, rest.peak_bytes - rest.left_bytes - sum(of.values[one].bytes for one in tangents))
    # What has an effect in forward runs before the rest of the step, whatever reads its result.
    effects = [of.calls[position].values[0] for position in forward if of.calls[position].has_effect]
    ops.append(("the rest of the step", True, [*kept_outputs, *effects], [*tangents, left], 0, workspace, False, []))
    call_of_op.append(HANDS_ON)
    for position in backward:
        add(position, is_backward=True)
    gradients = [of.value_of_tensor[one] for one in of.backward_outputs if one >= 0]
    # loss.backward() itself holds the gradient of the loss.
    scalars = [one for one in of.backward_inputs if one >= 0 and of.tensors[one].meta["val"].numel() == 1]
    held = tangents if rest.is_held else [of.value_of_tensor[one] for one in scalars]
    effects = [call.values[0] for call in of.calls if call.has_effect]
    kept_values = [one for one in dict.fromkeys([*gradients, *held, *effects]) if not of.values[one].resident]
    kept_values += [*kept_outputs, left]
    if accumulates:
        accumulated = left + 1
        reads = list(dict.fromkeys(gradients))
        workspace = max(_copied_gradients_bytes(of), rest.tail_bytes)
        ops.append(("accumulate gradients", True, reads, [accumulated], 0, workspace, False, []))
        call_of_op.append(ACCUMULATES)
        kept_values.append(accumulated)
    # All values keep their numbers: what no op reads or writes takes part as resident and of no size.
    used = {value for _, _, reads, made, *_ in ops for value in [*reads, *made]}
    for number, (name, size, resident) in enumerate(of.values):
        values.append((name, size, resident, []) if number in used or resident else (name, 0, True, []))
    values += [(f"{of.values[value].name} as output", 0, False, [value]) for value in handed_on]
    values.append(("left by the rest of the step", rest.left_bytes, False, []))
    if accumulates:
        values.append(("accumulated gradients", 0, False, []))
    return _C.Graph(of.name, values, ops, kept_values), call_of_op


def base_order(of: Capture) -> tuple[list[int], list[int]]:
    """Calls that are ops (views are not), forward and backward, in the order in which plain training runs them.

    Forward is what the forward outputs need. What is left and does not depend on the outputs' gradients is run where
    it is first needed.
    """
    maker: dict[int, int] = {}  # by value: the call
    for position, call in enumerate(of.calls):
        for value in call.values:
            maker[value] = position

    def inputs(position: int) -> Iterable[int]:
        for tensor in of.calls[position].reads:
            value = of.value_of_tensor[tensor]
            if value in maker:
                yield maker[value]

    tangents = {of.value_of_tensor[one] for one in of.backward_inputs if one >= 0}
    late: set[int] = set()
    for position, call in enumerate(of.calls):
        values = {of.value_of_tensor[one] for one in call.reads}
        if values & tangents or any(one in late for one in inputs(position)):
            late.add(position)
    forward: set[int] = set()
    stack = forward_effects(of.calls, late) + [
        maker[of.value_of_tensor[one]] for one in of.forward_outputs if one >= 0 and of.value_of_tensor[one] in maker
    ]
    stack += [position for position, call in enumerate(of.calls) if call.node.meta.get(IN_FORWARD)]
    while stack:
        position = stack.pop()
        if position not in forward:
            forward.add(position)
            stack.extend(inputs(position))
    wanted = {
        maker[of.value_of_tensor[one]] for one in of.backward_outputs if one >= 0 and of.value_of_tensor[one] in maker
    }
    wanted |= {position for position, call in enumerate(of.calls) if call.has_effect}
    backward: list[int] = []
    done: set[int] = set(forward)

    def run(position: int) -> None:
        todo = [position]
        while todo:
            top = todo[-1]
            missing = [one for one in inputs(top) if one not in done]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if top not in done:
                done.add(top)
                backward.append(top)

    needed: set[int] = set()
    stack = list(wanted)
    while stack:
        position = stack.pop()
        if position not in needed and position not in forward:
            needed.add(position)
            stack.extend(inputs(position))
    for position in sorted(needed & late):
        run(position)
    for position in sorted(needed):
        run(position)
    is_op = [bool(call.values) for call in of.calls]
    return [one for one in sorted(forward) if is_op[one]], [one for one in backward if is_op[one]]


def overwritten(call: Call, of: Capture) -> list[int]:
    """The value that the call may write its result over: of its first argument, if that has the result's layout."""
    if call.overwrites is not None:
        return call.overwrites
    first = call.node.args[0] if call.node.args else None
    can = in_place_of(call.node.target) is not None
    if not can or not isinstance(first, fx.Node) or len(call.values) != 1:
        return []
    value = of.value_of_tensor[of.number[first]] if first in of.number else -1
    others = [of.value_of_tensor[of.number[one]] for one in needs_a_tensor(call.node)[1:] if one in of.number]
    if (
        value < 0
        or of.values[value].resident
        or value in others
        or of.values[value].bytes != of.values[call.values[0]].bytes
    ):
        return []
    given, made = first.meta["val"], call.node.meta["val"]
    same = (given.shape, given.stride(), given.dtype) == (made.shape, made.stride(), made.dtype)
    # Kernels on complex numbers may round differently in place.
    return [value] if same and not made.is_complex() else []


def _copied_gradients_bytes(of: Capture) -> int:
    """The most bytes that autograd adds where gradients become `.grad`.

    It takes a gradient as it is if nobody else has it and if it is laid out like its input. Copies are made one after
    the other, and what was copied is freed.
    """
    counts = Counter(one for one in of.backward_outputs if one >= 0)
    calls = {made: call for call in of.calls for made in call.makes}
    growth, most_shrunk = 0, 0
    for given, made in zip(of.forward_inputs, of.backward_outputs, strict=False):
        if given < 0 or made < 0:
            continue
        source = of.tensors[made]
        gradient = source.meta["val"]
        if source in of.many:
            gradient = flat_results(gradient)[of.many[source].index(made)]
        strides = calls[made].strides.get(made) if made in calls else None
        strides = strides or real_strides(gradient, calls.get(made))
        if counts[made] == 1 and _is_laid_out_like(gradient, strides, of.tensors[given].meta["val"]):
            continue
        value = of.value_of_tensor[made]
        copy = _C.allocated_bytes(concrete(gradient.numel()) * gradient.element_size(), of.device)
        freed = of.values[value].bytes if counts[made] == 1 and not of.values[value].resident else 0
        growth += max(0, copy - freed)
        most_shrunk = max(most_shrunk, min(copy, freed))
    return growth + most_shrunk


def _is_laid_out_like(gradient: torch.Tensor, strides: list[int], given: torch.Tensor) -> bool:
    """Whether autograd takes a gradient with these strides for the `.grad` of that as it is."""
    sizes = [concrete(one) for one in given.shape]
    steps = [(concrete(stride), size) for stride, size in zip(given.stride(), sizes, strict=True) if size != 1]
    dense = 1
    for stride, size in sorted(steps):
        if stride != dense:
            return gradient.is_contiguous()
        dense *= size
    return [one for one, size in zip(strides, sizes, strict=True) if size != 1] == [stride for stride, _ in steps]
