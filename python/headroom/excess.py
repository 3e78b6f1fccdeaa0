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
# Measured steps that count: what only a first step takes, such as a library's workspace, is forgotten.
_COUNTED_STEPS = 2


def assumed_bytes(allocated_bytes: int, device: torch.device) -> int:
    """Returns what tensors of this size that are yet to be made may take on the device."""
    return math.ceil(allocated_bytes * (1 + _ASSUMED_SHARE)) if counts_whole_blocks(device) else allocated_bytes


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

    def subtract(self, available_bytes: int) -> int:
        """Returns what a step may be planned to add, so that it really adds no more than is available."""
        return math.floor((available_bytes - self.largest_bytes()) / (1 + self._share()))

    def _share(self) -> float:
        if not self.has_slack:
            return 0.0
        return _VARIATION_SHARE if self.measured_bytes else _ASSUMED_SHARE
