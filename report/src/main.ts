import "uplot/dist/uPlot.min.css";
import "./style.css";
import { Report, type ReportData } from "./data";
import { byId, watchPrinting } from "./dom";
import { change, count, formatBytes, percent, shorten } from "./format";
import { FrontsChart } from "./fronts";
import { MemoryChart } from "./memory";
import { RetentionMap } from "./retention";
import { showFigures, showPeak, showReruns } from "./tables";
import { type AxisMode, View } from "./view";

const kThemes = ["auto", "light", "dark"] as const;

function setUpThemes(view: View): void {
  const root = document.documentElement;
  const button = byId("theme");
  let theme = 0;
  const apply = (): void => {
    if (kThemes[theme] === "auto") delete root.dataset["theme"];
    else root.dataset["theme"] = kThemes[theme];
    button.textContent = `colours: ${kThemes[theme]}`;
    view.themeChanged();
  };
  button.addEventListener("click", () => {
    theme = (theme + 1) % kThemes.length;
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.themeChanged());
  // Paper is white and has its own width, for which the charts are redrawn.
  window.addEventListener("beforeprint", () => {
    root.dataset["theme"] = "light";
    view.themeChanged();
  });
  window.addEventListener("afterprint", apply);
  button.textContent = `colours: ${kThemes[theme]}`;
}

function setUpControls(report: Report, view: View, chart: MemoryChart): void {
  const modes: AxisMode[] = ["op", "time"];
  for (const mode of modes) {
    byId(`axis-${mode}`).addEventListener("click", () => {
      view.setMode(mode);
      chart.rebuild();
      for (const other of modes) byId(`axis-${other}`).setAttribute("aria-pressed", String(other === mode));
    });
  }
  byId<HTMLButtonElement>("axis-time").disabled = report.data.time_ns === 0;
  byId("zoom-in").addEventListener("click", () => view.zoom(0.5));
  byId("zoom-out").addEventListener("click", () => view.zoom(2));
  byId("zoom-all").addEventListener("click", () => view.showAll());
  byId("to-peak").addEventListener("click", () => view.select(report.peakRun));
}

function show(): void {
  const data = JSON.parse(byId("data").textContent ?? "") as ReportData;
  const report = new Report(data);
  document.title = `${shorten(data.name, 40)} \u2013 headroom`;
  byId("title").textContent = shorten(data.name, 60);
  byId("summary").textContent =
    `A training step with a peak of ${formatBytes(data.peak_bytes)}, ` +
    `${percent(data.peak_bytes, data.store_all_peak_bytes)} of store-all's, and ` +
    `${change(data.time_ns, data.store_all_time_ns)} time: ` +
    `${count(data.ops.name.length, "op")}, ${count(data.values.name.length, "value")}, ${count(data.steps, "step")}.`;
  watchPrinting();
  byId("footer").textContent = "Written by headroom. This file is self-contained and makes no network requests.";
  showFigures(report);
  showPeak(report);
  showReruns(report);
  if (report.runCount > 0) {
    const view = new View(report);
    const chart = new MemoryChart(report, view);
    new RetentionMap(report, view);
    new FrontsChart(report, view);
    setUpControls(report, view, chart);
    setUpThemes(view);
  }
  document.documentElement.dataset["ready"] = "true";
  // The charts are drawn in the next frame; the mark comes after it.
  requestAnimationFrame(() => setTimeout(() => performance.mark("drawn")));
}

try {
  show();
} catch (error) {
  byId("summary").textContent = `This report cannot be shown: ${String(error)}`;
  throw error;
}
