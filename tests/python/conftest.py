"""Fixtures of several files."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headroom_command import BUDGETS, UNET, headroom
from report_reader import CHROMIUM, WIDE, Reader
from reports import REQUIRED, Report, planned


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Starts Chromium. Skips the test without it, unless $HEADROOM_REQUIRE_REPORT is set."""
    if not REQUIRED and not CHROMIUM.exists():
        pytest.skip("there is no Chromium")
    api = pytest.importorskip("playwright.sync_api") if not REQUIRED else __import__("playwright.sync_api").sync_api
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def read(browser: Any) -> Iterator[Callable[..., Reader]]:
    """Opens pages, and checks at the end that nothing went wrong in them."""
    readers: list[Reader] = []

    def opened(path: Path, viewport: dict[str, int] = WIDE, scheme: str = "light") -> Reader:
        readers.append(Reader(browser, path, viewport, scheme))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.close()


@pytest.fixture
def unet_report(report: Report, tmp_path: Path) -> Path:
    """Writes the report page of a plan for the U-Net."""
    steps, _ = planned(UNET, BUDGETS["unet"], tmp_path)
    return report(UNET, steps, "--budget", BUDGETS["unet"], "--planner", "auto")


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
