"""Fixtures of the tests of the Python package."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, nothing compiled yet, and no costs but what the test itself measures."""
    import torch

    torch.set_num_threads(1)
    torch._dynamo.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
