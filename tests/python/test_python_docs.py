"""The examples of docs/python.md and of the tutorial run in sequence, as they are shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from headroom_command import ROOT
from reports import REQUIRED

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")
headroom = pytest.importorskip("headroom")

# An example, and its output if that is shown below it.
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?( ?%)?")


def examples(name: str) -> list[tuple[str, str]]:
    return EXAMPLE.findall((ROOT / "docs" / name).read_text())


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:headroom")
def test_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = torch._dynamo.backends.registry
    if "headroom" not in backends._BACKENDS:  # The package is not installed, so there is no entry point.
        monkeypatch.setitem(backends._COMPILER_FNS, "headroom", headroom.backend)
        monkeypatch.setitem(backends._BACKENDS, "headroom", None)
    names: dict[str, object] = {}
    torch.manual_seed(0)
    shown_examples = examples("python.md")
    for example, _ in shown_examples:
        exec(example, names)
    assert len(shown_examples) == 7
    assert names["half"].peak < names["plan"].peak
    assert 1 < names["batch"] < 1024


def test_the_tutorial(tmp_path: Path) -> None:
    """Runs the examples in a separate process, because the output depends on the memory in use."""
    shown_examples = examples("tutorial-python.md")
    assert len(shown_examples) == 10
    separator = "-- next example --\n"
    script = tmp_path / "tutorial.py"
    script.write_text(f"print({separator!r}, end='')\n".join(example for example, _ in shown_examples))
    package = str(Path(headroom.__file__).parents[1].resolve())
    environment = {**os.environ, "PYTHONPATH": package, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script.name],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    if "without the report page" in done.stderr and not REQUIRED:
        pytest.skip("headroom was built without the report page")
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(separator)
    for (example, shown), text in zip(shown_examples, printed, strict=True):
        assert_as_shown(text, shown, example)
    assert "</html>" in (tmp_path / "plan.html").read_text()
    assert len([shown for _, shown in shown_examples if shown]) == 8


def assert_as_shown(printed: str, shown: str, example: str) -> None:
    """Word by word. Sizes of plans differ by what operators take on a machine: within a twentieth; shares of time (in
    percent) are not compared, and neither is what is left out with an ellipsis."""
    lines, expected = printed.splitlines(), shown.splitlines()
    assert len(lines) == len(expected), (example, printed)
    for line, reference in zip(lines, expected, strict=True):
        kept = reference.partition("\u2026")[0]
        assert NUMBER.sub("#", line).startswith(NUMBER.sub("#", kept)), (example, line)
        if kept == reference:
            assert NUMBER.sub("#", line) == NUMBER.sub("#", reference), (example, line)
        for number, by in zip(NUMBER.finditer(line), NUMBER.finditer(kept), strict=False):
            if not by.group(1):
                assert float(number.group()) == pytest.approx(float(by.group()), rel=0.05), (example, line)
