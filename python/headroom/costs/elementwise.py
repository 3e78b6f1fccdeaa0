"""Recognizes and times elementwise calls: each element of the result depends on the elements at the same place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from headroom._torch import OpOverload, has_kernel
from headroom.graph.capture import Call
from headroom.graph.operators import concrete, is_tensor, needs_a_tensor, normalized_arguments

aten = torch.ops.aten

# Copies. Devices have no kernels of their own for these operators, but they allocate nothing except their result.
_COPIES = {aten.clone.default, aten._to_copy.default}
# Bounds of the sizes at which kernels are timed; the sizes between them are powers of eight.
_SMALLEST_SAMPLE = 8**4
_LARGEST_SAMPLE = 8**8


def is_elementwise(call: Call) -> bool:
    """Returns whether operator, types and the number of elements determine the cost of a call.

    Its tensors are laid out alike: all are contiguous, or all are dense, with one shape and equal strides.
    """
    target, result = call.node.target, call.node.meta.get("val")
    if not isinstance(target, OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return False
    if torch.Tag.pointwise not in target.tags and target not in _COPIES:
        return False
    if call.draws or call.has_effect or not is_tensor(result) or concrete(result.numel()) == 0:
        return False
    tensors = [node.meta.get("val") for node in needs_a_tensor(call.node)]
    if not tensors or any(not is_tensor(tensor) or tensor.device != result.device for tensor in tensors):
        return False
    return _are_laid_out_alike(tensors, result)


def has_known_memory(call: Call) -> bool:
    """Returns whether an elementwise call needs no workspace, and its result has the layout that tracing predicts.

    That is so on the CPU, if the operator has a kernel of its own and reads tensors of a single type. Inputs of several
    types, scalars included, would be converted to a common type in temporaries.
    """
    if not is_elementwise(call) or call.node.meta["val"].device.type != "cpu":
        return False
    target, result = call.node.target, call.node.meta["val"]
    if concrete(result.untyped_storage().nbytes()) != concrete(result.numel()) * result.element_size():
        return False
    if target in _COPIES:
        return True
    has_one_type = all(node.meta["val"].dtype == result.dtype for node in needs_a_tensor(call.node))
    return has_one_type and not _reads_numbers_as_tensors(call) and _has_cpu_kernel(target)


def sample_size(call: Call) -> int:
    """Returns the number of elements of the timed sample, which exceeds the call's own only for small calls."""
    count = concrete(call.node.meta["val"].numel())
    power = 8 ** int(math.log2(count) // 3)
    return min(max(power, _SMALLEST_SAMPLE), _LARGEST_SAMPLE)


def sample_kind(call: Call, constants: dict[fx.Node, Any]) -> str:
    """Returns the key of the sample by which a call is timed."""

    def describe(node: fx.Node) -> object:
        value = node.meta.get("val")
        return f"{value.dtype}{'' if _is_many(value) else ' number'}" if is_tensor(value) else constants.get(node)

    args, kwargs = fx.node.map_arg((call.node.args, _sample_kwargs(call)), describe)
    return f"{sample_size(call)} of {call.node.target} {args} {kwargs}"


def sample_arguments(call: Call, constants: dict[fx.Node, Any]) -> tuple[Any, Any]:
    """Returns newly allocated arguments like those of the call, of the sample's size."""
    count = sample_size(call)

    def sample(node: fx.Node) -> object:
        value = node.meta.get("val")
        if not is_tensor(value):
            return constants[node]
        made = torch.empty([count] if _is_many(value) else [], dtype=value.dtype, device=value.device)
        return fill_sample(made)

    return fx.node.map_arg((call.node.args, _sample_kwargs(call)), sample)


# Number of random numbers that a sample draws; a larger one repeats them.
SAMPLE_BLOCK = 1 << 16


def fill_sample(tensor: torch.Tensor) -> torch.Tensor:
    """Fills a contiguous tensor with fractions, or with zeros if it is not of a floating-point type, and returns it."""
    if not tensor.dtype.is_floating_point:
        return tensor.zero_()
    if tensor.numel() <= SAMPLE_BLOCK:
        return tensor.uniform_(0.1, 0.9)
    # Repeat one block, because drawing random numbers takes much longer than the measured call.
    block = torch.empty(SAMPLE_BLOCK, dtype=tensor.dtype, device=tensor.device).uniform_(0.1, 0.9)
    numbers = tensor.view(-1)
    whole = numbers.numel() // SAMPLE_BLOCK
    numbers[: whole * SAMPLE_BLOCK].view(whole, SAMPLE_BLOCK).copy_(block)
    numbers[whole * SAMPLE_BLOCK :].copy_(block[: numbers.numel() - whole * SAMPLE_BLOCK])
    return tensor


def _sample_kwargs(call: Call) -> dict[str, Any]:
    """Returns the call's keyword arguments without memory_format, which a one-dimensional sample cannot have."""
    return {name: value for name, value in call.node.kwargs.items() if name != "memory_format"}


def _is_many(value: torch.Tensor) -> bool:
    return concrete(value.numel()) > 1


def _are_laid_out_alike(tensors: Sequence[torch.Tensor], result: torch.Tensor) -> bool:
    shape = [concrete(size) for size in result.shape]
    same = [tensor for tensor in tensors if [concrete(size) for size in tensor.shape] == shape]
    if not same:
        return False
    if all(_steps(tensor) == _contiguous_steps(tensor) for tensor in [*tensors, result]):
        return True
    steps = _steps(result)
    is_dense = sorted(stride for stride, _ in steps) == _dense_strides(steps)
    others = [tensor for tensor in tensors if _is_many(tensor)]
    return is_dense and len(same) >= len(others) and all(_steps(tensor) == steps for tensor in same)


def _steps(value: torch.Tensor) -> list[tuple[int, int]]:
    """Returns strides and sizes, without dimensions of size 1, whose strides are arbitrary."""
    sizes = [concrete(size) for size in value.shape]
    return [(concrete(stride), size) for stride, size in zip(value.stride(), sizes, strict=True) if size != 1]


def _contiguous_steps(value: torch.Tensor) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    stride = 1
    for size in reversed([concrete(size) for size in value.shape if size != 1]):
        steps.append((stride, size))
        stride *= size
    return steps[::-1]


def _dense_strides(steps: list[tuple[int, int]]) -> list[int]:
    strides, stride = [], 1
    for _, size in sorted(steps):
        strides.append(stride)
        stride *= size
    return strides


def _reads_numbers_as_tensors(call: Call) -> bool:
    schema = call.node.target._schema.arguments
    arguments = normalized_arguments(call.node, lambda _: None)
    return str(schema[0].type) != "Tensor" or any(
        str(argument.type) == "Tensor" and isinstance(value, int | float | complex)
        for argument, value in zip(schema, arguments, strict=True)
    )


def _has_cpu_kernel(target: OpOverload) -> bool:
    """Returns whether the operator has a CPU kernel of its own; others are composed of several operators."""
    return has_kernel(target.name(), "CPU")
