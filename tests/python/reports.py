"""Writes reports of schedules and reads the data in their pages."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headroom_command import result_of

# Set if the commands must have the report page, and a browser must exist.
REQUIRED = os.environ.get("HEADROOM_REQUIRE_REPORT", "") != ""

Report = Callable[..., Path]


def planned(graph: Path, budget: str, folder: Path) -> tuple[Path, Any]:
    steps = folder / "schedule.json"
    return steps, result_of("plan", graph, "--budget", budget, "--out", steps)


def data_of(page: Path) -> Any:
    text = page.read_text()
    blocks = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert len(blocks) == 1
    return json.loads(blocks[0])


def copies_of(data: Any) -> list[tuple[int, int, int]]:
    """Returns the value, first run and last run of each copy."""
    lives = data["lives"]
    return list(zip(lives["value"], lives["from"], lives["to"], strict=True))


def measured_trace(graph: Path, steps: Path, path: Path) -> Path:
    """Writes a trace as `headroom-train --trace` does if it measures a byte more than predicted."""
    simulated = result_of("simulate", graph, steps)
    document = json.loads(steps.read_text())["steps"]
    entries = [
        {
            "op": step["run"],
            "node": f"layer.{step['run']}",
            "predicted_moment_bytes": simulated["moment_bytes"][position],
            "measured_moment_bytes": simulated["moment_bytes"][position] + 1,
            "predicted_after_bytes": simulated["after_bytes"][position],
            "measured_after_bytes": simulated["after_bytes"][position],
        }
        for position, step in enumerate(document)
        if "run" in step
    ]
    path.write_text(json.dumps({"traceEvents": [], "steps": entries}))
    return path
