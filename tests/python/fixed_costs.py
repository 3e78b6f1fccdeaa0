"""Costs of operators as a function of their sizes, so that plans are the same in every run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from headroom.costs import op_costs

# Time of the sample kernels by which the costs of Inductor's kernels are scaled.
_SAMPLE_NS = 1 << 17


@contextlib.contextmanager
def fixed_costs() -> Iterator[None]:
    """Replaces measured times by estimates from the sizes of a call. Workspaces are measured as usual.

    Costs are kept in a cache of their own that is never written to disk: nothing measured before is seen inside, and
    nothing from inside is seen afterwards.
    """
    measure = op_costs._measure

    def fixed_time(*_: Any) -> int:
        return _SAMPLE_NS

    def estimate(call: op_costs.Call, *rest: Any) -> op_costs.Cost:
        return measure(call, *rest)._replace(time_ns=op_costs._estimate(call).time_ns)

    @functools.cache
    def fresh_cache(device: torch.device, **_: object) -> op_costs.CostCache:
        return op_costs.CostCache(device, persistent=False)

    with (
        mock.patch.object(op_costs, "_time_ns", fixed_time),
        mock.patch.object(op_costs, "_sample_ns", fixed_time),
        mock.patch.object(op_costs, "_measure", estimate),
        mock.patch.object(op_costs, "_elementwise_ns", lambda call, *_: op_costs._estimate(call).time_ns),
        mock.patch.object(op_costs, "cache_of", fresh_cache),
    ):
        yield
