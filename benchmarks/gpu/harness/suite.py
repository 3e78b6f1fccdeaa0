"""Suites: named points, each of which is a command, and the tables of their results."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.results import Results

ROOT = Path(__file__).resolve().parents[3]

Figures = dict[str, Any]


def json_lines(output: str) -> list[Figures]:
    """Returns the JSON objects that are single lines, and ignores other lines."""
    figures = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                figures.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return figures


def counts(output: str) -> list[Figures]:
    """Returns the counts in the last line of a test, such as "98 passed, 2 failed"."""
    lines = re.findall(r"^\d+ passed.*$", output, re.MULTILINE)
    return [{outcome: int(count) for count, outcome in re.findall(r"(\d+) (\w+)", lines[-1])}] if lines else []


@dataclass(frozen=True)
class Point:
    """One measurement: a command that runs in a separate process and prints its figures on standard output."""

    name: str
    command: tuple[str, ...]  # Started in `folder`; "python" stands for the interpreter that runs the harness.
    limit_s: float = 600
    gpu_gib: float | None = 0  # Memory that the GPU must have; None for a point that needs no GPU.
    packages: tuple[str, ...] = ()  # Python packages that must be installed.
    build: str = ""  # The part that `build.py` compiles first: "python", "programs" or nothing.
    folder: str = "."  # The working directory, relative to the repository's root.
    environment: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[str], list[Figures]] = json_lines  # Finds the figures in the standard output.

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ValueError(f"a point's name is a file's name of letters, digits, '.', '_' and '-', not {self.name!r}")


@dataclass(frozen=True)
class Suite:
    """Points that are run together, in their order."""

    title: str
    points: Sequence[Point]
    tables: Callable[[Results], str]  # Returns Markdown; a point without a result has no figures.
    # Returns charts by name, as SVG: they are files DIR/SUITE-NAME.svg.
    plots: Callable[[Results], dict[str, str]] = lambda _: {}
    reads: Sequence[str] = ()  # Suites whose results the tables and charts show too.
    side_by_side: bool = False  # Whether points may share the GPU (`--jobs`); where they are timed they take turns.

    def __post_init__(self) -> None:
        names = [point.name for point in self.points]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two points are named {name!r}")


def load_suites(folder: Path) -> dict[str, Suite]:
    """Returns the `SUITE` of every Python file in the folder, by the file's name."""
    suites = {}
    for path in sorted(folder.glob("[!_]*.py")):
        spec = importlib.util.spec_from_file_location(f"suites_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        suites[path.stem] = module.SUITE
    return suites
