"""Keeps the results of benchmarks/gpu in docs/results/gpu, and the figures that documents quote from them.

    python tools/results.py publish DIR     take results of benchmarks/gpu/run.py, with tables and charts
    python tools/results.py figures         write the figures into the documents
    python tools/results.py figures --check fail if a document has another figure

docs/results/gpu/SUITE.json has one result on a line. A document quotes a figure between two comments:

    a step takes <!--= gib torch/resnet50/eager:0.5x/peak_bytes -->5.14<!--/--> GiB

with a form and one or two names like SUITE/POINT/VARIANT/FIGURE. POINT may be the beginning of several points, such as
all of a model. Forms: `gib`, `mib`, `ms`, `times` (the quotient of two figures), `more` (by how many percent the first
is larger) and `share` (how many percent of the second it is).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))

from harness.results import Result, Results, read_results  # noqa: E402
from harness.suite import Figures, Suite, load_suites  # noqa: E402
from harness.tables import page, table  # noqa: E402
from harness.variants import figures_of  # noqa: E402

SUITES = ROOT / "benchmarks" / "gpu" / "suites"
# A figure that differs by less is not listed as changed.
CHANGE = 0.02
QUOTED = re.compile(r"(<!--= (?P<form>\w+) (?P<names>[^>]*?) -->)(?P<text>[^<]*)<!--/-->")
# What the tables of changes compare, with the unit, its size and a format.
COMPARED = {"peak_bytes": ("GiB", 1 << 30, ".2f"), "ms": ("ms", 1, ".1f")}


class Unknown(Exception):
    """A figure that no result has."""


FORMS: dict[str, Callable[..., str]] = {
    "gib": lambda value: f"{value / 2**30:.2f}",
    "mib": lambda value: f"{value / 2**20:.0f}",
    "ms": lambda value: f"{value:.1f}",
    "times": lambda value, other: f"{value / other:.2f}",
    "more": lambda value, other: f"{100 * (value / other - 1):.0f} %",
    "share": lambda value, other: f"{100 * value / other:.0f} %",
}


def store(results: Mapping[str, Result], path: Path) -> None:
    """Writes results as a JSON list with one on a line."""
    lines = [json.dumps(vars(result), separators=(",", ":"), sort_keys=True) for result in results.values()]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def load(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    return {stored["point"]: Result(**stored) for stored in json.loads(path.read_text())}


def load_all(folder: Path, suites: Mapping[str, Suite]) -> dict[str, Results]:
    return {name: Results(suite, load(folder / f"{name}.json")) for name, suite in suites.items()}


def changes(before: Results, after: Results) -> str:
    """Returns a table of the figures that have changed since an earlier commit, or nothing."""
    rows = []
    for point in after.suite.points:
        earlier, later = (figures_of(results, [point.name]) for results in (before, after))
        for variant in later:
            for name, (unit, size, form) in COMPARED.items():
                old, new = (variants.get(variant, {}).get(name) for variants in (earlier, later))
                if old and new and abs(new / old - 1) > CHANGE:
                    sizes = [f"{value / size:{form}}" for value in (old, new)]
                    rows.append([f"{point.name}, {variant}", unit, *sizes, f"{100 * (new / old - 1):+.0f} %"])
    commits = sorted({result.commit for result in before.by_point.values() if result.figures})
    if not commits:
        return ""
    title = f"## Changed by more than {100 * CHANGE:.0f} % since {', '.join(commits)}\n"
    return f"\n{title}\n" + (table(["", "", "before", "now", ""], rows) if rows else "Nothing.\n")


def publish(source: Path, target: Path, suites: Mapping[str, Suite]) -> list[str]:
    """Takes the results in a folder of run.py. Returns the names of the suites that have some.

    Points that were not measured again keep their earlier result, with its commit.
    """
    target.mkdir(parents=True, exist_ok=True)
    earlier = load_all(target, suites)
    taken = []
    for name in suites:
        found = read_results(source, name, suites)
        with_figures = {point: result for point, result in found.by_point.items() if result.figures}
        if with_figures:
            taken.append(name)
            store({**earlier[name].by_point, **with_figures}, target / f"{name}.json")
    later = load_all(target, suites)
    for name, suite in suites.items():
        beside = {other: later[other] for other in suite.reads if later[other].by_point}
        results = Results(suite, later[name].by_point, beside)
        if name in taken or set(taken) & set(suite.reads):
            text = page(results) + changes(earlier[name], results)
            (target / f"{name}.md").write_text(text)
            for chart, svg in suite.plots(results).items():
                (target / f"{name}-{chart}.svg").write_text(svg)
    return taken


def figure(name: str, results: Mapping[str, Results]) -> Any:
    """Returns a figure by its name."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] not in results:
        raise Unknown(f"{name} is no SUITE/POINT/VARIANT/FIGURE")
    suite, beginning, variant, key = parts
    points = [point for point in results[suite].by_point if point == beginning or point.startswith(f"{beginning}-")]
    found: Figures = figures_of(results[suite], points).get(variant, {})
    if key not in found:
        raise Unknown(f"no result has {name}")
    return found[key]


def quote(text: str, results: Mapping[str, Results]) -> str:
    """Returns a document with its figures taken from results."""

    def replaced(match: re.Match[str]) -> str:
        form = FORMS.get(match["form"])
        if form is None:
            raise Unknown(f"no form {match['form']!r}: {', '.join(FORMS)}")
        return f"{match[1]}{form(*[figure(name, results) for name in match['names'].split()])}<!--/-->"

    return QUOTED.sub(replaced, text)


def documents() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def write_figures(*, check: bool) -> int:
    suites = load_suites(SUITES)
    results = load_all(ROOT / "docs" / "results" / "gpu", suites)
    status = 0
    for path in documents():
        before = path.read_text()
        try:
            after = quote(before, results)
        except Unknown as error:
            print(f"{path.relative_to(ROOT)}: {error}", file=sys.stderr)
            status = 1
            continue
        if after != before and check:
            print(f"{path.relative_to(ROOT)}: run tools/results.py figures", file=sys.stderr)
            status = 1
        elif after != before:
            path.write_text(after)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("publish").add_argument("folder", type=Path)
    commands.add_parser("figures").add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.command == "figures":
        return write_figures(check=options.check)
    taken = publish(options.folder, ROOT / "docs" / "results" / "gpu", load_suites(SUITES))
    print(f"taken: {', '.join(taken) or 'nothing'}")
    return 0 if taken else 1


if __name__ == "__main__":
    sys.exit(main())
