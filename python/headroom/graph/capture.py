"""The joint graph that AOTAutograd traces, as the values and calls that the C++ side plans and runs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from headroom import _C
from headroom.graph.effects import has_effect, is_token
from headroom.graph.operators import (
    as_number,
    concrete,
    flat_results,
    is_alias,
    is_tensor,
    is_view,
    needs_a_tensor,
    storage_bytes,
    writes,
)
from headroom.graph.unsupported import LEAVE_OUT, Unsupported, check_tensor, located

aten = torch.ops.aten

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
            to.constants[node] = as_number(value, _SYMBOLS[type(value)])
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
