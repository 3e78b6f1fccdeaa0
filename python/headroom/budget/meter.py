"""The memory meters of devices."""

from __future__ import annotations

import functools

import torch

from headroom import _C


@functools.cache
def meter_of(device: torch.device) -> _C.Meter:
    return _C.Meter(device)


# Create the CPU's meter at import, since it counts only tensors that are allocated from then on.
meter_of(torch.device("cpu"))
