"""The joint graph that AOTAutograd traces, as the values and calls that the C++ side plans and runs."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from headroom import _C
from headroom.effects import forward_effects, has_effect, is_token
from headroom.unsupported import LEAVE_OUT, Unsupported, check_tensor, located

aten = torch.ops.aten

# Views by what they do, though their schemas do not say so.
_QUIET_VIEWS = {aten._unsafe_view.default, aten._reshape_alias.default, aten.lift_fresh.default}

# Higher-order operators that are functions of their tensors, so that they may run again. They are called in Python.
_FUNCTIONAL_HIGHER_ORDER = {
    "associative_scan",
    "auto_functionalized",
    "auto_functionalized_v2",
    "cond",
    "flex_attention",
    "flex_attention_backward",
    "map_impl",
    "scan",
    "while_loop",
}

# Symbolic numbers, and what they are in one call.
_SYMBOLS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}

# The largest constants that are kept where no meter counts them.
_MAX_UNCOUNTED_BYTES = 4096

# In a node's meta: it runs in forward, whether or not forward's outputs need it.
IN_FORWARD = "headroom_in_forward"

# Operators that may write their result over their first argument, though they have no variant named for it.
_WRITE_GRAD_INPUT = {
    aten.elu_backward,
    aten.gelu_backward,
    aten.hardtanh_backward,
    aten.leaky_relu_backward,
    aten.sigmoid_backward,
    aten.silu_backward,
    aten.tanh_backward,
    aten.threshold_backward,
}

# Operators whose result is a view of a copy of all the memory that their first argument is a view of.
_CLONES_STORAGE = {aten.copy, aten.select_scatter, aten.slice_scatter, aten.diagonal_scatter, aten.as_strided_scatter}


@dataclass
class Call:
    """One call of an operator, by the numbers of the tensors that it reads and makes."""

    node: fx.Node
    reads: list[int]
    makes: list[int]  # by result, lists flattened; -1: nothing reads it
    values: list[int] = field(default_factory=list)  # that it writes; of views none
    is_view: bool = False
    draws: bool = False
    may_recompute: bool = True
    has_effect: bool = False  # it is there for what it does: it runs once, among the others of its kind in their order
    overwrites: list[int] | None = None  # values, if it is known which its result may take the place of
    channels_last: bool = False  # images that it reads are, whatever was captured
    strides: dict[int, list[int]] = field(default_factory=dict)  # of tensors that are laid out otherwise than is known
    time_ns: int = 0
    workspace_bytes: int = 0


class Value(NamedTuple):
    """A storage."""

    name: str
    bytes: int
    resident: bool  # there before the step, and after it


@dataclass
class Capture:
    """A joint graph taken apart. Tensors are numbered; each lies in a value, a storage."""

    name: str
    device: torch.device
    calls: list[Call] = field(default_factory=list)
    tensors: list[fx.Node] = field(default_factory=list)  # by number: a node that stands for it
    value_of_tensor: list[int] = field(default_factory=list)
    view_call: list[int] = field(default_factory=list)  # by tensor: the call that makes it as a view; -1
    values: list[Value] = field(default_factory=list)
    forward_inputs: list[int] = field(default_factory=list)
    backward_inputs: list[int] = field(default_factory=list)
    forward_outputs: list[int] = field(default_factory=list)
    backward_outputs: list[int] = field(default_factory=list)
    number: dict[fx.Node, int] = field(default_factory=dict)
    many: dict[fx.Node, list[int]] = field(default_factory=dict)  # of nodes with several results
    constants: dict[fx.Node, Any] = field(default_factory=dict)  # of get_attr nodes, and what is computed from them
    last_effect: int = -1  # the tensor that stands for the last effect, which the next one follows

    def resident_bytes(self) -> int:
        return sum(value.bytes for value in self.values if value.resident)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def storage_bytes(value: torch.Tensor) -> int:
    return _C.allocated_bytes(concrete(value.untyped_storage().nbytes()), value.device)


def concrete(size: object) -> int:
    """A size as a number. A symbolic one is that of this call from now on: other sizes are planned on their own."""
    if isinstance(size, torch.SymInt) and size.node.is_nested_int():
        raise Unsupported(f"nested tensors cannot be planned; {LEAVE_OUT}")
    return _number(size, int)


def _number(symbol: object, kind: type) -> Any:
    try:
        return kind(symbol)
    except GuardOnDataDependentSymNode as error:
        raise Unsupported(
            "a size that is known only once the step runs cannot be planned; leave the part that makes it out of the "
            "compiled region (torch.compiler.disable)"
        ) from error


def is_view(target: object) -> bool:
    if target in _QUIET_VIEWS:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    returns = target._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def writes(target: object) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def flat_results(value: object) -> list[object]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def in_place_of(target: object) -> torch._ops.OpOverload | None:
    """The same operator on the memory of its first argument, which it takes once more at the end if it is an out."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    packet = target.overloadpacket
    if packet in _WRITE_GRAD_INPUT:
        return packet.grad_input
    if target.namespace != "aten" or torch.Tag.pointwise not in target.tags:
        return None
    variant = getattr(getattr(aten, f"{packet.__name__}_", None), target._overloadname, None)
    if variant is None:
        return None
    names = [one.name for one in target._schema.arguments]
    return variant if names == [one.name for one in variant._schema.arguments] else None


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


def needs_a_tensor(node: fx.Node) -> list[fx.Node]:
    return [one for one in pytree.arg_tree_leaves(*node.args, **node.kwargs) if isinstance(one, fx.Node)]


def capture(joint: fx.GraphModule, forward_output_count: int, name: str) -> Capture:
    """Numbers tensors and values. Throws Unsupported for what cannot be planned."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    tensors = [node.meta["val"] for node in placeholders if is_tensor(node.meta.get("val"))]
    devices = {value.device for value in tensors if value.device.type != "cpu"} or {torch.device("cpu")}
    if len(devices) > 1:
        raise Unsupported(f"one device at a time, found {', '.join(sorted(map(str, devices)))}")
    result = Capture(name, devices.pop())
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            result.constants[node] = concrete(value)
        elif is_token(node):
            result.constants[node] = value = None
        is_tangent = node.name.startswith("tangents")
        inputs = result.backward_inputs if is_tangent else result.forward_inputs
        inputs.append(_add_tensor(result, node, resident=not is_tangent) if is_tensor(value) else -1)
    for node in joint.graph.nodes:
        if node.op == "get_attr":
            result.constants[node] = _constant_of(joint, node.target)
        elif node.op == "call_function" and node.target is operator.getitem:
            _add_getitem(result, node)
        elif node.op == "call_function":
            _add_call(result, node)
    outputs = pytree.arg_tree_leaves(*joint.graph.output_node().args)
    numbers = [result.number.get(one, -1) if isinstance(one, fx.Node) else -1 for one in outputs]
    result.forward_outputs = numbers[:forward_output_count]
    result.backward_outputs = numbers[forward_output_count:]
    return result


def _add_tensor(to: Capture, node: fx.Node, *, resident: bool = False, value: object = None, of: int = -1) -> int:
    """A tensor in a new value, or with `of` in the value of that tensor."""
    value = node.meta["val"] if value is None else value
    number = len(to.tensors)
    to.tensors.append(node)
    to.view_call.append(-1)
    if of >= 0:
        to.value_of_tensor.append(to.value_of_tensor[of])
    else:
        to.value_of_tensor.append(len(to.values))
        label = node.name if is_tensor(node.meta.get("val")) else f"{node.name}.{number}"
        to.values.append(Value(label, storage_bytes(value), resident))
    to.number.setdefault(node, number)
    return number


def _add_getitem(to: Capture, node: fx.Node) -> None:
    source, index = node.args
    if source in to.constants:
        to.constants[node] = to.constants[source][index]
    elif source in to.many:
        to.number[node] = to.many[source][index]
    else:
        with located(source):
            raise Unsupported(f"{node.name} takes a part of its result, which is not planned; {LEAVE_OUT}")


def _add_call(to: Capture, node: fx.Node) -> None:
    with located(node):
        _refuse_unknown(node)
        value = node.meta.get("val")
        if type(value) in _SYMBOLS:
            to.constants[node] = _number(value, _SYMBOLS[type(value)])
        elif is_view(node.target) and not any(input_node in to.number for input_node in needs_a_tensor(node)):
            _add_constant(to, node)
        else:
            _add_operator(to, node, value)


def _refuse_unknown(node: fx.Node) -> None:
    if not callable(node.target) or isinstance(node.target, str):
        raise Unsupported(f"{node.target} is not called in a way that can be planned")
    is_higher_order = isinstance(node.target, torch._ops.HigherOrderOperator)
    if is_higher_order and str(node.target) not in _FUNCTIONAL_HIGHER_ORDER | {"with_effects"}:
        raise Unsupported(f"the higher-order operator {node.target} is not supported; {LEAVE_OUT}")


def _constant_of(joint: fx.GraphModule, name: str) -> Any:
    """Returns an attribute of the graph, small tensors on the CPU in memory that no meter counts.

    A number that a model makes a tensor of lives as long as the graph. Each compilation has its own, so that a budget
    which one names would be too small for the next.
    """
    value = getattr(joint, name)
    is_plain = type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided
    if not is_plain or not 0 < value.numel() * value.element_size() <= _MAX_UNCOUNTED_BYTES:
        return value
    with unset_fake_temporarily(), torch.no_grad():
        data = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).untyped_storage()
        copy = torch.frombuffer(bytearray(data.tolist()), dtype=value.dtype).reshape(value.shape)
    setattr(joint, name, copy)
    return copy


def _add_constant(to: Capture, node: fx.Node) -> None:
    """A view of a constant, or of a number: a constant as well, so that nothing is computed in its place."""
    if any(user.op == "output" for user in node.users):
        raise Unsupported(f"a constant as a result cannot be planned; {LEAVE_OUT}")
    args, kwargs = (fx.node.map_arg(one, to.constants.__getitem__) for one in (node.args, node.kwargs))
    with unset_fake_temporarily(), torch.no_grad():
        to.constants[node] = node.target(*args, **kwargs)


def _add_operator(to: Capture, node: fx.Node, value: object) -> None:
    reads = [to.number[one] for one in needs_a_tensor(node) if one in to.number]
    is_several = isinstance(value, (tuple, list))
    for result in filter(is_tensor, flat_results(value)):
        check_tensor(result)
    call = Call(node, reads, [], is_view=is_view(node.target), has_effect=has_effect(node.target))
    call.draws = _may_draw(node) and not call.has_effect
    call.may_recompute = _may_recompute(node) and not call.has_effect
    if not call.is_view and is_tensor(value) and is_alias(value, node):
        call.is_view = True
    if not is_several and not is_tensor(value) and not call.has_effect:
        raise Unsupported(f"gives {type(value).__name__}, not a tensor; {LEAVE_OUT}")
    for result in flat_results(value):
        if not is_tensor(result):
            call.makes.append(-1)
            continue
        number = _add_tensor(to, node, value=result, of=reads[0] if call.is_view else -1)
        if call.is_view:
            to.view_call[number] = len(to.calls)
        else:
            call.values.append(to.value_of_tensor[number])
        call.makes.append(number)
    if is_several:
        to.many[node] = call.makes
        to.number.pop(node, None)
    if call.has_effect:
        _order_effect(to, call)
    to.calls.append(call)


def _order_effect(to: Capture, call: Call) -> None:
    """Has the call read what stands for the effect before it, and gives it a value that stands for its own."""
    if to.last_effect >= 0:
        call.reads.append(to.last_effect)
    if not call.values:
        to.tensors.append(call.node)
        to.view_call.append(-1)
        to.value_of_tensor.append(len(to.values))
        call.values.append(len(to.values))
        to.values.append(Value(call.node.name, 0, resident=False))
    to.last_effect = to.value_of_tensor.index(call.values[0])


def is_alias(value: torch.Tensor, node: fx.Node) -> bool:
    """Whether an operator handed an input back, as those that convert do where there is nothing to convert."""
    inputs = [one for one in needs_a_tensor(node) if is_tensor(one.meta.get("val"))]
    return bool(inputs) and any(
        value.untyped_storage()._cdata == one.meta["val"].untyped_storage()._cdata for one in inputs
    )


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


def _may_draw(node: fx.Node) -> bool:
    """Whether it may take random numbers; what is inside a higher-order operator may, but for attention's scores."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return not str(node.target).startswith("flex_attention")
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":  # of attention, which draws for nothing else
            given = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get("dropout_p", given) != 0
    return True


def _may_recompute(node: fx.Node) -> bool:
    if writes(node.target):
        return False
    namespace = getattr(node.target, "namespace", "")
    if namespace.startswith(("c10d", "_c10d")):
        return False
    policy = node.meta.get("recompute")
    return policy is None or "SAVE" not in str(policy)


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


def set_layouts(of: Capture, call: Call, layouts: Sequence[tuple[list[int], int] | None]) -> None:
    """Takes note of results of a call with other strides or storages than tracing knows."""
    for made, layout in zip(call.makes, layouts, strict=False):
        if made < 0 or layout is None:
            continue
        call.strides[made], size = layout
        value = of.value_of_tensor[made]
        if value in call.values:
            of.values[value] = of.values[value]._replace(bytes=_C.allocated_bytes(size, of.device))
    _set_cloned_storage(of, call)


def _set_cloned_storage(of: Capture, call: Call) -> None:
    """Gives the result of an operator that clones the storage of its first argument the bytes of that storage.

    Tracing may know less of it: what PyTorch caches of such a call is for views of storages of any size.
    """
    if getattr(call.node.target, "overloadpacket", None) not in _CLONES_STORAGE or len(call.values) != 1:
        return
    first = call.node.args[0]
    if first not in of.number:
        return
    given = first.meta["val"]
    is_expanded = any(size > 1 and stride == 0 for size, stride in zip(given.shape, given.stride(), strict=True))
    if not is_expanded:
        cloned = of.values[of.value_of_tensor[of.number[first]]]
        of.values[call.values[0]] = of.values[call.values[0]]._replace(bytes=cloned.bytes)


def real_strides(value: torch.Tensor, call: Call | None) -> list[int]:
    """Those that it has where the call reads or makes it."""
    if call is not None and call.channels_last and value.dim() == 4:
        _, channels, height, width = (concrete(one) for one in value.shape)
        return [channels * height * width, 1, width * channels, channels]
    return [concrete(one) for one in value.stride()]


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


def normalized_arguments(node: fx.Node, reference: Callable[[fx.Node], object]) -> list[object]:
    """All arguments in the order of the schema, defaults included, with nodes replaced."""
    schema = node.target._schema
    given = list(node.args)
    arguments = []
    for position, argument in enumerate(schema.arguments):
        if position < len(given) and not argument.kwarg_only:
            value = given[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        else:
            value = argument.default_value
        arguments.append(fx.node.map_arg(value, reference))
    return arguments
