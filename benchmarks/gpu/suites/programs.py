"""Random training programs against plain PyTorch."""

from __future__ import annotations

import os

from harness import Point, Results, Suite, cell, counts, table

SEEDS, SEEDS_PER_POINT = 300, 100
JOBS = max(1, len(os.sched_getaffinity(0)) // 2)


def point_of(first: int) -> Point:
    seeds = f"{first}:{first + SEEDS_PER_POINT}"
    command = ("python", "-m", "programs", "--seeds", seeds, "--jobs", str(JOBS), "--device", "cuda")
    name = f"seeds-{seeds.replace(':', '-')}"
    return Point(name, command, limit_s=1800, build="python", folder="tests/python", read=counts)


def tables(results: Results) -> str:
    rows = []
    for point in results.suite.points:
        figures = results.first(point.name)
        rows.append([point.name, *[cell(figures.get(outcome)) for outcome in ("passed", "failed")]])
    return table(["programs", "passed", "failed"], rows)


SUITE = Suite("Random training programs", [point_of(first) for first in range(0, SEEDS, SEEDS_PER_POINT)], tables)
