import type { Report } from "./data";
import { byId, element, isOnPaper, nameTag } from "./dom";
import { change, count, formatBytes, formatNs, percent, shorten } from "./format";

const kRowsShown = 15;
const kRowsOnPaper = 400;
const kMaxGroups = 24;

interface Cell {
  content: Node | string;
  isNumber?: boolean;
}

/** Returns a table of its first rows. A button shows the other rows; printing shows up to kRowsOnPaper. */
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

/** Says what is proved about a plan, and among which plans: all in base order, or those of its planner's kind. */
function statusText(status: string | null, meetsBound: boolean): string {
  if (status === null) return "not proved optimal";
  if (status !== "optimal") return status;
  return meetsBound ? "optimal in base order" : "optimal of its kind";
}

export function showFigures(report: Report): void {
  const { data } = report;
  const measured = data.measured;
  const figure = (id: string, label: string, value: string, note = ""): void => {
    const box = element("div", "figure", element("div", "figure-label", label), element("div", value.length > 12 ? "figure-value long" : "figure-value", value));
    box.id = `figure-${id}`;
    if (note !== "") box.append(element("div", "figure-note", note));
    byId("figures").append(box);
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
    `${percent(data.peak_bytes, data.store_all_peak_bytes)} of store-all's ${formatBytes(data.store_all_peak_bytes)}`,
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
    `${change(data.time_ns, data.store_all_time_ns)} against store-all's ${formatNs(data.store_all_time_ns)}`,
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
    "recomputation",
    percent(report.rerunNs, data.time_ns, 1),
    `of the time, in ${count(report.rerunCount, "run")}`,
  );
  figure("planner", "planner", data.planner ?? "not given", statusText(data.status, data.time_ns <= data.lower_bound_ns));
  figure(
    "bound",
    "lower bound",
    formatNs(data.lower_bound_ns),
    `of plans in base order; this plan ${data.time_ns <= data.lower_bound_ns ? "meets it" : `is ${change(data.time_ns, data.lower_bound_ns)} above it`}`,
  );
  if (measured?.identical_to_plain === true) figure("gradients", "gradients", "identical", "to those of plain training, bit for bit");
}

export function showPeak(report: Report): void {
  const { data } = report;
  if (report.runCount === 0) {
    byId("peak-summary").textContent = "The schedule runs nothing.";
    return;
  }
  const op = report.opOf(report.peakRun);
  const live = report.liveDuring(report.peakRun);
  const name = data.ops.name[op];
  byId("peak-summary").replaceChildren(
    `${formatBytes(data.runs.moment_bytes[report.peakRun])} while `,
    nameTag(shorten(name), name),
    ` runs (step ${data.runs.step[report.peakRun]}): ${count(live.length, "live value")}` +
      (data.ops.workspace_bytes[op] === 0 ? "." : ` and ${formatBytes(data.ops.workspace_bytes[op])} of workspace.`),
  );
  const sources = data.ops.source.length > 0;
  const modules = data.ops.module.length > 0;
  const heads = ["value", "size", "", "produced by", ...(modules ? ["module"] : []), ...(sources ? ["source"] : [])];
  byId("peak-table").replaceChildren(
    ...makeTable(heads, live.length, (position) => {
      const life = live[position];
      const value = data.lives.value[life];
      const bytes = data.values.bytes[value];
      const valueName = data.values.name[value];
      const resident = data.values.resident[value] === 1;
      const producer = report.opOf(data.lives.from[life]);
      const producerName = data.ops.name[producer];
      const origin = resident ? element("span", "faint", "resident") : nameTag(shorten(producerName, 40), producerName);
      if (report.isRecomputed(life)) origin.append(element("span", "tag", "rerun"));
      const module = resident ? "" : report.moduleOf(producer);
      const source = resident ? "" : report.sourceOf(producer);
      return [
        { content: nameTag(shorten(valueName, 40), valueName) },
        { content: formatBytes(bytes), isNumber: true },
        { content: bar(bytes, data.runs.moment_bytes[report.peakRun], "predicted") },
        { content: origin },
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
const prefix =
  (parts: number): Key =>
  (path) =>
    path.split(kSeparator).slice(0, parts).join(".");
/** The keys to group by, from coarse to fine. Replacing numbers merges layers of the same kind. */
const kKeys: Key[] = [
  prefix(1),
  prefix(2),
  prefix(3),
  (path) => path.replace(/\d+/g, "*"),
  (path) => path,
];

/** Groups the reruns by module, with the first of kKeys that gives at least two and at most kMaxGroups groups. */
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
    if (result.length > 1 && result.length <= kMaxGroups) return result;
  }
  return result;
}

function describeGroup(report: Report, group: Group): HTMLElement {
  const { data } = report;
  const kMaxOps = 40;
  const title = nameTag(shorten(group.name, 40), group.name);
  const details = element("details", "", element("summary", "", title));
  const list = (): void => {
    if (details.childElementCount > 1) return;
    const items = element("ul");
    const ops = [...group.ops].sort(([a, m], [b, n]) => n * data.ops.time_ns[b] - m * data.ops.time_ns[a]);
    for (const [op, runs] of ops.slice(0, kMaxOps)) {
      const item = element("li", "", nameTag(shorten(data.ops.name[op], 40), data.ops.name[op]));
      const module = report.moduleOf(op);
      if (module !== "") item.append(" ", nameTag(shorten(module, 40), module, "faint"));
      item.append(`, ${runs > 1 ? `${runs} times, ` : ""}${formatNs(runs * data.ops.time_ns[op])}`);
      items.append(item);
    }
    if (ops.length > kMaxOps) items.append(element("li", "", `and ${count(ops.length - kMaxOps, "more op", "more ops")}`));
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
    report.rerunCount === 0
      ? "Nothing is recomputed."
      : `${count(report.rerunCount, "rerun")} in ${formatNs(report.rerunNs)}, ` +
        `${percent(report.rerunNs, data.time_ns, 1)} of the step's time.`;
  if (groups.length === 0) return;
  byId("again-table").replaceChildren(
    ...makeTable(["module", "runs", "time", "", "share"], groups.length, (position) => {
      const group = groups[position];
      return [
        { content: describeGroup(report, group) },
        { content: group.runs.toLocaleString("en"), isNumber: true },
        { content: formatNs(group.ns), isNumber: true },
        { content: bar(group.ns, groups[0].ns, "again") },
        { content: percent(group.ns, report.rerunNs, 1), isNumber: true },
      ];
    }),
  );
}
