import type { Report } from "./data";

export type AxisMode = "op" | "time";
export type ViewChange = "range" | "run" | "theme";

/** The state that the memory chart and the retention map share: the visible range of the step and the selected run. */
export class View {
  /** The start of each run and the end of the last one, in runs or in nanoseconds. */
  edges: Float64Array = new Float64Array(0);
  mode: AxisMode = "op";
  from = 0;
  to = 1;
  run: number;
  private readonly listeners: ((changed: ViewChange) => void)[] = [];

  constructor(private readonly report: Report) {
    this.run = report.peakRun;
    this.setMode("op");
  }

  onChange(listener: (changed: ViewChange) => void): void {
    this.listeners.push(listener);
  }

  /** Changes the unit of the horizontal axis. The same runs stay visible. */
  setMode(mode: AxisMode): void {
    const first = this.edges.length > 0 ? this.runAt(this.from) : 0;
    const last = this.edges.length > 0 ? this.runAt(this.to) : this.report.runCount - 1;
    const { runs, ops } = this.report.data;
    this.mode = mode;
    this.edges = new Float64Array(this.report.runCount + 1);
    for (let run = 0; run < this.report.runCount; run++)
      this.edges[run + 1] = this.edges[run] + (mode === "op" ? 1 : ops.time_ns[runs.op[run]]);
    this.setRange(this.edges[Math.max(first, 0)] ?? 0, this.edges[last + 1] ?? this.end());
  }

  end(): number {
    return this.edges[this.edges.length - 1];
  }

  runAt(x: number): number {
    let low = 0;
    let high = this.report.runCount - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.edges[middle] <= x) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  setRange(from: number, to: number): void {
    const end = this.end();
    const minWidth = Math.min(end, this.mode === "op" ? 4 : end / 10_000);
    let width = Math.min(Math.max(to - from, minWidth), end);
    if (!(width > 0)) width = 1;
    from = Math.max(0, Math.min(from, end - width));
    if (from === this.from && from + width === this.to) return;
    this.from = from;
    this.to = from + width;
    this.tell("range");
  }

  /** Zooms around the selected run if it is visible, otherwise around the middle. */
  zoom(factor: number): void {
    const at = (this.edges[this.run] + this.edges[this.run + 1]) / 2;
    const centre = this.from <= at && at <= this.to ? at : (this.from + this.to) / 2;
    this.setRange(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  showAll(): void {
    this.setRange(0, this.end());
  }

  /** Selects a run, and moves the range if the run is outside it. */
  select(run: number): void {
    run = Math.max(0, Math.min(run, this.report.runCount - 1));
    if (run !== this.run) {
      this.run = run;
      this.tell("run");
    }
    const width = this.to - this.from;
    if (this.edges[run] < this.from) this.setRange(this.edges[run], this.edges[run] + width);
    else if (this.edges[run + 1] > this.to) this.setRange(this.edges[run + 1] - width, this.edges[run + 1]);
  }

  themeChanged(): void {
    this.tell("theme");
  }

  /** Handles the keys that both charts share. Returns whether the key is one of them. */
  handleKey(event: KeyboardEvent): boolean {
    const far = Math.max(1, Math.round((this.runAt(this.to) - this.runAt(this.from)) / 20));
    const step = event.shiftKey ? far : 1;
    switch (event.key) {
      case "ArrowLeft":
        this.select(this.run - step);
        return true;
      case "ArrowRight":
        this.select(this.run + step);
        return true;
      case "Home":
        this.select(0);
        return true;
      case "End":
        this.select(this.report.runCount - 1);
        return true;
      case "p":
      case "P":
        this.select(this.report.peakRun);
        return true;
      case "+":
      case "=":
        this.zoom(0.5);
        return true;
      case "-":
        this.zoom(2);
        return true;
      case "0":
      case "Escape":
        this.showAll();
        return true;
      default:
        return false;
    }
  }

  private tell(changed: ViewChange): void {
    for (const listener of this.listeners) listener(changed);
  }
}
