import uPlot from "uplot";
import type { Report } from "./data";
import { byId, colour, element, legendItem } from "./dom";
import { axisBytes, axisNs, change, count, formatBytes, formatNs, percent } from "./format";
import type { View } from "./view";

interface Point {
  planner: string;
  bytes: number;
  ns: number;
}

const kChosen = "this plan";
const kColours = 10;
const kNearPixels = 24;

/** The fronts of all planners, the plan of this report and the lower bound. */
export class FrontsChart {
  private readonly box = byId("fronts");
  private readonly points: Point[];
  private readonly hidden = new Set<string>();
  private chosen = 0;
  private plot: uPlot;

  constructor(
    private readonly report: Report,
    view: View,
  ) {
    const { data } = report;
    this.points = [
      { planner: kChosen, bytes: data.peak_bytes, ns: data.time_ns },
      ...data.fronts.planners.flatMap(({ planner, points }) =>
        points.map(([bytes, ns]): Point => ({ planner, bytes, ns })),
      ),
    ];
    this.plot = this.makePlot();
    this.makeLegend();
    this.readOut();
    this.box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.box);
    view.onChange((changed) => {
      if (changed === "theme") this.rebuild();
    });
    const reasons = new Map<string, string[]>();
    for (const { planner, why } of data.fronts.left_out) reasons.set(why, [...(reasons.get(why) ?? []), planner]);
    const notes = [...reasons].map(([why, planners]) => `${planners.join(", ")} (${why})`);
    const slow = this.points.filter((point) => point.ns > this.maxNs()).length;
    if (slow > 0) notes.unshift(`${count(slow, "plan")} slower than ${formatNs(this.maxNs())}, which the arrow keys reach`);
    if (notes.length > 0) byId("fronts-left-out").textContent = `Not shown: ${notes.join("; ")}.`;
  }

  private colourOf(planner: string): string {
    if (planner === "auto") return "auto";
    const others = this.report.data.fronts.planners.filter((front) => front.planner !== "auto");
    return `planner-${others.findIndex((front) => front.planner === planner) % kColours}`;
  }

  private makePlot(): uPlot {
    const { fronts } = this.report.data;
    const tables: uPlot.AlignedData[] = fronts.planners.map(({ points }) => [
      points.map(([bytes]) => bytes),
      points.map(([, ns]) => ns),
    ]);
    const bound = fronts.bounds.map(([bytes, ns]): [number, number] => [bytes, ns]);
    if (bound.length === 0) bound.push([this.report.data.peak_bytes, this.report.data.lower_bound_ns]);
    tables.push([bound.map(([bytes]) => bytes), bound.map(([, ns]) => ns)]);
    const axis = { stroke: colour("faint"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") } };
    const [left, right] = this.range(this.points.map((point) => point.bytes));
    const [bottom, top] = this.range([...bound.map(([, ns]) => ns), ...this.points.map(({ ns }) => Math.min(ns, this.maxNs()))]);
    const options: uPlot.Options = {
      ...this.size(),
      legend: { show: false },
      padding: [12, 16, 0, 0],
      cursor: { x: false, y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: { x: { time: false, range: () => [left, right] }, y: { range: () => [bottom, top] } },
      axes: [
        {
          ...axis,
          splits: () => evenSplits(left, right, Math.max(4, Math.floor(this.size().width / 120))),
          values: (_, marks) => marks.map((mark) => axisBytes(mark, marks.length > 1 ? marks[1] - marks[0] : mark)),
        },
        { ...axis, size: 76, values: (_, marks) => marks.map((mark) => axisNs(mark, top)) },
      ],
      series: [
        {},
        ...fronts.planners.map(({ planner, points }): uPlot.Series => {
          const stroke = colour(this.colourOf(planner));
          return {
            show: !this.hidden.has(planner),
            stroke,
            width: planner === "auto" ? 2.5 : 1.25,
            spanGaps: true,
            paths: uPlot.paths.stepped!({ align: 1 }), // A plan is the best one up to the peak of the next.
            points: { show: true, size: points.length === 1 ? 9 : planner === "auto" ? 6 : 5, fill: stroke, stroke },
          };
        }),
        {
          stroke: colour("bound"),
          width: 1.5,
          dash: [3, 4],
          spanGaps: true,
          paths: uPlot.paths.stepped!({ align: -1 }), // A bound for a peak holds for smaller peaks.
          points: { show: bound.length === 1 },
        },
      ],
      hooks: { draw: [(plot) => this.drawMarks(plot)] },
    };
    const plot = new uPlot(options, uPlot.join(tables), this.box);
    plot.over.addEventListener("click", (event) => this.click(plot, event));
    plot.over.addEventListener("pointermove", (event) => {
      plot.over.style.cursor = this.nearest(plot, event) === undefined ? "default" : "pointer";
    });
    return plot;
  }

  /** Returns the largest time on the axis, so that one very slow plan does not press the others to the bottom. */
  private maxNs(): number {
    return Math.max(this.report.data.time_ns, 2 * this.report.data.store_all_time_ns);
  }

  private range(amounts: number[]): [number, number] {
    const min = Math.min(...amounts);
    const max = Math.max(...amounts);
    const margin = max > min ? (max - min) * 0.07 : max * 0.1 + 1;
    return [Math.max(0, min - margin), max + margin];
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(this.box.clientWidth, 200), height: window.innerWidth < 600 ? 260 : 340 };
  }

  private resize(): void {
    const { width, height } = this.size();
    if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
  }

  private rebuild(): void {
    this.plot.destroy();
    this.plot = this.makePlot();
    this.makeLegend();
  }

  private place(plot: uPlot, point: Point): [number, number] {
    return [plot.valToPos(point.bytes, "x"), plot.valToPos(point.ns, "y")];
  }

  private drawMarks(plot: uPlot): void {
    const { ctx } = plot;
    const ratio = devicePixelRatio;
    const ring = (point: Point, radius: number, stroke: string, fill?: string): void => {
      ctx.beginPath();
      ctx.arc(plot.valToPos(point.bytes, "x", true), plot.valToPos(point.ns, "y", true), radius * ratio, 0, 2 * Math.PI);
      if (fill !== undefined) {
        ctx.fillStyle = fill;
        ctx.fill();
      }
      ctx.strokeStyle = stroke;
      ctx.lineWidth = 2 * ratio;
      ctx.stroke();
    };
    ctx.save();
    ctx.setLineDash([]);
    const budget = this.report.data.budget_bytes;
    if (budget !== null) {
      const x = plot.valToPos(budget, "x", true);
      if (x >= plot.bbox.left && x <= plot.bbox.left + plot.bbox.width) {
        ctx.strokeStyle = colour("budget");
        ctx.setLineDash([6 * ratio, 4 * ratio]);
        ctx.lineWidth = 1.25 * ratio;
        ctx.beginPath();
        ctx.moveTo(x, plot.bbox.top);
        ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
        ctx.stroke();
        ctx.setLineDash([]);
      }
    }
    ring(this.points[0], 6, colour("paper"), colour("predicted"));
    ring(this.points[this.chosen], 10, colour("ink"));
    ctx.restore();
  }

  private isShown(point: Point): boolean {
    return !this.hidden.has(point.planner);
  }

  private nearest(plot: uPlot, event: MouseEvent): number | undefined {
    const box = plot.over.getBoundingClientRect();
    let nearest: number | undefined;
    let minDistance = kNearPixels ** 2;
    this.points.forEach((point, position) => {
      if (!this.isShown(point)) return;
      const [x, y] = this.place(plot, point);
      const distance = (event.clientX - box.left - x) ** 2 + (event.clientY - box.top - y) ** 2;
      if (distance >= minDistance) return;
      minDistance = distance;
      nearest = position;
    });
    return nearest;
  }

  private click(plot: uPlot, event: MouseEvent): void {
    const position = this.nearest(plot, event);
    if (position !== undefined) this.choose(position);
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0 && event.key !== "Home") return;
    event.preventDefault();
    if (step === 0) return this.choose(0);
    let next = this.chosen + step;
    while (next >= 0 && next < this.points.length && !this.isShown(this.points[next])) next += step;
    if (next >= 0 && next < this.points.length) this.choose(next);
  }

  private choose(position: number): void {
    this.chosen = position;
    this.plot.redraw(false);
    this.readOut();
  }

  private makeLegend(): void {
    const items = this.report.data.fronts.planners.map(({ planner, points }) => {
      const swatch = element("span", points.length === 1 ? "swatch dot" : "swatch line");
      swatch.style.setProperty("--swatch", `var(--${this.colourOf(planner)})`);
      const item = element("button", "legend-item", swatch, planner);
      item.type = "button";
      item.setAttribute("aria-pressed", String(!this.hidden.has(planner)));
      item.addEventListener("click", () => {
        if (!this.hidden.delete(planner)) this.hidden.add(planner);
        this.rebuild();
      });
      return item;
    });
    byId("fronts-legend").replaceChildren(
      legendItem("dot", "predicted", kChosen),
      ...items,
      legendItem("dashed", "bound", "lower bound of plans in base order"),
      ...(this.report.data.budget_bytes === null ? [] : [legendItem("dashed", "budget", "budget")]),
    );
  }

  private readOut(): void {
    const { data } = this.report;
    const point = this.points[this.chosen];
    const line = element("p", "", element("span", "strong", point.planner));
    line.append(`: peak ${formatBytes(point.bytes)}, ${percent(point.bytes, data.store_all_peak_bytes)} of store-all's; `);
    line.append(`time ${formatNs(point.ns)} (${change(point.ns, data.store_all_time_ns)})`);
    const bound = this.report.boundFor(point.bytes);
    if (bound > 0 && point.ns <= bound) line.append("; meets the lower bound of plans in base order");
    else if (bound > 0) line.append(`; ${change(point.ns, bound)} above the lower bound of plans in base order, ${formatNs(bound)}`);
    if (this.chosen > 0) {
      const same = point.bytes === data.peak_bytes && point.ns === data.time_ns;
      const difference = `${change(point.bytes, data.peak_bytes)} memory, ${change(point.ns, data.time_ns)} time`;
      line.append(same ? "; same peak and time as this plan" : `; compared with this plan: ${difference}`);
    }
    const readout = byId("fronts-readout");
    readout.dataset["planner"] = point.planner;
    readout.replaceChildren(line);
  }
}

function evenSplits(from: number, to: number, max: number): number[] {
  let step = 1;
  while ((to - from) / step > max) step *= 2;
  const marks: number[] = [];
  for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) marks.push(mark);
  return marks;
}
