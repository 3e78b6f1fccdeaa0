import type { Report } from "./data";
import { byId, colour, element, isOnPaper, legendItem, nameTag } from "./dom";
import { count, formatBytes, shorten } from "./format";
import type { View } from "./view";

const kRowHeight = 18;
const kVisibleRows = 22;
const kRowsOnPaper = 44;

/** A map of the lifetimes of values. It draws visible rows only, so that its speed does not depend on their number. */
export class RetentionMap {
  private readonly box = byId("map");
  private readonly scroller = element("div", "map-scroller");
  private readonly space = element("div", "map-space");
  private readonly sight = element("div", "map-sight");
  private readonly labels = element("div", "map-labels");
  private readonly canvas = element("canvas");
  private readonly marker = element("div", "marker");
  private readonly search = byId<HTMLInputElement>("map-search");
  private readonly filter = byId<HTMLSelectElement>("map-filter");
  /** All values that are not resident, largest first. */
  private readonly all: number[];
  /** For each value, the text that the search looks in. */
  private readonly texts: string[];
  /** The values that pass the filter and the search. */
  private rows: number[] = [];
  /** The position of the selected value in `rows`. */
  private row = 0;
  private frame = 0;

  constructor(
    private readonly report: Report,
    private readonly view: View,
  ) {
    const { values, lives } = report.data;
    this.all = values.name
      .map((_, value) => value)
      .filter((value) => values.resident[value] === 0 && report.livesOf[value].length > 0)
      .sort((a, b) => values.bytes[b] - values.bytes[a] || report.livesOf[a][0] - report.livesOf[b][0]);
    this.texts = values.name.map((name, value) => {
      const life = report.livesOf[value][0];
      if (life === undefined) return "";
      const op = report.opOf(lives.from[life]);
      return `${name}\n${report.data.ops.name[op]}\n${report.moduleOf(op)}`.toLowerCase();
    });
    const plot = element("div", "map-plot", this.canvas, this.marker);
    this.sight.append(this.labels, plot);
    this.space.append(this.sight);
    this.scroller.append(this.space);
    this.box.append(this.scroller);
    this.makeLegend();
    this.scroller.addEventListener("scroll", () => this.redrawSoon());
    plot.addEventListener("pointermove", (event) => this.follow(event));
    plot.addEventListener("pointerdown", (event) => this.follow(event));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.search.addEventListener("input", () => this.choose());
    this.filter.addEventListener("change", () => this.choose());
    new ResizeObserver(() => this.redrawSoon()).observe(this.box);
    view.onChange((changed) => {
      if (changed === "run") this.readOut();
      if (changed === "run") this.placeMarker();
      if (changed === "range") this.redrawSoon();
      if (changed !== "theme") return;
      // Printing does not wait for a frame.
      this.setHeight();
      this.draw();
    });
    this.choose();
  }

  private choose(): void {
    const query = this.search.value.trim().toLowerCase();
    const kind = this.filter.value;
    this.rows = this.all.filter((value) => {
      if (query !== "" && !this.texts[value].includes(query)) return false;
      if (kind === "kept") return this.report.livesOf[value].some((life) => this.report.isSaved(life));
      if (kind === "again") return this.report.livesOf[value].some((life) => this.report.isRecomputed(life));
      return true;
    });
    this.row = 0;
    this.scroller.scrollTop = 0;
    this.setHeight();
    this.redrawSoon();
    this.readOut();
  }

  private setHeight(): void {
    const shown = Math.min(this.rows.length, isOnPaper() ? kRowsOnPaper : kVisibleRows);
    this.scroller.style.height = `${Math.max(3, shown) * kRowHeight}px`;
    this.space.style.height = `${Math.max(this.rows.length, 1) * kRowHeight}px`;
    const first = Math.floor(this.scroller.scrollTop / kRowHeight);
    const counts = `${this.rows.length.toLocaleString("en")} of ${count(this.all.length, "value")}`;
    byId("map-paper").textContent = `${counts}, largest first; here ${first + 1} to ${first + shown}.`;
  }

  private redrawSoon(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    const first = Math.floor(this.scroller.scrollTop / kRowHeight);
    const height = this.scroller.clientHeight;
    const shown = this.rows.slice(first, first + Math.ceil(height / kRowHeight) + 1);
    this.sight.style.transform = `translateY(${first * kRowHeight}px)`;
    this.drawLabels(shown, first);
    const width = this.canvas.parentElement!.clientWidth;
    const ratio = devicePixelRatio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(shown.length * kRowHeight * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${shown.length * kRowHeight}px`;
    const context = this.canvas.getContext("2d")!;
    context.scale(ratio, ratio);
    this.drawRows(context, shown, first, width);
    this.placeMarker();
  }

  private drawLabels(shown: number[], first: number): void {
    const { values, lives } = this.report.data;
    this.labels.replaceChildren(
      ...shown.map((value, position) => {
        const name = values.name[value];
        const label = element("div", "map-label", nameTag(shorten(name, 28), name));
        const module = this.report.moduleOf(this.report.opOf(lives.from[this.report.livesOf[value][0]]));
        if (module !== "" && module !== name) label.append(nameTag(` ${shorten(module, 20)}`, module, "faint"));
        label.append(element("span", "map-bytes", formatBytes(values.bytes[value])));
        if (first + position === this.row && !isOnPaper()) label.classList.add("chosen");
        label.addEventListener("pointerdown", () => this.selectRow(first + position));
        return label;
      }),
    );
    if (this.rows.length === 0) this.labels.append(element("div", "map-label faint", "no matching value"));
  }

  private drawRows(context: CanvasRenderingContext2D, shown: number[], first: number, width: number): void {
    const { lives } = this.report.data;
    const { view } = this;
    const scale = width / (view.to - view.from);
    const at = (edge: number): number => (view.edges[edge] - view.from) * scale;
    const colours = { kept: colour("kept"), brief: colour("brief"), again: colour("again"), gap: colour("gap") };
    if (this.report.firstBackward < this.report.runCount) {
      context.fillStyle = colour("backward");
      const left = Math.max(0, at(this.report.firstBackward));
      context.fillRect(left, 0, width - left, shown.length * kRowHeight);
    }
    context.strokeStyle = colours.gap;
    shown.forEach((value, position) => {
      const top = position * kRowHeight;
      if (first + position === this.row && !isOnPaper()) {
        context.fillStyle = colour("chosen-row");
        context.fillRect(0, top, width, kRowHeight);
      }
      let before: number | undefined;
      for (const life of this.report.livesOf[value]) {
        const left = at(lives.from[life]);
        const right = at(lives.to[life] + 1);
        if (before !== undefined && left > before) {
          context.setLineDash([2, 3]);
          context.beginPath();
          context.moveTo(before, top + kRowHeight / 2);
          context.lineTo(left, top + kRowHeight / 2);
          context.stroke();
        }
        before = right;
        if (right < 0 || left > width) continue;
        context.fillStyle = this.report.isRecomputed(life)
          ? colours.again
          : this.report.isSaved(life)
            ? colours.kept
            : colours.brief;
        context.fillRect(left, top + 3, Math.max(right - left, 2), kRowHeight - 6);
      }
    });
  }

  private placeMarker(): void {
    const { view } = this;
    const scale = this.canvas.clientWidth / (view.to - view.from);
    this.marker.style.left = `${(view.edges[view.run] - view.from) * scale}px`;
    this.marker.style.width = `${Math.max((view.edges[view.run + 1] - view.edges[view.run]) * scale, 1)}px`;
  }

  private follow(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const { view } = this;
    const x = view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from);
    const first = Math.floor(this.scroller.scrollTop / kRowHeight);
    this.selectRow(first + Math.floor((event.clientY - box.top) / kRowHeight));
    view.select(view.runAt(x));
  }

  private selectRow(row: number): void {
    row = Math.max(0, Math.min(row, this.rows.length - 1));
    if (row === this.row) return;
    this.row = row;
    const top = row * kRowHeight;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + kRowHeight > scrollTop + clientHeight) this.scroller.scrollTop = top + kRowHeight - clientHeight;
    this.readOut();
    this.redrawSoon();
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const moves: Record<string, number> = {
      ArrowUp: -1,
      ArrowDown: 1,
      PageUp: -kVisibleRows,
      PageDown: kVisibleRows,
    };
    if (event.key in moves) this.selectRow(this.row + moves[event.key]);
    else if (!this.view.handleKey(event)) return;
    event.preventDefault();
  }

  private makeLegend(): void {
    byId("map-legend").replaceChildren(
      legendItem("box", "kept", "saved for backward"),
      legendItem("box", "brief", "used in one phase only"),
      legendItem("dashed", "gap", "dropped"),
      legendItem("box", "again", "recomputed"),
    );
  }

  private readOut(): void {
    const { report } = this;
    const { data } = report;
    const readout = byId("map-readout");
    const counts = element("span", "faint", `${this.rows.length.toLocaleString("en")} of ${count(this.all.length, "value")}`);
    counts.id = "map-count";
    if (this.rows.length === 0) return readout.replaceChildren(element("p", "", counts));
    const value = this.rows[this.row];
    const name = data.values.name[value];
    const copies = report.livesOf[value];
    const producer = report.opOf(data.lives.from[copies[0]]);
    const line = element("p", "", nameTag(shorten(name), name, "name strong"));
    line.append(`, ${formatBytes(data.values.bytes[value])}, of `);
    line.append(nameTag(shorten(data.ops.name[producer]), data.ops.name[producer]));
    const module = report.moduleOf(producer);
    if (module !== "") line.append(" in ", nameTag(shorten(module), module));
    const live = copies.some((life) => data.lives.from[life] <= this.view.run && this.view.run <= data.lives.to[life]);
    const spans = copies.map((life) => `${data.lives.from[life] + 1}\u2013${data.lives.to[life] + 1}`);
    const shown = spans.slice(0, 6).join(", ") + (spans.length > 6 ? ` and ${spans.length - 6} more ranges` : "");
    line.append(`: live during ops ${shown}; ${live ? "live" : "not live"} at op ${this.view.run + 1}`);
    line.append(element("span", "faint", ` \u00b7 `), counts);
    readout.replaceChildren(line);
  }
}
