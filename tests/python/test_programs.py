"""Random training programs give what plain PyTorch gives, within their budgets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")


def examine(*arguments: str) -> str:
    """Runs the programs in a separate process, and returns its output."""
    command = [sys.executable, "-m", "programs", "--shrink-seconds", "30", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_programs_with_eager_kernels() -> None:
    assert "0 failed" in examine("--seeds", "0:60")


def test_programs_in_random_orders() -> None:
    assert "0 failed" in examine("--seeds", "0:40", "--shuffle", "3")


def test_programs_with_inductor() -> None:
    assert "0 failed" in examine("--seeds", "0:2", "--kernels", "inductor")
