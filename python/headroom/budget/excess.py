"""How far real peaks are above predicted ones, and what is set aside for that."""

from __future__ import annotations

import functools
import math
from collections import deque

import torch

# CUDA's caching allocator counts whole blocks, and does not split off a rest of up to 1 MiB, so that a step takes more
# than the sum of its tensors. How much depends on what was allocated and freed before. The first share of a step's
# bytes is set aside until that has been measured, the second afterwards.
_ASSUMED_SHARE = 0.025
_VARIATION_SHARE = 0.003
# What an error adds for that to the peak of a trial: where all else fails, a little more than necessary does not.
_NAMED_SHARE = 0.01
# The largest rest of a block above this size that CUDA's caching allocator does not split off.
_UNSPLIT_BYTES = 1 << 20
# Measured steps that count: what only a first step takes, such as a library's workspace, is forgotten.
_COUNTED_STEPS = 2


def assumed_bytes(allocated_bytes: int, device: torch.device) -> int:
    """Returns what tensors of this size that are yet to be made may take on the device."""
    return math.ceil(allocated_bytes * (1 + _ASSUMED_SHARE)) if counts_whole_blocks(device) else allocated_bytes


def block_slack_bytes(tensor_bytes: int, device: torch.device) -> int:
    """Returns how much larger the block of one tensor may be than the tensor."""
    return _UNSPLIT_BYTES if tensor_bytes > _UNSPLIT_BYTES and counts_whole_blocks(device) else 0


def varied_bytes(measured_bytes: int, device: torch.device) -> int:
    """Returns what a step may take that took so much when it was tried."""
    return math.ceil(measured_bytes * (1 + _VARIATION_SHARE)) if counts_whole_blocks(device) else measured_bytes


def named_bytes(measured_bytes: int, device: torch.device) -> int:
    """Returns what to ask for so that a step is accepted that took so much when it was tried."""
    return math.ceil(measured_bytes * (1 + _NAMED_SHARE)) if counts_whole_blocks(device) else measured_bytes


@functools.cache
def counts_whole_blocks(device: torch.device) -> bool:
    """Returns whether the device's allocator counts blocks that may be larger than the tensors in them."""
    if device.type != "cuda":
        return False
    settings = torch.cuda.memory._snapshot(device).get("allocator_settings", {})
    return not settings.get("expandable_segments", False)


class Excess:
    """What steps take beyond what their plans predict, at one place."""

    def __init__(self, device: torch.device) -> None:
        self.has_slack = counts_whole_blocks(device)
        self.measured_bytes: deque[int] = deque(maxlen=_COUNTED_STEPS)

    def largest_bytes(self) -> int:
        """Returns the largest excess of the steps that count."""
        return max(self.measured_bytes, default=0)

    def measure(self, excess_bytes: int) -> None:
        """Takes note of a step whose peak was this far above its prediction, or below if negative."""
        self.measured_bytes.append(max(excess_bytes, 0))

    def add(self, planned_bytes: int) -> int:
        """Returns what a step may really take that is planned to add so many bytes."""
        return math.ceil(planned_bytes * (1 + self._share())) + self.largest_bytes()

    def name(self, planned_bytes: int) -> int:
        """Returns what to ask for so that a step with this plan keeps to it, also once the excess is measured."""
        share = 0.0 if self.measured_bytes or not self.has_slack else _VARIATION_SHARE
        return self.add(planned_bytes) + math.ceil(share * planned_bytes)

    def subtract_measured(self, available_bytes: int) -> int:
        """Returns what a plan may add so that it is within what is available if it takes what it took before."""
        return available_bytes - self.largest_bytes() if self.measured_bytes else self.subtract(available_bytes)

    def subtract(self, available_bytes: int) -> int:
        """Returns what a step may be planned to add, so that it really adds no more than is available."""
        return math.floor((available_bytes - self.largest_bytes()) / (1 + self._share()))

    def _share(self) -> float:
        if not self.has_slack:
            return 0.0
        return _VARIATION_SHARE if self.measured_bytes else _ASSUMED_SHARE
