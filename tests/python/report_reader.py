"""Reads the page of `headroom report` in a real browser."""

import re
from pathlib import Path
from typing import Any

from headroom_command import ROOT

SHOTS = ROOT / "build" / "report-shots"
CHROMIUM = Path("/usr/bin/chromium")
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 800}


class Reader:
    """Opens a page in a browser. At the end the page must have had no errors and made no requests."""

    def __init__(self, browser: Any, path: Path, viewport: dict[str, int], scheme: str) -> None:
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)
        self.page.wait_for_selector("html[data-ready]")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def press(self, selector: str, *keys: str) -> None:
        self.page.locator(selector).focus()
        for key in keys:
            self.page.keyboard.press(key)

    def run(self) -> int:
        return int(self.page.locator("#memory-readout").get_attribute("data-run"))

    def range(self) -> tuple[float, float]:
        chart = self.page.locator("#memory")
        return float(chart.get_attribute("data-from")), float(chart.get_attribute("data-to"))

    def plot(self, selector: str) -> dict[str, float]:
        """Returns the position of the inside of a chart on the screen."""
        over = self.page.locator(f"{selector} .u-over")
        over.scroll_into_view_if_needed()
        return over.bounding_box()

    def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.wait_for_timeout(100)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def close(self) -> None:
        self.context.close()
        assert self.errors == []
        assert set(self.requests) == {self.url}


def formatted(amount: int) -> str:
    """Returns bytes as the command line writes them: halves of a hundredth are rounded up."""
    power = max((p for p in range(6) if amount >= 1024**p), default=0)
    if power == 0:
        return f"{amount} B"
    hundredths = (200 * amount + 1024**power) // (2 * 1024**power)
    return f"{hundredths // 100}.{hundredths % 100:02} {'KMGTP'[power - 1]}iB"


def labels(reader: Reader) -> list[str]:
    """Returns the names in the visible rows of the map."""
    reader.page.wait_for_timeout(60)
    return reader.page.locator("#map .map-label .name").all_inner_texts()


def cells(reader: Reader, table: str) -> list[list[str]]:
    """Returns the texts in the rows of a table."""
    return reader.page.locator(f"{table} tbody tr").evaluate_all(
        "rows => rows.map(row => Array.from(row.cells, cell => cell.innerText.trim()))"
    )


def background(reader: Reader) -> int:
    """Returns the brightness of the page, from 0 to 765."""
    text = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", text)[:3]))
