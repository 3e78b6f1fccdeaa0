"""What the README shows is what its commands print, but for how long planning took."""

import re
import shlex
from pathlib import Path

import pytest
from headroom_command import ROOT, headroom

BLOCKS = re.findall(r"```\n\$ build/headroom (.*)\n((?:.*\n)*?)```", (ROOT / "README.md").read_text())


def without_solve_time(text: str) -> list[str]:
    lines = text.split("\n\nnot for this")[0].splitlines()
    return [re.sub(r"\s+[\d.]+ ms$", "", line).rstrip() for line in lines]


def test_readme_shows_commands() -> None:
    assert len(BLOCKS) >= 3


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme") / "plan.json"


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
def test_readme_output(command: str, shown: str, plan_file: Path) -> None:
    """The blocks run in order: the plan that one writes another explains."""
    words = [str(plan_file) if word == "plan.json" else word for word in shlex.split(command)]
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
    done = headroom(*words)
    assert done.returncode == 0, done.stderr
    assert without_solve_time(done.stdout) == without_solve_time(shown)
