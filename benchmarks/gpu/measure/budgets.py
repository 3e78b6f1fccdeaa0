"""Trains a real model within budgets and compares every step's peak with its budget, and its time with plain PyTorch.

    python benchmarks/gpu/measure/budgets.py MODEL [--kernels eager] [--budgets 1x 0.5x least] [--timed 1x] [--json]

The loss is inside the compiled function and AdamW updates the parameters, so its state appears after the first step. A
budget is in bytes: what is on the device before a step, AdamW's state included, and a share of what a step of plain
PyTorch adds (1x: 1 % more than that), or the smallest that an error names. With Inductor's kernels plain is
torch.compile. Prints a line for each budget: by how much steps exceeded it, the prediction's error, and memory and time
as multiples of plain PyTorch's. The peak of the first step includes what is run to measure and to try plans. Exits with
1 where a step exceeds its budget or a budget is refused.

`--first-call KIND` prints instead how long the first forward and backward take with eager kernels on a cold cost cache:
with the budget KIND, without one (`none`), or with backend aot_eager (`aot_eager`).

Several of these processes may run at the same time: those with the same `--lock` take turns where they are timed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from models import Kind, make
from steps import Peak, Turn, compare_times, synchronize, take_turns, time_steps
from torch import nn

STEPS = 5
# Rounds of timed steps, alternating with plain PyTorch, and the approximate seconds of one.
TIMED_ROUNDS = 7
ROUND_S = 0.3


class Training:
    """Measured steps of one model with AdamW."""

    def __init__(self, model: nn.Module, run: Callable[..., torch.Tensor], inputs: tuple[Any, ...], peak: Peak) -> None:
        self.model, self.run, self.inputs, self.peak = model, run, inputs, peak
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def step(self) -> tuple[int, int]:
        """Returns the bytes before a step and its peak."""
        gc.collect()
        before = self.peak.meter.current_bytes()
        self.peak.reset()
        self.run(*self.inputs).backward()
        peak = self.peak.bytes()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return before, peak

    def time_ms(self, steps: int) -> float:
        """Returns the time of a forward and a backward among several consecutive ones."""
        return time_steps(lambda: self.run(*self.inputs), self.model)(steps)


def smallest_budget(
    loss: Callable[..., torch.Tensor], inputs: Any, kernels: str, optimizer: torch.optim.Optimizer
) -> int:
    """Returns the budget that an error names."""
    import headroom

    try:
        headroom.compile(loss, 1, kernels=kernels, optimizer=optimizer)(*inputs)
    except headroom.BudgetError as error:
        return error.smallest_budget_bytes
    raise RuntimeError("a budget of one byte was accepted")


def examine(options: argparse.Namespace) -> bool:
    """Trains a model within all budgets. Returns whether all were kept."""
    import headroom

    device = torch.device(options.device)
    name, kernels = options.model, options.kernels
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    turn = Turn(options.lock)
    work = make(name, options.device, Kind(small=options.small))
    model, loss, inputs = work.model, work.loss, work.inputs
    measured = Peak(headroom.Meter(device))
    plain = Training(model, torch.compile(loss) if kernels == "inductor" else loss, inputs, measured)
    # Does not wait for Inductor's compilations, which take long and do not use the device.
    first_step = contextlib.nullcontext if kernels == "inductor" else turn.working
    take_turns(turn)
    with first_step():
        plain.step()
    with turn.working():
        before, peak = [plain.step() for _ in range(2)][-1]  # with the optimizer's state
    torch.cuda.empty_cache()
    added = peak - before
    holds = True
    for budget in options.budgets:
        plain.optimizer = None  # The optimizer's state for this budget appears after its first step.
        torch._dynamo.reset()
        gc.collect()
        training = Training(model, loss, inputs, measured)
        figures: dict[str, Any] = {"model": name, "kernels": kernels, "budget": budget}
        planned: list[Any] = []
        try:
            if budget == "least":
                with first_step():
                    limit = smallest_budget(loss, inputs, kernels, training.optimizer)
                torch._dynamo.reset()
                gc.collect()
            else:
                share = float(budget.removesuffix("x"))
                limit = before + int(added * (1.01 if share == 1 else share))
            training.run = headroom.compile(
                loss, limit, kernels=kernels, optimizer=training.optimizer, on_plan=planned.append
            )
            with first_step():
                steps = [training.step()]
            with turn.working():
                steps += [training.step() for _ in range(STEPS - 1)]
        except headroom.BudgetError as error:
            figures |= {"refused": str(error), "limit_bytes": limit}
            tell(figures, options)
            holds = False
            continue
        over = [step_peak - limit for _, step_peak in steps]
        here, peak = steps[-1]
        predicted = max(plan.predicted_bytes for plan in planned) + here
        holds = holds and max(over) <= 0
        figures |= {"limit_bytes": limit, "over_bytes": over, "peak_bytes": peak, "predicted_bytes": predicted}
        figures |= {"added_share": (peak - here) / added, "plans": len(planned)}
        if budget in options.timed:
            with first_step():
                plain.time_ms(1)  # Recompiles after Dynamo's reset.
            with turn.timing():
                times = compare_times(training.time_ms, plain.time_ms, TIMED_ROUNDS, ROUND_S)
                figures["time_ratio"], _, figures["plain_ms"] = times
        tell(figures, options)
        del training
        model.zero_grad()
    return holds


def tell(figures: dict[str, Any], options: argparse.Namespace) -> None:
    """Prints the figures of a budget. As JSON, faults go to standard error too."""
    line = f"{figures['model']:13} {figures['kernels']:9} {figures['budget']:6}"
    limit = figures["limit_bytes"]
    if "refused" in figures:
        text, is_wrong = f"{line} REFUSED {limit} bytes: {figures['refused']}", True
    else:
        over, peak = figures["over_bytes"], figures["peak_bytes"]
        is_wrong = max(over) > 0
        text = f"{line} {f'OVER by {over} bytes in steps' if is_wrong else 'kept'}"
        text += f", peak {peak / 2**30:.3f} GiB of {limit / 2**30:.3f}"
        text += f" (predicted {100 * (figures['predicted_bytes'] / peak - 1):+.3f} %)"
        text += f", added {figures['added_share']:.3f} of plain"
        if "time_ratio" in figures:
            text += f", time {figures['time_ratio']:.3f} of {figures['plain_ms']:.1f} ms"
        text += f", {figures['plans']} plans"
    if options.json:
        print(json.dumps(figures), flush=True)
    if is_wrong or not options.json:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def first_call(options: argparse.Namespace) -> bool:
    """Prints the time of the first forward and backward, with backend aot_eager or with a budget of headroom."""
    work = make(options.model, options.device, Kind(small=options.small))
    model, loss, inputs = work.model, work.loss, work.inputs
    loss(*inputs).backward()  # Loads libraries.
    model.zero_grad()
    kind = options.first_call
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        if kind == "aot_eager":
            run = torch.compile(loss, backend="aot_eager")
        else:
            import headroom

            run = headroom.compile(loss, None if kind == "none" else kind)
        synchronize()
        start = time.perf_counter()
        run(*inputs).backward()
        synchronize()
        seconds = time.perf_counter() - start
    figures = {"model": options.model, "kind": kind, "first_s": seconds}
    print(json.dumps(figures) if options.json else f"{options.model:13} {kind:9} {seconds:.2f} s", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kernels", choices=["eager", "inductor"], default="eager")
    parser.add_argument("--budgets", nargs="+", default=["1x", "0.5x", "least"])
    parser.add_argument("--timed", nargs="*", default=["1x", "0.5x", "least"], help="budgets whose steps are timed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small model, to try this script")
    parser.add_argument("--first-call", metavar="KIND")
    parser.add_argument("--lock", help="a file by which processes take turns where they are timed")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        options.lock = options.lock or f"{folder}/lock"
        Path(options.lock).parent.mkdir(parents=True, exist_ok=True)
        work = first_call if options.first_call else examine
        return 0 if work(options) else 1


if __name__ == "__main__":
    sys.exit(main())
