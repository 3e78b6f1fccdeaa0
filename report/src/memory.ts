import uPlot from "uplot";
import type { Report } from "./data";
import { byId, colour, element, legendItem, nameTag } from "./dom";
import { axisBytes, axisNs, change, count, formatBytes, formatNs, percent, shorten } from "./format";
import type { View } from "./view";

const kLiveShown = 8;

/** Memory during every run: predicted, measured, and that of store-all at the same op. */
export class MemoryChart {
  private readonly box = byId("memory");
  private readonly marker = element("div", "marker");
  private plot: uPlot;
  private sharing = false;

  constructor(
    private readonly report: Report,
    private readonly view: View,
  ) {
    this.plot = this.makePlot();
    this.showRange();
    this.makeLegend();
    this.box.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || !view.handleKey(event)) return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.resize()).observe(this.box);
    view.onChange((changed) => {
      if (changed === "theme") this.rebuild();
      if (changed === "range") this.showRange();
      if (changed !== "run") return;
      this.readOut();
      this.placeMarker(this.plot);
    });
    this.readOut();
  }

  /** Draws the chart again after a change of theme or unit. */
  rebuild(): void {
    this.plot.destroy();
    this.plot = this.makePlot();
    this.showRange();
  }

  private makePlot(): uPlot {
    const { runs, measured } = this.report.data;
    // The last value is repeated so that the last run is as wide as the others.
    const closed = (bytes: number[]): number[] => [...bytes, bytes[bytes.length - 1]];
    const data: uPlot.AlignedData = [
      Array.from(this.view.edges),
      closed(runs.store_all_bytes),
      closed(runs.moment_bytes),
      ...(measured === null ? [] : [closed(measured.moment_bytes)]),
    ];
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const series = (name: string, width: number, fill?: string): uPlot.Series => ({
      stroke: colour(name),
      width,
      fill: fill === undefined ? undefined : colour(fill),
      paths: stepped,
      points: { show: false },
    });
    const axis = { stroke: colour("faint"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") } };
    const options: uPlot.Options = {
      ...this.size(),
      legend: { show: false },
      padding: [12, 16, 0, 0],
      cursor: { y: false, x: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false, range: () => [this.view.from, this.view.to] }, y: { range: () => [0, this.top()] } },
      axes: [
        {
          ...axis,
          values: (_, marks) =>
            marks.map((mark) => {
              if (this.view.mode === "time") return axisNs(mark, this.view.to - this.view.from);
              return Number.isInteger(mark) ? String(mark) : "";
            }),
        },
        { ...axis, size: 76, splits: () => splitBytes(this.top()), values: (_, marks) => marks.map((mark) => axisBytes(mark, marks[1])) },
      ],
      series: [
        {},
        series("store-all", 1, "store-all-fill"),
        series("predicted", 1.5, "predicted-fill"),
        ...(measured === null ? [] : [series("measured", 1.5)]),
      ],
      hooks: {
        drawClear: [(plot) => this.shade(plot)],
        draw: [(plot) => this.drawBudget(plot), (plot) => this.placeMarker(plot)],
        setSelect: [(plot) => this.zoomToSelection(plot)],
      },
    };
    const plot = new uPlot(options, data, this.box);
    plot.over.append(this.marker);
    plot.over.addEventListener("pointermove", (event) => this.follow(plot, event));
    plot.over.addEventListener("pointerdown", (event) => this.follow(plot, event));
    plot.over.addEventListener("dblclick", () => this.view.showAll());
    plot.over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    return plot;
  }

  private top(): number {
    const { budget_bytes, peak_bytes, store_all_peak_bytes, measured } = this.report.data;
    const max = Math.max(budget_bytes ?? 0, peak_bytes, store_all_peak_bytes, measured?.peak_bytes ?? 0, 1);
    return max * 1.08;
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(this.box.clientWidth, 200), height: window.innerWidth < 600 ? 240 : 320 };
  }

  private resize(): void {
    const { width, height } = this.size();
    if (width === this.plot.width && height === this.plot.height) return;
    this.plot.setSize({ width, height });
  }

  private follow(plot: uPlot, event: PointerEvent): void {
    const left = event.clientX - plot.over.getBoundingClientRect().left;
    this.view.select(this.view.runAt(plot.posToVal(left, "x")));
  }

  private wheel(event: WheelEvent): void {
    if (!event.ctrlKey) return; // Without Ctrl the page scrolls.
    event.preventDefault();
    this.view.zoom(event.deltaY < 0 ? 0.8 : 1.25);
  }

  private zoomToSelection(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 3 || this.sharing) return;
    const from = plot.posToVal(left, "x");
    const to = plot.posToVal(left + width, "x");
    this.sharing = true;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.sharing = false;
    this.view.setRange(from, to);
  }

  private showRange(): void {
    this.box.dataset["from"] = String(this.view.from);
    this.box.dataset["to"] = String(this.view.to);
    this.plot.setScale("x", { min: this.view.from, max: this.view.to });
  }

  private placeMarker(plot: uPlot): void {
    const from = plot.valToPos(this.view.edges[this.view.run], "x");
    const to = plot.valToPos(this.view.edges[this.view.run + 1], "x");
    this.marker.style.left = `${from}px`;
    this.marker.style.width = `${Math.max(to - from, 1)}px`;
  }

  /** Shades backward and recomputation behind the curves, as one band for each stretch of runs of the same kind. */
  private shade(plot: uPlot): void {
    const { runs, ops } = this.report.data;
    const { left, top, width, height } = plot.bbox;
    const { view } = this;
    const kindOf = (run: number): number => (runs.again[run] === 1 ? 2 : ops.backward[runs.op[run]]);
    const colours = ["", colour("backward"), colour("again-band")];
    const scale = width / (view.to - view.from);
    let kind = 0;
    let start = 0;
    const paint = (end: number): void => {
      if (kind !== 0 && end > start) {
        plot.ctx.fillStyle = colours[kind];
        plot.ctx.fillRect(left + start, top, end - start, height);
      }
      start = end;
    };
    const last = view.runAt(view.to);
    for (let run = view.runAt(view.from); run <= last; run++) {
      const nextKind = kindOf(run);
      if (nextKind === kind) continue;
      paint(Math.max(0, Math.round((view.edges[run] - view.from) * scale)));
      kind = nextKind;
    }
    paint(width);
  }

  private drawBudget(plot: uPlot): void {
    const budget = this.report.data.budget_bytes;
    if (budget === null) return;
    const { ctx, bbox } = plot;
    const y = Math.round(plot.valToPos(budget, "y", true));
    ctx.save();
    ctx.strokeStyle = colour("budget");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.fillStyle = colour("budget");
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "bottom";
    ctx.fillText(`budget ${formatBytes(budget)}`, bbox.left + bbox.width - 4 * devicePixelRatio, y - 2 * devicePixelRatio);
    ctx.restore();
  }

  private makeLegend(): void {
    const { data } = this.report;
    byId("memory-legend").replaceChildren(
      legendItem("line", "predicted", "predicted"),
      ...(data.measured === null ? [] : [legendItem("line", "measured", "measured")]),
      legendItem("box", "store-all-fill", "store-all (no recomputation) at the same op"),
      ...(data.budget_bytes === null ? [] : [legendItem("dashed", "budget", "budget")]),
      legendItem("box", "backward", "backward"),
      legendItem("box", "again-band", "recomputation"),
    );
  }

  private readOut(): void {
    const { report, view } = this;
    const { data } = report;
    if (report.runCount === 0) return;
    const run = view.run;
    const op = report.opOf(run);
    const kinds = [
      data.ops.backward[op] === 1 ? "backward" : "forward",
      ...(data.runs.again[run] === 1 ? ["recomputation"] : []),
      ...(data.runs.over[run] >= 0 ? ["in place"] : []),
    ];
    const name = data.ops.name[op];
    const head = element("p", "", nameTag(shorten(name), name, "name strong"));
    const module = report.moduleOf(op);
    if (module !== "") head.append(" of ", nameTag(shorten(module), module));
    if (report.sourceOf(op) !== "") head.append(" at ", nameTag(shorten(report.sourceOf(op)), report.sourceOf(op)));
    head.append(`, ${kinds.join(", ")}, ${formatNs(data.ops.time_ns[op])}`);
    head.append(element("span", "faint", ` \u00b7 step ${data.runs.step[run]}, op ${run + 1} of ${report.runCount}`));

    const facts = element("dl", "facts");
    const fact = (label: string, text: string, className = ""): void => {
      facts.append(element("div", className, element("dt", "", label), element("dd", "", text)));
    };
    const moment = data.runs.moment_bytes[run];
    fact("predicted", formatBytes(moment), "fact-predicted");
    if (data.measured !== null) {
      const measured = data.measured.moment_bytes[run];
      fact("measured", `${formatBytes(measured)} (${change(measured, moment)})`, "fact-measured");
    }
    fact("store-all at this op", formatBytes(data.runs.store_all_bytes[run]), "fact-store-all");
    if (data.budget_bytes !== null) fact("share of budget", percent(moment, data.budget_bytes, 1), "fact-budget");
    fact("after this op", formatBytes(data.runs.after_bytes[run]), "fact-after");

    const live = report.liveDuring(run);
    const list = element("p", "live", `${count(live.length, "live value")}: `);
    live.slice(0, kLiveShown).forEach((life, position) => {
      const value = data.lives.value[life];
      const valueName = data.values.name[value];
      if (position > 0) list.append(", ");
      list.append(nameTag(shorten(valueName, 40), valueName), ` ${formatBytes(data.values.bytes[value])}`);
    });
    if (live.length > kLiveShown) list.append(` and ${count(live.length - kLiveShown, "more", "more")}`);
    if (data.ops.workspace_bytes[op] !== 0) list.append(`; workspace ${formatBytes(data.ops.workspace_bytes[op])}`);
    const readout = byId("memory-readout");
    readout.dataset["run"] = String(run);
    readout.replaceChildren(head, facts, list);
  }
}

/** Returns at most eight multiples of a power of two, up to `top`. */
export function splitBytes(top: number): number[] {
  let step = 1;
  while (top / step > 7) step *= 2;
  const marks: number[] = [];
  for (let mark = 0; mark <= top; mark += step) marks.push(mark);
  return marks;
}
