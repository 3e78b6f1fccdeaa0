"""Fixtures of several files."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from headroom_command import headroom
from reports import REQUIRED, Report


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives each test one thread, no compiled code or memory of other tests, and only the costs that it measures.

    Inductor writes scalar kernels, which compile in half the time of vectorized ones.
    """
    import torch
    from torch._inductor import config

    torch.set_num_threads(1)
    torch._dynamo.reset()
    gc.collect()
    gc.freeze()  # Collections in the test skip existing objects.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with config.patch({"cpp.simdlen": 1}):
        yield


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Writes the report page of a graph and a schedule."""

    def make(graph: Path, steps: Path, *options: str | Path) -> Path:
        page = tmp_path / f"{graph.stem}.html"
        done = headroom("report", graph, steps, "--out", page, *options)
        if "without the report page" in done.stderr and not REQUIRED:
            pytest.skip("headroom was built without the report page")
        assert done.returncode == 0, done.stderr
        assert done.stdout == done.stderr == ""
        return page

    return make


@pytest.fixture
def fixed_costs() -> Iterator[None]:
    """Replaces measured costs by costs from sizes in this test, so that plans are the same in every run."""
    from fixed_costs import fixed_costs

    with fixed_costs():
        yield


@pytest.fixture
def fresh_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the graphs of other tests."""
    from headroom.budget import flight

    monkeypatch.setattr(flight, "_devices", {})
