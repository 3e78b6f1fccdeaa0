"""Finds the largest batch whose step fits a budget by headroom.max_batch(), and trains it.

    python benchmarks/gpu/measure/largest_batch.py MODEL BUDGET [--json]

BUDGET is that of the whole device, such as 16GB, weights and gradients included. Also prints the largest batch of plain
PyTorch, whose memory is measured at two batches and grows evenly with the batch. Exits with 1 if a step exceeds the
budget.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import warnings
from typing import Any

import torch
from models import Kind, make
from steps import Peak

import headroom
from headroom import _C

# Batches at which the memory of plain PyTorch is measured.
PLAIN_BATCHES = (4, 12)
STEPS = 3


class Search:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = make(f"{options.model}:1", options.device, Kind(small=options.small, same_attention=True))
        self.peak = Peak(headroom.Meter(torch.device(options.device)))

    def inputs(self, batch: int) -> tuple[Any, ...]:
        """Returns the first sample that many times."""
        return tuple(tensor[:1].expand(batch, *tensor.shape[1:]).contiguous() for tensor in self.work.inputs)

    def step(self, run: Any, inputs: tuple[Any, ...]) -> int:
        """Returns the peak of a step, with the parameters' gradients in place as in training without zero_grad()."""
        gc.collect()
        self.work.model.zero_grad()
        self.peak.reset()
        run(*inputs).backward()
        return self.peak.bytes()

    def plain_batch(self, budget: int) -> int:
        """Returns the largest batch of plain PyTorch."""
        small, large = PLAIN_BATCHES
        first, second = [
            [self.step(self.work.loss, self.inputs(batch)) for _ in range(2)][-1] for batch in PLAIN_BATCHES
        ]
        each = max((second - first) / (large - small), 1)
        return max(int(small + (budget - first) / each), 0)

    def run(self) -> bool:
        budget = _C.parse_bytes(self.options.budget)
        plain = self.plain_batch(budget)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.work.model.zero_grad()
        batch = headroom.max_batch(self.work.loss, self.inputs, budget, most=self.options.most)
        figures: dict[str, Any] = {"model": self.options.model, "budget_bytes": budget, "batch": batch}
        figures["plain_batch"] = plain
        peaks = []
        if batch > 0:
            inputs = self.inputs(batch)
            planned = headroom.compile(self.work.loss, budget)
            peaks = [self.step(planned, inputs) for _ in range(STEPS)]
        figures |= {"peak_bytes": max(peaks, default=0), "over_bytes": max(peaks, default=0) - budget}
        if self.options.json:
            print(json.dumps(figures), flush=True)
        else:
            print(f"{figures['model']} in {self.options.budget}: {batch} (plain {plain}), peak {figures['peak_bytes']}")
        if figures["over_bytes"] > 0:
            print(f"a step exceeds the budget by {figures['over_bytes']} bytes", file=sys.stderr)
        return figures["over_bytes"] <= 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("budget")
    parser.add_argument("--most", type=int, default=4096, help="the largest batch that is looked for")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small model, to try this script")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64
    return 0 if Search(options).run() else 1


if __name__ == "__main__":
    sys.exit(main())
