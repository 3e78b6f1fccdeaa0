"""Fixtures of the tests of the Python package."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, nothing compiled yet and nothing left of other tests, and no costs but what the test measures."""
    import torch

    torch.set_num_threads(1)
    torch._dynamo.reset()
    gc.collect()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
