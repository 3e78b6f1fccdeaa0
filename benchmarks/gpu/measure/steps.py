"""Peaks and times of training steps, measured by processes that work side by side on one device."""

from __future__ import annotations

import contextlib
import fcntl
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Peak:
    """The peak of a device since the last reset, even if headroom resets it for measurements of its own."""

    def __init__(self, meter: Any) -> None:
        self.meter = meter
        self.noted_bytes = 0
        reset = self._reset = type(meter).reset_peak

        def note(other: Any) -> None:
            if torch.cuda.is_available():  # All meters of a CUDA device share one peak.
                self.noted_bytes = max(self.noted_bytes, meter.peak_bytes())
            reset(other)

        type(meter).reset_peak = note

    def reset(self) -> None:
        self._reset(self.meter)
        self.noted_bytes = 0

    def bytes(self) -> int:
        return max(self.noted_bytes, self.meter.peak_bytes())


def compare_times(
    time_ms: Callable[[int], float], base_ms: Callable[[int], float], rounds: int, round_s: float
) -> tuple[float, float, float]:
    """Returns the time of a step as a multiple of another's, and both in ms, by rounds of both in turn.

    The functions return the time of one among a number of consecutive steps.
    """
    base_ms(2)
    time_ms(2)
    steps = max(2, round(1000 * round_s / base_ms(2)))
    pairs = [(time_ms(steps), base_ms(steps)) for _ in range(rounds)]
    ratio = statistics.median(ours / other for ours, other in pairs)
    return ratio, statistics.median(ours for ours, _ in pairs), statistics.median(other for _, other in pairs)


class Turn:
    """Lets processes work at the same time, but time one at a time while no other works."""

    def __init__(self, path: str) -> None:
        self.gate = open(path, "a")  # noqa: SIM115  Held while a process waits for its turn, so that no other begins.
        self.turn = open(f"{path}.turn", "a")  # noqa: SIM115
        self.is_held = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        if self.is_held:  # For example, if a step is replanned and tried among others.
            yield
            return
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        if self.is_held:  # A process that waits here while it works would keep others from their turns.
            yield
            return
        torch.cuda.empty_cache()
        with self._held(fcntl.LOCK_EX):
            yield
        torch.cuda.empty_cache()

    def wait_in(
        self, held: Callable[[], contextlib.AbstractContextManager[None]], work: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Returns the function as one that runs in `self.working` or `self.timing`."""

        def run(*arguments: Any, **options: Any) -> Any:
            with held():
                return work(*arguments, **options)

        return run

    @contextlib.contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        fcntl.flock(self.gate, fcntl.LOCK_EX)
        fcntl.flock(self.turn, kind)
        fcntl.flock(self.gate, fcntl.LOCK_UN)
        self.is_held = True
        try:
            yield
        finally:
            synchronize()
            self.is_held = False
            fcntl.flock(self.turn, fcntl.LOCK_UN)


def take_turns(turn: Turn) -> None:
    """Has headroom measure costs alone on the device, and try plans while nothing is timed.

    So does Inductor choose among variants of a kernel.
    """
    from headroom.costs import op_costs, step_costs
    from headroom.exec.inductor import kernels, partitioner
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    from headroom import _C

    kernels.try_step = turn.wait_in(turn.working, kernels.try_step)
    CachingAutotuner.benchmark_all_configs = turn.wait_in(turn.working, CachingAutotuner.benchmark_all_configs)
    step_costs.fill_memory = op_costs.fill_memory = turn.wait_in(turn.working, op_costs.fill_memory)
    step_costs.fill_times = op_costs.fill_times = turn.wait_in(turn.timing, op_costs.fill_times)
    _C.measure_stages = turn.wait_in(turn.timing, _C.measure_stages)
    partitioner.fill_kernel_costs = turn.wait_in(turn.timing, partitioner.fill_kernel_costs)


def time_steps(run: Callable[[], torch.Tensor], model: torch.nn.Module) -> Callable[[int], float]:
    """Returns a function that returns the ms of a forward and a backward among a number of consecutive ones."""

    def time_ms(steps: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            run().backward()
            model.zero_grad()
        synchronize()
        return 1000 * (time.perf_counter() - start) / steps

    return time_ms
