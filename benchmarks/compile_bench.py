"""What the backend itself costs: plain PyTorch, backend aot_eager, and ours with nothing recomputed, in turn.

Usage: compile_bench.py [--turns N] [--device cpu|cuda]. Ratios are medians over turns; CPU times of the process on CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from training_models import CASES, loss_of

import headroom


def step_time(
    run: Callable[..., torch.Tensor], model: torch.nn.Module, batch: list[torch.Tensor], device: str
) -> float:
    model.zero_grad()
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
    batch = [one.to(device) for one in CASES[name].inputs()]
    loss = loss_of(model)
    runs = {
        "plain": loss,
        "aot_eager": torch.compile(loss, backend="aot_eager", dynamic=False),
        "headroom": headroom.compile(loss, "1x"),
    }
    times: dict[str, list[float]] = {one: [] for one in runs}
    for turn in range(-3, turns):
        for one in sorted(runs, reverse=turn % 2 == 0):
            elapsed = step_time(runs[one], model, batch, device)
            if turn >= 0:
                times[one].append(elapsed)
    ratio = {
        one: statistics.median(a / b for a, b in zip(times[one], times["plain"], strict=True))
        for one in ("aot_eager", "headroom")
    }
    print(
        f"{name:10} plain {1e3 * statistics.median(times['plain']):8.2f} ms   aot_eager x{ratio['aot_eager']:.3f}   "
        f"headroom x{ratio['headroom']:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in CASES:
        compare(name, options.device, options.turns)


if __name__ == "__main__":
    main()
