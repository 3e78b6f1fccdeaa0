"""The command under test: $HEADROOM_BIN, build/headroom unless set."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.json"))
UNET = ROOT / "examples" / "unet.json"
PLANNERS = [
    "store-all",
    "even",
    "sqrt",
    "binomial",
    "peak-cubic",
    "peak-linear",
    "chain",
    "division-tree",
    "lower-sets",
    "exhaustive",
    "auto",
]
CHAIN_PLANNERS = ["even", "sqrt", "binomial", "peak-cubic", "peak-linear", "chain"]

# Shares of store-all's peak that a plan can meet, close to the smallest.
BUDGETS = {
    "alexnet": "0.97x",
    "gpt24": "0.5x",
    "resnet50": "0.5x",
    "unet": "0.7x",
    "vgg11": "0.9x",
    "vgg13": "0.9x",
    "vgg16": "0.85x",
    "vgg19": "0.8x",
}

Arguments = str | Path


def headroom(*arguments: Arguments, locale: str = "C.UTF-8") -> subprocess.CompletedProcess[str]:
    command = [os.environ.get("HEADROOM_BIN", str(ROOT / "build" / "headroom")), *map(str, arguments)]
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=120,
        env={**os.environ, "LC_ALL": locale},
    )


def result_of(*arguments: Arguments) -> Any:
    """Returns the output of a call with --json."""
    done = headroom(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def assert_refused(done: subprocess.CompletedProcess[str], mentions: str = "") -> None:
    """Checks the response to bad input: status 2, nothing on stdout, one line on stderr."""
    assert done.returncode == 2, (done.returncode, done.stdout[:500], done.stderr[:500])
    assert done.stdout == ""
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert len(done.stderr) < 1000
    assert mentions in done.stderr
