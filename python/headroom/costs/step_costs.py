"""Decides when the costs of a captured graph are measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headroom import _C
from headroom._torch import no_dispatch_modes
from headroom.costs.op_costs import CostCache, Counts, fill_memory, fill_times
from headroom.graph.capture import Capture

_log = logging.getLogger(__name__)


class StepCosts:
    """The costs of a captured graph's calls, measured when they are first needed."""

    def __init__(
        self, captured: Capture, cache: Callable[[], CostCache], meter: _C.Meter, limit_bytes: int | None
    ) -> None:
        self.captured = captured
        self.cache = cache
        self.meter = meter
        self.limit_bytes = limit_bytes  # Limit of the bytes in use on the device. None: no limit.
        self.has_run = False  # Whether a plan has run; from then on, timing respects the limit.
        self.has_memory = False
        self.has_times = False

    def need_memory(self) -> None:
        if self.has_memory:
            return
        start = time.perf_counter()
        with no_dispatch_modes():  # Hide the measurement from the user's dispatch modes.
            counts = fill_memory(self.captured, self.cache(), self.meter)
        self.has_memory = True
        _log_measured("memory", counts, start)

    def need_times(self) -> None:
        if self.has_times:
            return
        self.need_memory()
        start = time.perf_counter()
        room = None
        if self.has_run and self.limit_bytes is not None:
            room = max(self.limit_bytes - self.meter.current_bytes(), 0)
        with no_dispatch_modes():  # Hide the measurement from the user's dispatch modes.
            counts = fill_times(self.captured, self.cache(), room)
        self.has_times = True
        _log_measured("times", counts, start)


def _log_measured(name: str, counts: Counts, start: float) -> None:
    taken = 1e3 * (time.perf_counter() - start)
    known = max(counts.kinds - counts.measured, 0)
    details = (name, counts.kinds, counts.measured, known, taken)
    _log.info("%s of %d kinds of calls: %d measured, %d known before or estimated, %.0f ms", *details)
