"""Errors for what cannot be planned. They name the operator, the module and the source line of the model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

import torch
from torch import fx

from headroom._torch import FakeTensor, is_traceable_wrapper_subclass

LEAVE_OUT = "leave that part out of the compiled region (torch.compiler.disable)"


class Unsupported(ValueError):
    """Raised for a model, or an operator in it, that cannot be planned; the message says what to do."""

    is_located = False  # Whether the message already names the operator.


def module_of(node: fx.Node) -> str:
    """Returns the path of the module whose forward or backward contains the call, or an empty string."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    if not paths:
        return ""
    names = re.sub(r"L\['(?:self|fn)'\]\.?|(?:_modules|L|G)\['(\w+)'\]", r"\1", paths[-1])
    return names.strip(".")


def source_of(node: fx.Node) -> str:
    """Returns the line of the user's source that a call comes from, or an empty string."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f"{lines[-1][0]}:{lines[-1][1]}" if lines else ""


def place_of(node: fx.Node) -> str:
    """Returns the module and the line that a call comes from, for errors; empty if neither is known."""
    module, source = module_of(node), source_of(node)
    return ", ".join([*([f"module {module}"] if module else []), *([source] if source else [])])


def location_of(node: fx.Node) -> str:
    """Returns the operator of a call, or the name of an input, with its module and line if they are known."""
    subject = node.target if node.op == "call_function" else f"the input {node.name}"
    place = place_of(node)
    return f"{subject} ({place})" if place else str(subject)


@contextlib.contextmanager
def located(node: fx.Node) -> Iterator[None]:
    """Returns a context that turns errors into an Unsupported that names the operator of the model."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Unsupported) and error.is_located:
            raise
        text = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
        named = Unsupported(f"{location_of(node)}: {text}")
        named.is_located = True
        raise named from error


def check_tensor(tensor: torch.Tensor) -> None:
    """Raises Unsupported for a tensor whose memory is not one strided storage."""
    if tensor.is_nested:
        raise Unsupported(f"nested tensors cannot be planned; {LEAVE_OUT}")
    if tensor.is_quantized:
        raise Unsupported(f"quantized tensors cannot be planned; {LEAVE_OUT}")
    if tensor.layout != torch.strided:
        raise Unsupported(f"tensors in the layout {tensor.layout} cannot be planned; {LEAVE_OUT}")


def check_inputs(inputs: Sequence[object]) -> None:
    """Raises Unsupported for inputs of Dynamo's graph that cannot be planned."""
    for place, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            continue
        try:
            check_tensor(tensor)
            if tensor.is_meta:
                raise Unsupported("tensors on the device meta have no memory to plan")
            if torch.is_grad_enabled() and _is_opaque(tensor):
                raise Unsupported(
                    f"the tensor class {type(tensor).__name__} is none that AOTAutograd can take apart (it has no "
                    "__tensor_flatten__); pass tensor.as_subclass(torch.Tensor)"
                )
        except Unsupported as error:
            shape = "" if tensor.is_nested else f" of the shape {list(tensor.shape)}"
            raise Unsupported(f"input {place} of the graph,{shape or ' nested'}: {error}") from None


def _is_opaque(tensor: torch.Tensor) -> bool:
    known = (torch.nn.Parameter, FakeTensor)
    return (
        type(tensor) is not torch.Tensor and not isinstance(tensor, known) and not is_traceable_wrapper_subclass(tensor)
    )
