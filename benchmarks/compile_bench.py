"""Measures the overhead of the backend: alternates plain PyTorch, aot_eager, and headroom without recomputation.

Usage: compile_bench.py [--turns N] [--device cpu|cuda] [MODEL ...]. Ratios are medians over turns; CPU times of the
process on CPU.

With --first-call: the first step, compilation included, against that of aot_eager, without a budget, at 1x and at 0.6x.
Each is the first in a process of its own, with no measured costs on disk; what PyTorch imports when it compiles for the
first time is imported before. There, MODEL may also be one of capture_graphs.py's: large-resnet50 and so on, on the
CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from capture_graphs import STEPS
from training_models import CASES, loss_of

import headroom


def step_time(run: Callable[..., torch.Tensor], batch: list[torch.Tensor], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    run(*batch).backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def compare(name: str, device: str, turns: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = CASES[name].make().to(device)
    batch = [tensor.to(device) for tensor in CASES[name].inputs()]
    loss = loss_of(model)
    runs = {
        "plain": loss,
        "aot_eager": torch.compile(loss, backend="aot_eager", dynamic=False),
        "headroom": headroom.compile(loss, "1x"),
    }
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for turn in range(-3, turns):
        for kind in sorted(runs, reverse=turn % 2 == 0):
            model.zero_grad()
            elapsed = step_time(runs[kind], batch, device)
            if turn >= 0:
                times[kind].append(elapsed)
    ratio = {
        kind: statistics.median(a / b for a, b in zip(times[kind], times["plain"], strict=True))
        for kind in ("aot_eager", "headroom")
    }
    print(
        f"{name:10} plain {1e3 * statistics.median(times['plain']):8.2f} ms   aot_eager x{ratio['aot_eager']:.3f}   "
        f"headroom x{ratio['headroom']:.3f}",
        flush=True,
    )


LARGE = {f"large-{name}": make for name, make in STEPS.items()}
FIRST_CALLS = ("aot_eager", "none", "1x", "0.6x")  # Backend aot_eager, then budgets of headroom.


def first_call(name: str, device: str, point: str) -> None:
    """Prints the seconds of a first step in this process, or nan if the budget is too small for the model."""
    leaf = torch.ones(2, requires_grad=True)
    torch.compile(torch.sin, backend="aot_eager")(leaf).sum().backward()
    torch._dynamo.reset()
    torch.manual_seed(0)
    if name in LARGE:
        loss, batch = LARGE[name]()
    else:
        loss = loss_of(CASES[name].make().to(device))
        batch = [tensor.to(device) for tensor in CASES[name].inputs()]
    if point == "aot_eager":
        run = torch.compile(loss, backend="aot_eager", dynamic=False)
    else:
        run = headroom.compile(loss, None if point == "none" else point)
    try:
        print(step_time(run, batch, device))
    except headroom.BudgetError:
        print("nan")


def compare_first_calls(name: str, device: str) -> None:
    seconds = {}
    for point in FIRST_CALLS:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, __file__, "--device", device, "--point", point, name],
                env={**os.environ, "XDG_CACHE_HOME": folder},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        seconds[point] = float(done.stdout.split()[-1])
    ratios = "   ".join(f"{kind} x{seconds[kind] / seconds['aot_eager']:.2f}" for kind in FIRST_CALLS[1:])
    print(f"{name:18} aot_eager {seconds['aot_eager']:6.2f} s   headroom {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--first-call", action="store_true")
    parser.add_argument("--point", choices=FIRST_CALLS, help=argparse.SUPPRESS)  # In a separate process.
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)}; default: all")
    options = parser.parse_args()
    known = [*CASES, *(LARGE if options.first_call or options.point else [])]
    if unknown := set(options.models) - set(known):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    torch.set_num_threads(1)
    for name in options.models or CASES:
        if options.point is not None:
            first_call(name, options.device, options.point)
        elif options.first_call:
            compare_first_calls(name, options.device)
        else:
            compare(name, options.device, options.turns)


if __name__ == "__main__":
    main()
