"""Measures headroom on a GPU: runs the points of suites, each in a separate process, and makes tables of them.

    python benchmarks/gpu/run.py [SUITE ...] --out DIR     run all suites, or those named
    python benchmarks/gpu/run.py --list                    list suites and points
    python benchmarks/gpu/run.py --tables DIR              write DIR/SUITE.md anew, and print it

A point's result is DIR/SUITE/POINT.json, and what it prints on the way is DIR/SUITE/POINT.log. Points that have a
result for the same commit, command, GPU and PyTorch are kept, so that a run that was cut off continues where it was.
Exits with 1 if a point failed or could not be run. README.md beside this file says more.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.machine import find_setting
from harness.results import FAILED, MEASURED, NOT_RUN, path_of, read_result, read_results
from harness.runner import InUse, Runner
from harness.suite import Point, Suite, load_suites
from harness.tables import page

Selection = dict[str, tuple[Suite, list[Point]]]
Suites = Mapping[str, Suite]


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Suites, Selection]:
    """Returns the options, all suites, and the points that the options select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SUITE", help="all suites unless some are named")
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--out", type=Path, metavar="DIR", help="the folder of results")
    actions.add_argument("--list", action="store_true", help="list suites and points, and run nothing")
    actions.add_argument(
        "--tables", type=Path, metavar="DIR", help="make tables of the results in DIR, and run nothing"
    )
    parser.add_argument("--only", nargs="+", metavar="POINT", help="points by name or pattern, such as 'bert-*'")
    parser.add_argument("--again", action="store_true", help="also run points that have a result already")
    parser.add_argument("--jobs", type=int, default=1, help="points at a time, in suites that can share the GPU (1)")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="end after that time; points are continued later"
    )
    parser.add_argument("--no-build", action="store_true", help="take headroom as it is compiled already")
    parser.add_argument("--suites", type=Path, metavar="FOLDER", default=Path(__file__).with_name("suites"))
    options = parser.parse_args(arguments)
    suites = load_suites(options.suites)
    for name in options.names:
        if name not in suites:
            parser.error(f"no suite {name!r}: {', '.join(suites)}")
    selection = {name: (suites[name], list(suites[name].points)) for name in options.names or suites}
    if options.only:
        for pattern in options.only:
            if not any(fnmatch.filter(_names(points), pattern) for _, points in selection.values()):
                parser.error(f"no point {pattern!r} in {', '.join(selection)}: see --list")
        for suite, points in selection.values():
            points[:] = [
                point for point in suite.points if any(fnmatch.fnmatch(point.name, name) for name in options.only)
            ]
        selection = {name: selected for name, selected in selection.items() if selected[1]}
    return options, suites, selection


def _names(points: Sequence[Point]) -> list[str]:
    return [point.name for point in points]


def list_points(selection: Selection) -> None:
    for name, (suite, points) in selection.items():
        print(f"{name}: {suite.title}")
        for point in points:
            print(f"  {point.name}")


def make_tables(folder: Path, suites: Suites, selection: Selection) -> None:
    """Writes and prints the page of each suite that has results."""
    for name, (suite, _) in selection.items():
        if (folder / name).is_dir() or any((folder / other).is_dir() for other in suite.reads):
            print(write_page(folder, name, suites))


def write_page(folder: Path, name: str, suites: Suites) -> str:
    """Writes a suite's page and charts, and returns the page."""
    results = read_results(folder, name, suites)
    text = page(results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text)
    for chart, svg in results.suite.plots(results).items():
        (folder / f"{name}-{chart}.svg").write_text(svg)
    return text


def run(options: argparse.Namespace, suites: Suites, selection: Selection) -> int:
    with_gpu = any(point.gpu_gib is not None for _, points in selection.values() for point in points)
    setting = find_setting(with_gpu=with_gpu)
    runner = Runner(
        options.out,
        setting,
        again=options.again,
        jobs=options.jobs,
        builds=not options.no_build,
        minutes=options.minutes,
    )
    try:
        try:
            runner.run(selection)
        finally:
            for name in suites:
                if name in selection or set(selection) & set(suites[name].reads):
                    write_page(options.out, name, suites)
    except KeyboardInterrupt:
        print("interrupted; the same command continues", flush=True)
        return 130
    finally:
        runner.stop()
    counts = runner.counts
    kept = f" ({counts['kept']} of them before)" if counts["kept"] else ""
    print(f"{counts[MEASURED]} measured, {counts[FAILED]} failed{kept}, {counts[NOT_RUN]} not run")
    for name, (_, points) in selection.items():
        for point in points:
            result = read_result(options.out, name, point.name)
            if result is not None and result.status == FAILED:
                print(f"failed: {path_of(options.out, name, point.name).with_suffix('.log')}")
    return 1 if counts[FAILED] or counts[NOT_RUN] else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options, suites, selection = parse(arguments)
    if options.list:
        list_points(selection)
        return 0
    if options.tables:
        make_tables(options.tables, suites, selection)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    try:
        return run(options, suites, selection)
    except InUse as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2


def _exit(number: int, _: Any) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
