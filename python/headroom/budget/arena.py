"""Arenas: a step's memory in one block, whose size is known before the step."""

from __future__ import annotations

import functools
import warnings

import torch

from headroom import _C
from headroom.graph.step_graph import Rest
from headroom.settings import Settings

# Alignment of addresses in an arena, that of PyTorch's own allocator for the CPU.
ALIGNMENT = 64


def uses_arena(settings: Settings, device: torch.device) -> bool:
    """Returns whether steps on a device run in arenas."""
    if settings.arena and device.type != "cpu":
        _warn_of_device()
    return settings.arena and device.type == "cpu"


@functools.cache
def _warn_of_device() -> None:
    warnings.warn("headroom: arena=True has no effect on this device: arenas are for the CPU so far", stacklevel=2)


def halves_bytes(memory: _C.ArenaMemory, rest: Rest, tangent_bytes: int) -> tuple[int, int]:
    """Returns the bytes that forward and backward add at their peaks, given this many bytes of outputs' gradients."""
    left = memory.block_bytes + memory.forward_left_bytes + rest.left_bytes
    return memory.block_bytes + memory.forward_peak_bytes, left + tangent_bytes + memory.backward_peak_bytes


def peak_bytes(memory: _C.ArenaMemory, rest: Rest, tangent_bytes: int) -> int:
    """Returns the bytes that a step adds at its peak, up to the end of its backward."""
    rest_bytes = max(rest.peak_bytes, rest.left_bytes + tangent_bytes)
    middle = memory.block_bytes + memory.forward_left_bytes + rest_bytes
    return max(middle, *halves_bytes(memory, rest, tangent_bytes))


def warn_of_too_large(peak: int, planned: int) -> None:
    warnings.warn(
        f"headroom: a step runs without its arena, with which it takes {_C.format_bytes(peak)} of "
        f"{_C.format_bytes(planned)}",
        stacklevel=2,
    )
