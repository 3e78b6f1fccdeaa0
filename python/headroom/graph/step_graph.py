"""Builds the graph that is planned from a captured graph and the rest of its step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import fx

from headroom import _C
from headroom.graph.capture import Call, Capture, real_strides
from headroom.graph.effects import forward_effects
from headroom.graph.mutation import is_last_write
from headroom.graph.operators import IN_FORWARD, concrete, flat_results, in_place_of, needs_a_tensor

# Numbers that stand for calls in `call_of_op`: an op that hands on a forward output (the last of these is the rest of
# the step), and the op for what autograd does with the gradients. OpProgram in headroom/runtime/ops/op_program.h has
# the same numbers.
HANDS_ON = -1
ACCUMULATES = -2


class Rest(NamedTuple):
    """Memory of a step outside one graph: between its forward and backward as one op, and after its backward."""

    peak_bytes: int = 0  # Peak between them, with the outputs' gradients and left_bytes.
    left_bytes: int = 0  # Live from then on, beside the outputs' gradients.
    is_held: bool = False  # Whether other code holds the outputs' gradients until the end of backward.
    tail_bytes: int = 0  # Allocated after the graph's backward, at the peak, beside its results.


def make_graph(of: Capture, rest: Rest = Rest(), *, accumulates: bool = True) -> tuple[_C.Graph, list[int]]:  # noqa: B008
    """Returns the graph to plan, and for each op its call, HANDS_ON or ACCUMULATES.

    The rest of the step reads the forward outputs and computes their gradients. If `accumulates`, the last op stands
    for what autograd does after the graph's backward; that requires that the layouts of gradients are known.
    """
    forward, backward = base_order(of)
    outputs = {of.value_of_tensor[tensor] for tensor in of.forward_outputs if tensor >= 0}
    builder = _GraphBuilder(of)
    for position in forward:
        builder.add_call(position, is_backward=False)
        for value in of.calls[position].values:
            if value in outputs:
                builder.hand_on(value)
    builder.add_rest(rest)
    for position in backward:
        builder.add_call(position, is_backward=True)
    if accumulates:
        builder.add_accumulation(rest)
    return builder.build(), [op.call for op in builder.ops]


@dataclass
class _Op:
    """An op of the graph that is being built, with the fields of _C.Op."""

    call: int  # Position of its call, HANDS_ON or ACCUMULATES.
    name: str
    is_backward: bool
    inputs: list[int]
    outputs: list[int]
    time_ns: int = 0
    workspace_bytes: int = 0
    recompute: bool = False
    overwrites: Sequence[int] = ()
    done: int = -1  # Value of 0 bytes that says that it has run. -1: there is none.


class _GraphBuilder:
    """Adds the ops of a step in their base order, and the values that only these ops have.

    Calls that draw random numbers or have effects run in their base order, and so does the rest of the step among them.
    Where an op does not depend on the one before by what it reads, it reads a value of 0 bytes from it.
    """

    def __init__(self, of: Capture) -> None:
        self.of = of
        self.ops: list[_Op] = []
        self.added_values: list[_C.Value] = []
        self.added_outputs: list[int] = []  # Values of the builder's own that are outputs of the step.
        self.tangents = list(dict.fromkeys(of.value_of_tensor[tensor] for tensor in of.backward_inputs if tensor >= 0))
        self.gradients = [of.value_of_tensor[tensor] for tensor in of.backward_outputs if tensor >= 0]
        self.held: list[int] = []  # Gradients of outputs that others hold until the end of backward.
        self.ordered: list[_Op] = []  # Ops that keep their order.
        self.last_ordered: dict[int, int] = {}  # By value: position of the last of these that it depends on.

    def _add(self, op: _Op, *, keeps_order: bool = False) -> None:
        last = max((self.last_ordered.get(value, -1) for value in op.inputs), default=-1)
        if keeps_order:
            if last + 1 < len(self.ordered):
                op.inputs.append(self._done(self.ordered[-1]))
            last = len(self.ordered)
            self.ordered.append(op)
        self.last_ordered.update(dict.fromkeys(op.outputs, last))
        self.ops.append(op)

    def _add_value(self, value: _C.Value) -> int:
        self.added_values.append(value)
        return len(self.of.values) + len(self.added_values) - 1

    def _add_output(self, value: _C.Value) -> int:
        self.added_outputs.append(self._add_value(value))
        return self.added_outputs[-1]

    def _done(self, op: _Op) -> int:
        """Returns the value that says that an op has run."""
        if op.done < 0:
            op.done = self._add_value(_C.Value(f"{op.name} is done", 0))
            op.outputs.append(op.done)
        return op.done

    def add_call(self, position: int, *, is_backward: bool) -> None:
        call = self.of.calls[position]
        op = _Op(
            position,
            call.node.name,
            is_backward,
            inputs=list(dict.fromkeys(self.of.value_of_tensor[tensor] for tensor in call.reads)),
            outputs=list(call.values),
            time_ns=call.time_ns,
            workspace_bytes=call.workspace_bytes,
            recompute=call.may_recompute,
            overwrites=overwritten(call, self.of),
        )
        if is_last_write(call.node):
            op.inputs.extend(value for value in dict.fromkeys(self.gradients) if value not in op.inputs)
        if call.has_effect or (call.node.meta.get(IN_FORWARD) and not is_backward):  # Whatever reads its results.
            self.added_outputs.append(self._done(op))
        self._add(op, keeps_order=call.draws or call.has_effect)

    def hand_on(self, value: int) -> None:
        """Adds the op that hands a value on as a forward output, which holds the value from then on."""
        name = f"output {self.of.values[value].name}"
        kept = self._add_output(_C.Value(f"{self.of.values[value].name} as output", 0, holds=[value]))
        self._add(_Op(HANDS_ON, name, is_backward=False, inputs=[value], outputs=[kept]))

    def add_rest(self, rest: Rest) -> None:
        """Adds the rest of the step, after all forward outputs and all that must happen in forward."""
        inputs = list(self.added_outputs)
        left = self._add_output(_C.Value("left by the rest of the step", rest.left_bytes))
        tangent_bytes = sum(self.of.values[value].bytes for value in self.tangents)
        op = _Op(
            HANDS_ON,
            "the rest of the step",
            is_backward=True,
            inputs=inputs,
            outputs=[*self.tangents, left],
            workspace_bytes=max(0, rest.peak_bytes - rest.left_bytes - tangent_bytes),
        )
        self._add(op, keeps_order=True)
        # loss.backward() itself holds the gradient of the loss.
        given = [tensor for tensor in self.of.backward_inputs if tensor >= 0]
        scalars = [tensor for tensor in given if self.of.tensors[tensor].meta["val"].numel() == 1]
        self.held = self.tangents if rest.is_held else [self.of.value_of_tensor[tensor] for tensor in scalars]

    def add_accumulation(self, rest: Rest) -> None:
        op = _Op(
            ACCUMULATES,
            "accumulate gradients",
            is_backward=True,
            inputs=list(dict.fromkeys(self.gradients)),
            outputs=[self._add_output(_C.Value("accumulated gradients", 0))],
            workspace_bytes=max(_copied_gradients_bytes(self.of), rest.tail_bytes),
        )
        self._add(op, keeps_order=True)

    def build(self) -> _C.Graph:
        of = self.of
        outputs = [value for value in dict.fromkeys([*self.gradients, *self.held]) if not of.values[value].resident]
        # Values keep their numbers, so a value that no op reads or writes becomes a resident one of size 0.
        used = {value for op in self.ops for value in [*op.inputs, *op.outputs]}
        values = [
            _C.Value(name, size, resident) if number in used or resident else _C.Value(name, 0, resident=True)
            for number, (name, size, resident) in enumerate(of.values)
        ]
        ops = [
            _C.Op(
                name=op.name,
                is_backward=op.is_backward,
                inputs=op.inputs,
                outputs=op.outputs,
                time_ns=op.time_ns,
                workspace_bytes=op.workspace_bytes,
                recompute=op.recompute,
                overwrites=op.overwrites,
            )
            for op in self.ops
        ]
        return _C.Graph(of.name, [*values, *self.added_values], ops, [*outputs, *self.added_outputs])


def _needed_for(calls: Iterable[int], inputs: Callable[[int], Iterable[int]], done: set[int]) -> set[int]:
    """Returns these calls and all that they need, without those that are done and what only these need."""
    needed: set[int] = set()
    stack = list(calls)
    while stack:
        position = stack.pop()
        if position not in needed and position not in done:
            needed.add(position)
            stack.extend(inputs(position))
    return needed


def base_order(of: Capture) -> tuple[list[int], list[int]]:
    """Returns the calls of forward and backward that are ops, not views, in the order of store-all.

    Forward is what the forward outputs need, and the calls of the model's forward that draw random numbers. A call that
    neither they need nor depends on the outputs' gradients runs where it is first needed. Calls that draw keep their
    order, and what overwrites inputs comes last.
    """
    maker: dict[int, int] = {}  # By value: the call that makes it.
    for position, call in enumerate(of.calls):
        for value in call.values:
            maker[value] = position

    def inputs(position: int) -> Iterable[int]:
        for tensor in of.calls[position].reads:
            value = of.value_of_tensor[tensor]
            if value in maker:
                yield maker[value]

    tangents = {of.value_of_tensor[tensor] for tensor in of.backward_inputs if tensor >= 0}
    late: set[int] = set()
    for position, call in enumerate(of.calls):
        values = {of.value_of_tensor[tensor] for tensor in call.reads}
        if values & tangents or any(source in late for source in inputs(position)):
            late.add(position)
    first = forward_effects(of.calls, late) + [
        maker[of.value_of_tensor[tensor]]
        for tensor in of.forward_outputs
        if tensor >= 0 and of.value_of_tensor[tensor] in maker
    ]
    first += [position for position, call in enumerate(of.calls) if position not in late and _is_in_forward(call)]
    forward = _needed_for(first, inputs, set())
    wanted = {
        maker[of.value_of_tensor[tensor]]
        for tensor in of.backward_outputs
        if tensor >= 0 and of.value_of_tensor[tensor] in maker
    }
    wanted |= {position for position, call in enumerate(of.calls) if call.has_effect}
    backward: list[int] = []
    done: set[int] = set(forward)

    def run(position: int) -> None:
        todo = [position]
        while todo:
            top = todo[-1]
            missing = [source for source in inputs(top) if source not in done]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if top not in done:
                done.add(top)
                backward.append(top)

    needed = _needed_for(wanted, inputs, forward)
    for position in sorted(needed):
        if position in late or of.calls[position].draws:
            run(position)
    for position in sorted(needed):
        run(position)
    is_op = [bool(call.values) or call.has_effect for call in of.calls]
    backward.sort(key=lambda position: is_last_write(of.calls[position].node))
    return [i for i in sorted(forward) if is_op[i]], [i for i in backward if is_op[i]]


def _is_in_forward(call: Call) -> bool:
    """Returns whether a call runs in forward whatever needs it; AOTAutograd tags the nodes of forward."""
    meta = call.node.meta
    return bool(meta.get(IN_FORWARD)) or (call.draws and meta.get("partitioner_tag") == "is_forward")


def overwritten(call: Call, of: Capture) -> list[int]:
    """Returns the value that the call may write its result over, if there is one.

    It is the value of the first argument, if that has the layout of the result.
    """
    if call.overwrites is not None:
        return call.overwrites
    first = call.node.args[0] if call.node.args else None
    can = in_place_of(call.node.target) is not None
    if not can or not isinstance(first, fx.Node) or len(call.values) != 1:
        return []
    value = of.value_of_tensor[of.number[first]] if first in of.number else -1
    others = [of.value_of_tensor[of.number[source]] for source in needs_a_tensor(call.node)[1:] if source in of.number]
    if (
        value < 0
        or of.values[value].resident
        or value in others
        or of.values[value].bytes != of.values[call.values[0]].bytes
    ):
        return []
    source, result = first.meta["val"], call.node.meta["val"]
    same = (source.shape, source.stride(), source.dtype) == (result.shape, result.stride(), result.dtype)
    # Kernels on complex numbers may round differently in place.
    return [value] if same and not result.is_complex() else []


def _copied_gradients_bytes(of: Capture) -> int:
    """Returns an upper bound of the bytes that autograd adds where gradients become `.grad`.

    Autograd takes over a gradient that has no other owner and the layout of its input. Other gradients are copied one
    after another, and each is freed once it is copied.
    """
    counts = Counter(tensor for tensor in of.backward_outputs if tensor >= 0)
    calls = {made: call for call in of.calls for made in call.makes}
    growth, most_shrunk = 0, 0
    # The tokens of effects come before all other inputs, and have no gradients.
    token_count = max(len(of.forward_inputs) - len(of.backward_outputs), 0)
    for leaf, made in zip(of.forward_inputs[token_count:], of.backward_outputs, strict=False):
        if leaf < 0 or made < 0:
            continue
        source = of.tensors[made]
        gradient = source.meta["val"]
        if source in of.many:
            gradient = flat_results(gradient)[of.many[source].index(made)]
        strides = calls[made].strides.get(made) if made in calls else None
        strides = strides or real_strides(gradient, calls.get(made))
        if counts[made] == 1 and _is_laid_out_like(gradient, strides, of.tensors[leaf].meta["val"]):
            continue
        value = of.value_of_tensor[made]
        copy = _C.allocated_bytes(concrete(gradient.numel()) * gradient.element_size(), of.device)
        freed = of.values[value].bytes if counts[made] == 1 and not of.values[value].resident else 0
        growth += max(0, copy - freed)
        most_shrunk = max(most_shrunk, min(copy, freed))
    return growth + most_shrunk


def _is_laid_out_like(gradient: torch.Tensor, strides: list[int], leaf: torch.Tensor) -> bool:
    """Returns whether autograd takes over a gradient with these strides as the `.grad` of the leaf."""
    sizes = [concrete(size) for size in leaf.shape]
    steps = [(concrete(stride), size) for stride, size in zip(leaf.stride(), sizes, strict=True) if size != 1]
    dense = 1
    for stride, size in sorted(steps):
        if stride != dense:
            return gradient.is_contiguous()
        dense *= size
    return [stride for stride, size in zip(strides, sizes, strict=True) if size != 1] == [stride for stride, _ in steps]
