import type { Report } from "./data";
import { byId, element, isOnPaper, nameTag } from "./dom";
import { change, count, formatBytes, formatNs, percent, shorten } from "./format";

const kRowsShown = 15;
const kRowsOnPaper = 400;
const kMostGroups = 24;

interface Cell {
  content: Node | string;
  isNumber?: boolean;
}

/** A table with its first rows; a button shows the others, and so does printing, up to some pages of them. */
function makeTable(heads: string[], rowCount: number, row: (position: number) => Cell[]): HTMLElement[] {
  const body = element("tbody");
  const showRows = (to: number): void => {
    for (let position = body.childElementCount; position < to; position++)
      body.append(
        element(
          "tr",
          "",
          ...row(position).map(({ content, isNumber }) => element("td", isNumber === true ? "number" : "", content)),
        ),
      );
  };
  showRows(Math.min(rowCount, kRowsShown));
  const firstIsNumber = rowCount > 0 ? row(0).map((cell) => cell.isNumber === true) : [];
  const head = element("tr", "", ...heads.map((text, column) => element("th", firstIsNumber[column] ? "number" : "", text)));
  const table = element("table", "", element("thead", "", head), body);
  if (rowCount <= kRowsShown) return [table];
  const more = element("button", "more", `all ${rowCount.toLocaleString("en")}`);
  more.type = "button";
  more.addEventListener("click", () => {
    showRows(rowCount);
    more.remove();
  });
  window.addEventListener("beforeprint", () => showRows(Math.min(rowCount, kRowsOnPaper)));
  if (rowCount <= kRowsOnPaper) return [table, more];
  return [table, more, element("p", "paper-only", `and ${(rowCount - kRowsOnPaper).toLocaleString("en")} more`)];
}

function bar(part: number, whole: number, colourName: string): HTMLElement {
  const fill = element("span", "bar-fill");
  fill.style.width = whole > 0 ? `${Math.max(0, Math.min(100, (100 * part) / whole))}%` : "0";
  fill.style.background = `var(--${colourName})`;
  return element("span", "bar", fill);
}

/** What is proved of a plan, and among which: those that keep the base order of first runs, or of its planner's kind. */
function statusText(status: string | null, meetsBound: boolean): string {
  if (status === null) return "not proved optimal";
  if (status !== "optimal") return status;
  return meetsBound ? "optimal in base order" : "optimal of its kind";
}

export function showFigures(report: Report): void {
  const { data } = report;
  const measured = data.measured;
  const box = byId("figures");
  const figure = (id: string, label: string, value: string, note = ""): void => {
    const made = element("div", "figure", element("div", "figure-label", label), element("div", value.length > 12 ? "figure-value long" : "figure-value", value));
    made.id = `figure-${id}`;
    if (note !== "") made.append(element("div", "figure-note", note));
    box.append(made);
  };
  if (data.budget_bytes !== null)
    figure(
      "budget",
      "budget",
      formatBytes(data.budget_bytes),
      data.peak_bytes <= data.budget_bytes
        ? `${percent(data.peak_bytes, data.budget_bytes, 1)} of it used`
        : `exceeded by ${formatBytes(data.peak_bytes - data.budget_bytes)}`,
    );
  figure(
    "peak",
    "predicted peak",
    formatBytes(data.peak_bytes),
    `${percent(data.peak_bytes, data.store_all_peak_bytes)} of plain training's ${formatBytes(data.store_all_peak_bytes)}`,
  );
  if (measured !== null && measured.peak_bytes !== null)
    figure(
      "measured",
      "measured peak",
      formatBytes(measured.peak_bytes),
      `${change(measured.peak_bytes, data.peak_bytes)} against the prediction`,
    );
  figure(
    "time",
    "step time",
    formatNs(data.time_ns),
    `${change(data.time_ns, data.store_all_time_ns)} against plain training's ${formatNs(data.store_all_time_ns)}`,
  );
  if (measured !== null && measured.step_ns !== null)
    figure(
      "measured-time",
      "measured step",
      formatNs(measured.step_ns),
      measured.plain_step_ns === null
        ? ""
        : `${change(measured.step_ns, measured.plain_step_ns)} against plain training's ${formatNs(measured.plain_step_ns)}`,
    );
  figure(
    "again",
    "computed again",
    percent(report.againNs, data.time_ns, 1),
    `of the time, in ${count(report.againRuns, "run")}`,
  );
  figure("planner", "planner", data.planner ?? "not given", statusText(data.status, data.time_ns <= data.lower_bound_ns));
  figure(
    "bound",
    "no plan in base order is faster than",
    formatNs(data.lower_bound_ns),
    data.time_ns <= data.lower_bound_ns ? "which this plan meets" : `this plan is ${change(data.time_ns, data.lower_bound_ns)} above`,
  );
  if (measured?.identical_to_plain === true) figure("gradients", "gradients", "identical", "to plain training's, bit for bit");
}

export function showPeak(report: Report): void {
  const { data } = report;
  if (report.runCount === 0) {
    byId("peak-summary").textContent = "The schedule runs nothing.";
    return;
  }
  const op = report.opOf(report.peakRun);
  const alive = report.aliveDuring(report.peakRun);
  const name = data.ops.name[op];
  byId("peak-summary").replaceChildren(
    `${formatBytes(data.runs.moment_bytes[report.peakRun])} while `,
    nameTag(shorten(name), name),
    ` runs (step ${data.runs.step[report.peakRun]}): ${count(alive.length, "value")}` +
      (data.ops.workspace_bytes[op] === 0 ? "." : ` and ${formatBytes(data.ops.workspace_bytes[op])} of workspace.`),
  );
  const sources = data.ops.source.length > 0;
  const modules = data.ops.module.length > 0;
  const heads = ["value", "size", "", "made by", ...(modules ? ["module"] : []), ...(sources ? ["source"] : [])];
  byId("peak-table").replaceChildren(
    ...makeTable(heads, alive.length, (position) => {
      const life = alive[position];
      const value = data.lives.value[life];
      const bytes = data.values.bytes[value];
      const valueName = data.values.name[value];
      const resident = data.values.resident[value] === 1;
      const maker = report.opOf(data.lives.from[life]);
      const makerName = data.ops.name[maker];
      const made = resident ? element("span", "faint", "resident") : nameTag(shorten(makerName, 40), makerName);
      if (report.isAgain(life)) made.append(element("span", "tag", "again"));
      const module = resident ? "" : report.moduleOf(maker);
      const source = resident ? "" : report.sourceOf(maker);
      return [
        { content: nameTag(shorten(valueName, 40), valueName) },
        { content: formatBytes(bytes), isNumber: true },
        { content: bar(bytes, data.runs.moment_bytes[report.peakRun], "predicted") },
        { content: made },
        ...(modules ? [{ content: nameTag(shorten(module, 40), module) }] : []),
        ...(sources ? [{ content: nameTag(shorten(source, 40), source) }] : []),
      ];
    }),
  );
}

interface Group {
  name: string;
  runs: number;
  ns: number;
  ops: Map<number, number>;
}

type Key = (path: string) => string;

const kSeparator = /[./]/;
const beginning =
  (parts: number): Key =>
  (path) =>
    path.split(kSeparator).slice(0, parts).join(".");
/** From coarse to fine; numbers in a path tell layers of one kind apart. */
const kKeys: Key[] = [
  beginning(1),
  beginning(2),
  beginning(3),
  (path) => path.replace(/\d+/g, "*"),
  (path) => path,
];

/** Ops that run again by module: by the first kind of beginning of a path that makes a few groups. */
function groupReruns(report: Report): Group[] {
  const { data } = report;
  const pathOf = (op: number): string => (report.moduleOf(op) === "" ? data.ops.name[op] : report.moduleOf(op));
  let result: Group[] = [];
  for (const keyOf of kKeys) {
    const groups = new Map<string, Group>();
    data.runs.op.forEach((op, run) => {
      if (data.runs.again[run] !== 1) return;
      const name = keyOf(pathOf(op));
      const group = groups.get(name) ?? { name, runs: 0, ns: 0, ops: new Map<number, number>() };
      group.runs++;
      group.ns += data.ops.time_ns[op];
      group.ops.set(op, (group.ops.get(op) ?? 0) + 1);
      groups.set(name, group);
    });
    result = [...groups.values()].sort((a, b) => b.ns - a.ns || b.runs - a.runs);
    if (result.length > 1 && result.length <= kMostGroups) return result;
  }
  return result;
}

function describeGroup(report: Report, group: Group): HTMLElement {
  const { data } = report;
  const kMost = 40;
  const title = nameTag(shorten(group.name, 40), group.name);
  const details = element("details", "", element("summary", "", title));
  const list = (): void => {
    if (details.childElementCount > 1) return;
    const items = element("ul");
    const ops = [...group.ops].sort(([a, m], [b, n]) => n * data.ops.time_ns[b] - m * data.ops.time_ns[a]);
    for (const [op, runs] of ops.slice(0, kMost)) {
      const item = element("li", "", nameTag(shorten(data.ops.name[op], 40), data.ops.name[op]));
      const module = report.moduleOf(op);
      if (module !== "") item.append(" ", nameTag(shorten(module, 40), module, "faint"));
      item.append(`, ${runs > 1 ? `${runs} times, ` : ""}${formatNs(runs * data.ops.time_ns[op])}`);
      items.append(item);
    }
    if (ops.length > kMost) items.append(element("li", "", `and ${count(ops.length - kMost, "more op", "more ops")}`));
    details.append(items);
  };
  details.addEventListener("toggle", () => {
    if (details.open) list();
  });
  const openForPaper = (): void => {
    if (details.open) return;
    list();
    details.open = true;
    window.addEventListener("afterprint", () => (details.open = false), { once: true });
  };
  window.addEventListener("beforeprint", openForPaper);
  if (isOnPaper()) openForPaper();
  return details;
}

export function showReruns(report: Report): void {
  const { data } = report;
  const groups = groupReruns(report);
  byId("again-summary").textContent =
    report.againRuns === 0
      ? "Nothing is computed twice."
      : `${count(report.againRuns, "run")} make what had been there before: ${formatNs(report.againNs)}, ` +
        `${percent(report.againNs, data.time_ns, 1)} of the step's time.`;
  if (groups.length === 0) return;
  byId("again-table").replaceChildren(
    ...makeTable(["module", "runs", "time", "", "of it all"], groups.length, (position) => {
      const group = groups[position];
      return [
        { content: describeGroup(report, group) },
        { content: group.runs.toLocaleString("en"), isNumber: true },
        { content: formatNs(group.ns), isNumber: true },
        { content: bar(group.ns, groups[0].ns, "again") },
        { content: percent(group.ns, report.againNs, 1), isNumber: true },
      ];
    }),
  );
}
