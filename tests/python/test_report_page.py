"""The page of `headroom report`: its figures, charts and tables against the data, by mouse and keyboard.

Skipped where there is no Chromium, or no page in the command, unless $HEADROOM_REQUIRE_REPORT is set. Screenshots are
left in build/report-shots.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from headroom_command import BUDGETS, UNET
from report_reader import Reader, cells, formatted, labels
from reports import Report, copies_of, data_of, measured_trace, planned


def test_figures(unet_report: Path, read: Callable[..., Reader]) -> None:
    data = data_of(unet_report)
    reader = read(unet_report)
    assert reader.text("#title") == "unet"
    assert formatted(data["budget_bytes"]) in reader.text("#figure-budget")
    assert formatted(data["peak_bytes"]) in reader.text("#figure-peak")
    assert formatted(data["store_all_peak_bytes"]) in reader.text("#figure-peak")
    assert f"{data['time_ns'] / 1e6:.2f} ms" in reader.text("#figure-time")
    assert f"+{100 * (data['time_ns'] / data['store_all_time_ns'] - 1):.1f} %" in reader.text("#figure-time")
    assert f"{data['lower_bound_ns'] / 1e6:.2f} ms" in reader.text("#figure-bound")
    assert "auto" in reader.text("#figure-planner")
    times = data["ops"]["time_ns"]
    again = sum(times[op] for op, flag in zip(data["runs"]["op"], data["runs"]["again"], strict=True) if flag)
    assert f"{100 * again / data['time_ns']:.1f} %" in reader.text("#figure-again")
    assert f"{sum(data['runs']['again'])} runs" in reader.text("#figure-again")
    reader.shot("unet-light")


def test_the_curve_is_where_it_should_be(unet_report: Path, read: Callable[..., Reader]) -> None:
    """Compares the line of predicted memory in the pixels of the chart with the data."""
    data = data_of(unet_report)
    reader = read(unet_report)
    top = 1.08 * max(data["budget_bytes"], data["store_all_peak_bytes"])
    runs = len(data["runs"]["op"])
    columns = reader.page.evaluate(
        """(runs) => {
          const over = document.querySelector("#memory .u-over").getBoundingClientRect();
          const canvas = document.querySelector("#memory canvas");
          const box = canvas.getBoundingClientRect();
          const width = Math.round(over.width), height = Math.round(over.height);
          const {data} = canvas.getContext("2d").getImageData(
            Math.round(over.left - box.left), Math.round(over.top - box.top), width, height);
          const pixel = (x, y) => Array.from(data.slice(4 * (y * width + x), 4 * (y * width + x) + 3));
          return Array.from({length: runs}, (_, run) => {
            const x = Math.floor((run + 0.5) / runs * width);
            return Array.from({length: height}, (_, y) => pixel(x, y));
          });
        }""",
        runs,
    )
    blue = (26, 95, 180)
    for run, column in enumerate(columns):
        distance = [sum(abs(a - b) for a, b in zip(pixel, blue, strict=True)) for pixel in column]
        y = distance.index(min(distance))
        assert min(distance) < 60, run
        bytes_ = top * (1 - (y + 0.5) / len(column))
        assert bytes_ == pytest.approx(data["runs"]["moment_bytes"][run], abs=2.5 * top / len(column))


def assert_marked(reader: Reader, plot: dict[str, float], run: int, runs: int) -> None:
    marker = reader.page.locator("#memory .marker").bounding_box()
    assert marker["x"] == pytest.approx(plot["x"] + plot["width"] * run / runs, abs=1.5)
    assert marker["width"] == pytest.approx(plot["width"] / runs, abs=1.5)


def test_hover(unet_report: Path, read: Callable[..., Reader]) -> None:
    data = data_of(unet_report)
    reader = read(unet_report)
    # Before the pointer moves, the peak is selected.
    peak = max(data["runs"]["moment_bytes"])
    assert data["runs"]["moment_bytes"][reader.run()] == peak
    box = reader.plot("#memory")
    runs = len(data["runs"]["op"])
    assert_marked(reader, box, data["runs"]["moment_bytes"].index(peak), runs)
    for run in (0, 7, runs // 2, runs - 1):
        reader.page.mouse.move(box["x"] + box["width"] * (run + 0.5) / runs, box["y"] + 50)
        assert reader.run() == run
        assert_marked(reader, box, run, runs)
        op = data["runs"]["op"][run]
        shown = reader.text("#memory-readout")
        assert data["ops"]["name"][op] in shown
        assert f"step {data['runs']['step'][run]}, op {run + 1} of {runs}" in shown
        assert formatted(data["runs"]["moment_bytes"][run]) in reader.text(".fact-predicted")
        assert formatted(data["runs"]["store_all_bytes"][run]) in reader.text(".fact-store-all")
        assert formatted(data["runs"]["after_bytes"][run]) in reader.text(".fact-after")
        alive = [value for value, first, last in copies_of(data) if first <= run <= last]
        assert f"{len(alive)} live values" in shown
        largest = max(alive, key=lambda value: data["values"]["bytes"][value])
        assert data["values"]["name"][largest] in shown


def test_keyboard(unet_report: Path, read: Callable[..., Reader]) -> None:
    data = data_of(unet_report)
    last = len(data["runs"]["op"]) - 1
    reader = read(unet_report)
    reader.press("#memory", "Home")
    assert reader.run() == 0
    reader.press("#memory", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert reader.run() == 1
    reader.press("#memory", "Shift+ArrowRight")
    assert reader.run() > 2
    reader.press("#memory", "End", "ArrowRight")
    assert reader.run() == last
    reader.press("#memory", "p")
    assert data["runs"]["moment_bytes"][reader.run()] == data["peak_bytes"]
    reader.press("#memory", "+", "+")
    assert reader.range()[1] - reader.range()[0] == pytest.approx((last + 1) / 4)
    # Selecting a run outside of the range moves the range.
    reader.press("#memory", "Home")
    assert reader.range()[0] == 0
    reader.press("#memory", "Escape")
    assert reader.range() == (0, last + 1)
    # Tab reaches all controls.
    reader.page.locator("body").focus()
    reached = set()
    for _ in range(40):
        reader.page.keyboard.press("Tab")
        reached.add(reader.page.evaluate("document.activeElement.id"))
    assert {"theme", "axis-time", "zoom-in", "memory", "map-filter", "map-search", "map", "fronts"} <= reached


def test_zoom(unet_report: Path, read: Callable[..., Reader]) -> None:
    data = data_of(unet_report)
    runs = len(data["runs"]["op"])
    reader = read(unet_report)
    assert reader.range() == (0, runs)
    box = reader.plot("#memory")
    reader.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    reader.page.mouse.down()
    reader.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 80, steps=5)
    reader.page.mouse.up()
    assert reader.range() == pytest.approx((runs / 4, runs / 2), abs=runs / 100)
    # The pointer selects runs by the new scale.
    reader.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    assert reader.run() == int(sum(reader.range()) / 2)
    reader.shot("unet-zoomed")
    reader.page.mouse.dblclick(box["x"] + 20, box["y"] + 60)
    assert reader.range() == (0, runs)
    reader.page.click("#zoom-in")
    assert reader.range()[1] - reader.range()[0] == pytest.approx(runs / 2)
    reader.page.click("#zoom-out")
    assert reader.range() == (0, runs)
    reader.page.click("#axis-time")
    assert reader.range() == (0, data["time_ns"])
    box = reader.plot("#memory")
    reader.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    starts = [sum(data["ops"]["time_ns"][op] for op in data["runs"]["op"][:run]) for run in range(runs)]
    assert abs(starts[reader.run()] - 0.3 * data["time_ns"]) < 0.1 * data["time_ns"]
    reader.shot("unet-by-time")


def test_retention_map(unet_report: Path, read: Callable[..., Reader]) -> None:
    data = data_of(unet_report)
    reader = read(unet_report)
    values = [v for v, resident in enumerate(data["values"]["resident"]) if not resident]
    sizes = {data["values"]["name"][v]: data["values"]["bytes"][v] for v in values}
    shown = labels(reader)
    assert len(shown) >= 20
    assert [sizes[name] for name in shown] == sorted(sizes.values(), reverse=True)[: len(shown)]
    assert f"of {len(values)} values" in reader.text("#map-count")

    reader.page.fill("#map-search", "UP1.")
    makers: dict[int, str] = {}
    for value, first, _ in copies_of(data):
        makers.setdefault(value, data["ops"]["name"][data["runs"]["op"][first]])
    matches = [data["values"]["name"][v] for v in values if "up1." in f"{data['values']['name'][v]} {makers[v]}"]
    assert set(labels(reader)) <= set(matches)
    assert reader.text("#map-count").startswith(f"{len(matches)} of")
    reader.page.fill("#map-search", "nothing like it")
    assert labels(reader) == []
    assert reader.text("#map-count").startswith("0 of")
    reader.page.fill("#map-search", "")

    reader.page.select_option("#map-filter", "again")
    again = {
        data["values"]["name"][value]
        for value, first in zip(data["lives"]["value"], data["lives"]["from"], strict=True)
        if not data["values"]["resident"][value] and data["runs"]["again"][first]
    }
    assert again
    assert set(labels(reader)) == again
    reader.page.select_option("#map-filter", "all")

    reader.press("#map", "ArrowDown", "ArrowDown", "ArrowUp")
    assert reader.text("#map-readout").startswith(shown[1])
    reader.press("#map", *["ArrowDown"] * 40)
    assert reader.page.evaluate("document.querySelector('.map-scroller').scrollTop") > 0
    before = reader.run()
    reader.press("#map", "ArrowRight")
    assert reader.run() == before + 1
    # The row under the pointer.
    box = reader.page.locator("#map canvas").bounding_box()
    reader.page.mouse.move(box["x"] + 5, box["y"] + 18 * 3.5)
    assert reader.text("#map-readout").startswith(labels(reader)[3])
    assert reader.run() == 0


def test_fronts(unet_report: Path, read: Callable[..., Reader]) -> None:
    data = data_of(unet_report)
    reader = read(unet_report)
    assert "this plan" in reader.text("#fronts-readout")
    assert formatted(data["peak_bytes"]) in reader.text("#fronts-readout")
    fronts = data["fronts"]["planners"]
    points = [point for front in fronts for point in front["points"]]
    most_ns = max(data["time_ns"], 2 * data["store_all_time_ns"])

    def place(amount: float, amounts: list[float]) -> float:
        margin = 0.07 * (max(amounts) - min(amounts))
        return (amount - min(amounts) + margin) / (max(amounts) - min(amounts) + 2 * margin)

    peaks = [peak for peak, _ in points]
    times = [min(time, most_ns) for _, time in points] + [time for _, time in data["fronts"]["bounds"]]
    box = reader.plot("#fronts")
    for front in fronts:
        if front["planner"] not in {"division-tree", "lower-sets"}:
            continue
        peak, time = front["points"][0]
        reader.page.mouse.click(
            box["x"] + box["width"] * place(peak, peaks), box["y"] + box["height"] * (1 - place(time, times))
        )
        shown = reader.text("#fronts-readout")
        assert shown.startswith(front["planner"])
        assert formatted(peak) in shown
        assert f"{time / 1e6:.2f} ms" in shown
    reader.press("#fronts", "Home", "ArrowRight")
    assert reader.text("#fronts-readout").startswith("store-all")
    legend = reader.page.locator("#fronts-legend button", has_text="store-all")
    legend.click()
    assert legend.get_attribute("aria-pressed") == "false"
    reader.press("#fronts", "Home", "ArrowRight")
    assert not reader.text("#fronts-readout").startswith("store-all")


def test_tables(unet_report: Path, read: Callable[..., Reader]) -> None:
    data = data_of(unet_report)
    reader = read(unet_report)
    run = data["runs"]["moment_bytes"].index(data["peak_bytes"])
    alive = sorted(
        (data["values"]["bytes"][value], data["values"]["name"][value])
        for value, first, last in copies_of(data)
        if first <= run <= last
    )
    if reader.page.locator("#peak-table .more").count() > 0:
        reader.page.click("#peak-table .more")
    rows = cells(reader, "#peak-table")
    assert sorted(row[0] for row in rows) == sorted(name for _, name in alive)
    assert [row[1] for row in rows] == [formatted(size) for size, _ in reversed(alive)]
    groups = {row[0]: row for row in cells(reader, "#again-table")}
    names = data["ops"]["name"]
    again = [names[op] for op, flag in zip(data["runs"]["op"], data["runs"]["again"], strict=True) if flag]
    assert groups.keys() == {name.split(".")[0] for name in again}
    assert all(int(row[1]) == sum(name.startswith(f"{key}.") for name in again) for key, row in groups.items())
    reader.page.locator("#again-table summary").first.click()
    assert reader.page.locator("#again-table li").first.inner_text() != ""


def test_measured_memory_is_shown(report: Report, read: Callable[..., Reader], tmp_path: Path) -> None:
    steps, _ = planned(UNET, BUDGETS["unet"], tmp_path)
    trace = measured_trace(UNET, steps, tmp_path / "trace.json")
    reader = read(report(UNET, steps, "--measured", trace))
    assert "measured" in reader.text("#memory-legend")
    assert "+0.0 %" in reader.text(".fact-measured")
    assert "layer." in reader.text("#memory-readout")
    assert "measured peak" in reader.text("#figure-measured")
