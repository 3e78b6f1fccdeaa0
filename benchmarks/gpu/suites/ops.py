"""PyTorch's own operator and module samples, trained through headroom."""

from __future__ import annotations

from harness import Point, Results, Suite, cell, counts, table

PARTS = 8
SCRIPT = "tests/python/operator_samples.py"


def point_of(part: int) -> Point:
    command = ("python", SCRIPT, "--device", "cuda", "--samples", "1", "--part", f"{part}/{PARTS}")
    return Point(
        f"part-{part}-of-{PARTS}", command, limit_s=1800, packages=("expecttest",), build="python", read=counts
    )


def tables(results: Results) -> str:
    rows = []
    for point in results.suite.points:
        figures = results.first(point.name)
        rows.append([point.name, *[cell(figures.get(outcome)) for outcome in ("passed", "failed", "skipped")]])
    return table(["samples", "passed", "failed", "skipped"], rows)


SUITE = Suite("PyTorch's operator samples", [point_of(part) for part in range(1, PARTS + 1)], tables)
