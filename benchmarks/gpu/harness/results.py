"""Results of points: a JSON file each, DIR/SUITE/POINT.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.suite import Figures, Suite

MEASURED, FAILED, NOT_RUN = "measured", "failed", "not run"


@dataclass
class Result:
    """The outcome of one point."""

    suite: str
    point: str
    status: str  # MEASURED; FAILED, possibly with figures; or NOT_RUN if a requirement is missing.
    error: str = ""  # One line.
    figures: list[Figures] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    seconds: float = 0
    started: str = ""
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    gpu: dict[str, Any] | None = None

    def is_of(self, other: Result) -> bool:
        """Returns whether both measure the same thing: command, commit, GPU and PyTorch."""
        return self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return self.command, self.commit, self.gpu, self.versions.get("torch")


def path_of(folder: Path, suite: str, point: str) -> Path:
    return folder / suite / f"{point}.json"


def write_result(folder: Path, result: Result) -> None:
    """Writes the file atomically, so that an interrupted run leaves a whole file or none."""
    path = path_of(folder, result.suite, result.point)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".json.unfinished")
    unfinished.write_text(json.dumps(asdict(result), indent=1) + "\n")
    os.replace(unfinished, path)


def read_result(folder: Path, suite: str, point: str) -> Result | None:
    try:
        return Result(**json.loads(path_of(folder, suite, point).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None  # A point whose file cannot be read is measured again.


@dataclass
class Results:
    """The results of one suite."""

    suite: Suite
    by_point: Mapping[str, Result]
    beside: Mapping[str, Results] = field(default_factory=dict)  # Of the suites that this one reads.

    def all(self, point: str) -> list[Figures]:
        """Returns the figures of a point, or an empty list without a result."""
        return self.by_point[point].figures if point in self.by_point else []

    def first(self, point: str) -> Figures:
        """Returns the first figures of a point, or an empty object without figures."""
        return next(iter(self.all(point)), {})


def read_results(folder: Path, name: str, suites: Mapping[str, Suite]) -> Results:
    """Returns the results of a suite, with those of the suites that it reads."""
    suite = suites[name]
    stored = {point.name: read_result(folder, name, point.name) for point in suite.points}
    by_point = {point: result for point, result in stored.items() if result is not None}
    beside = {other: read_results(folder, other, suites) for other in suite.reads if (folder / other).is_dir()}
    return Results(suite, by_point, beside)
