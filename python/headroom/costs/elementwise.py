"""Calls that compute every number of their result from the numbers in the same place, and what is known of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from headroom.graph.capture import Call
from headroom.graph.operators import concrete, is_tensor, needs_a_tensor, normalized_arguments

aten = torch.ops.aten

# Copies, which have no kernel of a device's own but take memory for their result alone.
_COPIES = {aten.clone.default, aten._to_copy.default}
# Sizes at which kernels are timed: powers of eight between these.
_SMALLEST_SAMPLE = 8**4
_LARGEST_SAMPLE = 8**8


def is_elementwise(call: Call) -> bool:
    """Returns whether operator, types and the number of results decide what a call takes.

    Its tensors are laid out alike: all of them contiguous, or all of them dense, of one shape and with equal strides.
    """
    target, result = call.node.target, call.node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return False
    if torch.Tag.pointwise not in target.tags and target not in _COPIES:
        return False
    if call.draws or call.has_effect or not is_tensor(result) or concrete(result.numel()) == 0:
        return False
    tensors = [one.meta.get("val") for one in needs_a_tensor(call.node)]
    if not tensors or any(not is_tensor(one) or one.device != result.device for one in tensors):
        return False
    return _are_laid_out_alike(tensors, result)


def has_known_memory(call: Call) -> bool:
    """Returns whether an elementwise call takes no workspace, and whether its result is laid out as tracing knows.

    That is so on the CPU, where operators have a kernel of their own and read tensors of one type: what they read is
    converted to a common type in temporaries, numbers that take part included.
    """
    if not is_elementwise(call) or call.node.meta["val"].device.type != "cpu":
        return False
    target, result = call.node.target, call.node.meta["val"]
    if concrete(result.untyped_storage().nbytes()) != concrete(result.numel()) * result.element_size():
        return False
    if target in _COPIES:
        return True
    has_one_type = all(one.meta["val"].dtype == result.dtype for one in needs_a_tensor(call.node))
    return has_one_type and not _reads_numbers_as_tensors(call) and _has_cpu_kernel(target)


def sample_size(call: Call) -> int:
    """Returns the number of results of the call that is timed for this one: no more than its own, if these are many."""
    count = concrete(call.node.meta["val"].numel())
    power = 8 ** int(math.log2(count) // 3)
    return min(max(power, _SMALLEST_SAMPLE), _LARGEST_SAMPLE)


def sample_kind(call: Call, constants: dict[fx.Node, Any]) -> str:
    """Returns the same for calls that are timed by one sample."""

    def describe(node: fx.Node) -> object:
        value = node.meta.get("val")
        return f"{value.dtype}{'' if _is_many(value) else ' number'}" if is_tensor(value) else constants.get(node)

    args, kwargs = fx.node.map_arg((call.node.args, _sample_kwargs(call)), describe)
    return f"{sample_size(call)} of {call.node.target} {args} {kwargs}"


def sample_arguments(call: Call, constants: dict[fx.Node, Any]) -> tuple[Any, Any]:
    """Returns arguments like those of the call, in memory of their own, of the sample's size."""
    count = sample_size(call)

    def sample(node: fx.Node) -> object:
        value = node.meta.get("val")
        if not is_tensor(value):
            return constants[node]
        made = torch.empty([count] if _is_many(value) else [], dtype=value.dtype, device=value.device)
        return fill_sample(made)

    return fx.node.map_arg((call.node.args, _sample_kwargs(call)), sample)


# Random numbers that a sample has: it repeats them if it is larger.
SAMPLE_BLOCK = 1 << 16


def fill_sample(tensor: torch.Tensor) -> torch.Tensor:
    """Fills a contiguous tensor with fractions, or with zeros where it is of another type, and returns it."""
    if not tensor.dtype.is_floating_point:
        return tensor.zero_()
    if tensor.numel() <= SAMPLE_BLOCK:
        return tensor.uniform_(0.1, 0.9)
    # Copies of a block: random numbers take much longer than what is measured with them.
    block = torch.empty(SAMPLE_BLOCK, dtype=tensor.dtype, device=tensor.device).uniform_(0.1, 0.9)
    numbers = tensor.view(-1)
    whole = numbers.numel() // SAMPLE_BLOCK
    numbers[: whole * SAMPLE_BLOCK].view(whole, SAMPLE_BLOCK).copy_(block)
    numbers[whole * SAMPLE_BLOCK :].copy_(block[: numbers.numel() - whole * SAMPLE_BLOCK])
    return tensor


def _sample_kwargs(call: Call) -> dict[str, Any]:
    """The call's, but for layouts that a tensor of one dimension cannot have."""
    return {name: given for name, given in call.node.kwargs.items() if name != "memory_format"}


def _is_many(value: torch.Tensor) -> bool:
    return concrete(value.numel()) > 1


def _are_laid_out_alike(tensors: Sequence[torch.Tensor], result: torch.Tensor) -> bool:
    shape = [concrete(size) for size in result.shape]
    same = [one for one in tensors if [concrete(size) for size in one.shape] == shape]
    if not same:
        return False
    if all(_steps(one) == _contiguous_steps(one) for one in [*tensors, result]):
        return True
    steps = _steps(result)
    is_dense = sorted(stride for stride, _ in steps) == _dense_strides(steps)
    others = [one for one in tensors if _is_many(one)]
    return is_dense and len(same) >= len(others) and all(_steps(one) == steps for one in same)


def _steps(value: torch.Tensor) -> list[tuple[int, int]]:
    """Strides and sizes, but for dimensions of size 1, whose strides mean nothing."""
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
        str(argument.type) == "Tensor" and isinstance(given, int | float | complex)
        for argument, given in zip(schema, arguments, strict=True)
    )


def _has_cpu_kernel(target: torch._ops.OpOverload) -> bool:
    """Returns whether there is a kernel of the operator's own: others are made of several operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CPU")
