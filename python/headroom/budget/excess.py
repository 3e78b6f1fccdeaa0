"""Tracks by how much measured peaks exceed predicted ones, and leaves memory free for that."""

from __future__ import annotations

import functools
import math
from collections import deque

import torch

# Share of a step's bytes that is left free until its excess has been measured. CUDA's caching allocator counts whole
# blocks, and does not split off a remainder of up to 1 MiB, so a step takes more than the sum of its tensors. How much
# more depends on what was allocated and freed before.
_ASSUMED_SHARE = 0.025
# Until then, small steps leave up to this many bytes more free, but no more than this share in all: they have as many
# blocks as large ones. A step of ResNet-152 that adds 450 MiB at batch 16 took 27 MiB more than the sum of its tensors.
_ASSUMED_BYTES = 24 << 20
_MOST_ASSUMED_SHARE = 0.075
# Share of a step's bytes that is left free once its excess has been measured, for its variation between steps.
_VARIATION_SHARE = 0.003
# Share that an error message adds to the peak of a trial when it names a budget. It may be a little larger than
# necessary, so that the named budget is accepted.
_NAMED_SHARE = 0.01
# Largest remainder of a block that CUDA's caching allocator does not split off, for blocks above this size.
_UNSPLIT_BYTES = 1 << 20
# Number of measured steps that count, so that memory that only a first step takes, such as a library's workspace, is
# forgotten.
_COUNTED_STEPS = 2


def assumed_bytes(allocated_bytes: int, device: torch.device) -> int:
    """Returns the bytes that tensors of this size may take on the device once they are allocated."""
    return math.ceil(allocated_bytes * (1 + _ASSUMED_SHARE)) if counts_whole_blocks(device) else allocated_bytes


def block_slack_bytes(tensor_bytes: int, device: torch.device) -> int:
    """Returns by how many bytes the block of a tensor may exceed the tensor."""
    return _UNSPLIT_BYTES if tensor_bytes > _UNSPLIT_BYTES and counts_whole_blocks(device) else 0


def varied_bytes(measured_bytes: int, device: torch.device) -> int:
    """Returns the bytes that a step may take if it took `measured_bytes` in its trial."""
    return math.ceil(measured_bytes * (1 + _VARIATION_SHARE)) if counts_whole_blocks(device) else measured_bytes


def named_bytes(measured_bytes: int, device: torch.device) -> int:
    """Returns the bytes to ask for so that a step that took `measured_bytes` in its trial is accepted."""
    return math.ceil(measured_bytes * (1 + _NAMED_SHARE)) if counts_whole_blocks(device) else measured_bytes


@functools.cache
def counts_whole_blocks(device: torch.device) -> bool:
    """Returns whether the device's allocator counts blocks that may be larger than the tensors in them."""
    if device.type != "cuda":
        return False
    settings = torch.cuda.memory._snapshot(device).get("allocator_settings", {})
    return not settings.get("expandable_segments", False)


class Excess:
    """Bytes by which the steps of one graph exceed their predicted peaks."""

    def __init__(self, device: torch.device) -> None:
        self.has_slack = counts_whole_blocks(device)
        self.measured_bytes: deque[int] = deque(maxlen=_COUNTED_STEPS)

    def largest_bytes(self) -> int:
        """Returns the largest excess of the steps that count."""
        return max(self.measured_bytes, default=0)

    def measure(self, excess_bytes: int) -> None:
        """Records a step whose peak exceeded its prediction by this many bytes; negative numbers count as 0."""
        self.measured_bytes.append(max(excess_bytes, 0))

    def add(self, planned_bytes: int) -> int:
        """Returns the bytes that a step may really take if it is planned to add `planned_bytes`."""
        if not self.has_slack or self.measured_bytes:
            return math.ceil(planned_bytes * (1 + self._variation_share())) + self.largest_bytes()
        return min(
            math.ceil(planned_bytes * (1 + _MOST_ASSUMED_SHARE)),
            math.ceil(planned_bytes * (1 + _ASSUMED_SHARE)) + _ASSUMED_BYTES,
        )

    def name(self, planned_bytes: int) -> int:
        """Returns the bytes to ask for so that a step with this plan fits, also once the excess has been measured."""
        share = 0.0 if self.measured_bytes or not self.has_slack else _VARIATION_SHARE
        return self.add(planned_bytes) + math.ceil(share * planned_bytes)

    def subtract_measured(self, available_bytes: int) -> int:
        """Returns the bytes that a plan may add to stay within what is available, if the excess is as measured."""
        return available_bytes - self.largest_bytes() if self.measured_bytes else self.subtract(available_bytes)

    def subtract(self, available_bytes: int) -> int:
        """Returns the bytes that a step may be planned to add so that it really adds no more than is available."""
        if not self.has_slack or self.measured_bytes:
            return math.floor((available_bytes - self.largest_bytes()) / (1 + self._variation_share()))
        return max(
            math.floor(available_bytes / (1 + _MOST_ASSUMED_SHARE)),
            math.floor((available_bytes - _ASSUMED_BYTES) / (1 + _ASSUMED_SHARE)),
        )

    def _variation_share(self) -> float:
        return _VARIATION_SHARE if self.has_slack else 0.0
