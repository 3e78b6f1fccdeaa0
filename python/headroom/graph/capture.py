"""Captures AOTAutograd's joint graph as the values and calls that the C++ side plans and runs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from headroom import _C
from headroom._torch import HigherOrderOperator, pytree, unset_fake_temporarily
from headroom.graph.effects import has_effect, is_token, may_draw
from headroom.graph.operators import (
    as_number,
    concrete,
    flat_results,
    is_alias,
    is_collective,
    is_opaque,
    is_tensor,
    is_view,
    needs_a_tensor,
    storage_bytes,
    writes,
)
from headroom.graph.unsupported import LEAVE_OUT, Unsupported, check_tensor, located

aten = torch.ops.aten

# Higher-order operators that are pure functions of their tensors, so that they may be rerun. They are called in Python.
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

# Types of symbolic numbers, and the types of their values in one call.
_SYMBOLS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}

# Maximum size of the constants that are copied to memory that no meter counts.
_MAX_UNCOUNTED_BYTES = 4096

# Operators whose result is a view of a copy of the whole storage that their first argument is a view of.
_CLONES_STORAGE = {aten.copy, aten.select_scatter, aten.slice_scatter, aten.diagonal_scatter, aten.as_strided_scatter}


@dataclass
class Call:
    """A call of an operator, with the numbers of the tensors that it reads and returns."""

    node: fx.Node
    reads: list[int]
    makes: list[int]  # By result, with lists flattened. -1: the result is not a tensor.
    values: list[int] = field(default_factory=list)  # Values that it allocates; none for views.
    is_view: bool = False
    draws: bool = False
    # Whether it may depend on or change what PyTorch does not know; see operators.is_opaque().
    is_opaque: bool = False
    may_recompute: bool = True
    has_effect: bool = False  # Whether it runs for its effect: exactly once, whatever reads its results.
    # Values that its result may overwrite. None: derived from the operator.
    overwrites: list[int] | None = None
    channels_last: bool = False  # Whether images that it reads are channels-last, whatever was captured.
    # Strides of tensors whose layout differs from what tracing predicts.
    strides: dict[int, list[int]] = field(default_factory=dict)
    time_ns: int = 0
    workspace_bytes: int = 0


class Value(NamedTuple):
    """A storage."""

    name: str
    bytes: int
    resident: bool  # Whether it is live before, during and after the step.


@dataclass
class Capture:
    """A joint graph as calls and numbered tensors. Each tensor lies in a value, which is a storage."""

    name: str
    device: torch.device
    calls: list[Call] = field(default_factory=list)
    tensors: list[fx.Node] = field(default_factory=list)  # By number: a node that stands for the tensor.
    value_of_tensor: list[int] = field(default_factory=list)
    view_call: list[int] = field(default_factory=list)  # By tensor: the call that makes it as a view, or -1.
    values: list[Value] = field(default_factory=list)
    forward_inputs: list[int] = field(default_factory=list)
    backward_inputs: list[int] = field(default_factory=list)
    forward_outputs: list[int] = field(default_factory=list)
    backward_outputs: list[int] = field(default_factory=list)
    number: dict[fx.Node, int] = field(default_factory=dict)
    many: dict[fx.Node, list[int]] = field(default_factory=dict)  # By node with several results: their tensors.
    # Values of get_attr nodes, and of nodes that are computed from them.
    constants: dict[fx.Node, Any] = field(default_factory=dict)

    def resident_bytes(self) -> int:
        return sum(value.bytes for value in self.values if value.resident)


def capture(joint: fx.GraphModule, forward_output_count: int, name: str) -> Capture:
    """Numbers the tensors and values of a joint graph. Raises Unsupported for what cannot be planned."""
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
    numbers = [result.number.get(output, -1) if isinstance(output, fx.Node) else -1 for output in outputs]
    result.forward_outputs = numbers[:forward_output_count]
    result.backward_outputs = numbers[forward_output_count:]
    return result


def _add_tensor(to: Capture, node: fx.Node, *, resident: bool = False, value: object = None, of: int = -1) -> int:
    """Adds a tensor in a new value, or with `of` in the value of that tensor, and returns its number."""
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
    is_higher_order = isinstance(node.target, HigherOrderOperator)
    if is_higher_order and str(node.target) not in _FUNCTIONAL_HIGHER_ORDER | {"with_effects"}:
        raise Unsupported(f"the higher-order operator {node.target} is not supported; {LEAVE_OUT}")


def _constant_of(joint: fx.GraphModule, name: str) -> Any:
    """Returns an attribute of the graph, after moving small CPU tensors to memory that no meter counts.

    A tensor that a model makes from a number lives as long as the graph. Each compilation has its own, so without this
    a budget that one compilation names would be too small for the next.
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
    """Adds a view of a constant or of a number as another constant, so that no op is planned for it."""
    if any(user.op == "output" for user in node.users):
        raise Unsupported(f"a constant as a result cannot be planned; {LEAVE_OUT}")
    args, kwargs = (fx.node.map_arg(part, to.constants.__getitem__) for part in (node.args, node.kwargs))
    with unset_fake_temporarily(), torch.no_grad():
        to.constants[node] = node.target(*args, **kwargs)


def _add_operator(to: Capture, node: fx.Node, value: object) -> None:
    reads = [to.number[source] for source in needs_a_tensor(node) if source in to.number]
    is_several = isinstance(value, (tuple, list))
    for result in filter(is_tensor, flat_results(value)):
        check_tensor(result)
    call = Call(node, reads, [], is_view=is_view(node.target), is_opaque=is_opaque(node))
    call.draws = may_draw(node) or call.is_opaque
    # Random numbers that nothing uses advance the generator all the same.
    call.has_effect = has_effect(node.target) or (call.draws and _is_unused(node))
    call.draws = call.draws and not call.has_effect
    call.may_recompute = _may_recompute(node, is_opaque=call.is_opaque) and not call.has_effect
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
    to.calls.append(call)


def _is_unused(node: fx.Node) -> bool:
    return all(user.target is operator.getitem and not user.users for user in node.users)


def _may_recompute(node: fx.Node, *, is_opaque: bool) -> bool:
    """Returns whether a call may be rerun: an opaque one only where the user's own checkpointing would rerun it."""
    if writes(node.target) or is_collective(node.target):
        return False
    policy = node.meta.get("recompute")
    return not is_opaque if policy is None else "SAVE" not in str(policy)


def set_layouts(of: Capture, call: Call, layouts: Sequence[tuple[list[int], int] | None]) -> None:
    """Records the strides and storage sizes of a call's results that differ from what tracing predicts."""
    for made, layout in zip(call.makes, layouts, strict=False):
        if made < 0 or layout is None:
            continue
        call.strides[made], size = layout
        value = of.value_of_tensor[made]
        if value in call.values:
            of.values[value] = of.values[value]._replace(bytes=_C.allocated_bytes(size, of.device))
    _set_cloned_storage(of, call)


def _set_cloned_storage(of: Capture, call: Call) -> None:
    """Sets the size of a result that clones the storage of its first argument to the size of that storage.

    Tracing may know less: PyTorch's cache of fake results ignores the size of the storage behind a view.
    """
    if getattr(call.node.target, "overloadpacket", None) not in _CLONES_STORAGE or len(call.values) != 1:
        return
    first = call.node.args[0]
    if first not in of.number:
        return
    source = first.meta["val"]
    is_expanded = any(size > 1 and stride == 0 for size, stride in zip(source.shape, source.stride(), strict=True))
    if not is_expanded:
        cloned = of.values[of.value_of_tensor[of.number[first]]]
        of.values[call.values[0]] = of.values[call.values[0]]._replace(bytes=cloned.bytes)


def real_strides(value: torch.Tensor, call: Call | None) -> list[int]:
    """Returns the strides that a tensor has where the call reads or returns it."""
    if call is not None and call.channels_last and value.dim() == 4:
        _, channels, height, width = (concrete(size) for size in value.shape)
        return [channels * height * width, 1, width * channels, channels]
    return [concrete(stride) for stride in value.stride()]
