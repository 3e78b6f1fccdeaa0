"""Runs ranges of programs: python -m programs --seeds 0:1000."""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import time
from pathlib import Path
from typing import Any

from programs.workers import examine_all

PROGRESS_EVERY = 250


def parse(arguments: list[str]) -> argparse.Namespace:
    def seeds(text: str) -> range:
        start, _, end = text.partition(":")
        return range(int(start), int(end) if end else int(start) + 1)

    parser = argparse.ArgumentParser(prog="python -m programs", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=range(100), help="first:end, or one seed")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--kernels", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shuffle", type=int, default=0, help="run this many schedules in random orders, no budgets")
    parser.add_argument("--timeout", type=float, default=120, help="seconds that one program may take")
    parser.add_argument("--shrink-seconds", type=float, default=60, help="time to make a failing program smaller")
    parser.add_argument("--scripts", type=Path, default=None, help="a folder for the scripts of failures")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="time after which no further program is begun"
    )
    parser.add_argument("--programs-per-process", type=int, default=200)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    counts: collections.Counter[Any] = collections.Counter()
    end = time.monotonic() + options.seconds
    seeds = itertools.takewhile(lambda _: time.monotonic() < end, options.seeds)
    for number, report in enumerate(examine_all(seeds, options), 1):
        if number % PROGRESS_EVERY == 0:
            print(f"{number} of {len(options.seeds)} programs", file=sys.stderr, flush=True)
        counts[report.status] += 1
        counts["traced"] += report.is_traced_arithmetic
        if report.status == "failed":
            counts[report.kind, "kind"] += 1
            print(f"--- seed {report.seed}: {report.kind}\n{report.text}", flush=True)
    kinds = ", ".join(f"{count} {key[0]}" for key, count in sorted(counts.items(), key=str) if isinstance(key, tuple))
    print(f"{counts['invalid']} refused by plain PyTorch, {counts['traced']} rounded differently by tracing; {kinds}")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
