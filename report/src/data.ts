// The data block of the page, headroom.report/1, as docs/report.md defines it.

export interface ReportData {
  format: string;
  name: string;
  steps: number;
  budget_bytes: number | null;
  peak_bytes: number;
  time_ns: number;
  store_all_peak_bytes: number;
  store_all_time_ns: number;
  resident_bytes: number;
  lower_bound_ns: number;
  planner: string | null;
  status: string | null;
  ops: {
    name: string[];
    backward: number[];
    time_ns: number[];
    workspace_bytes: number[];
    module: string[];
    source: string[];
  };
  values: { name: string[]; bytes: number[]; resident: number[] };
  runs: {
    op: number[];
    step: number[];
    over: number[];
    again: number[];
    moment_bytes: number[];
    after_bytes: number[];
    store_all_bytes: number[];
  };
  lives: { value: number[]; from: number[]; to: number[] };
  measured: Measured | null;
  fronts: {
    planners: { planner: string; points: [number, number][] }[];
    bounds: [number, number][];
    left_out: { planner: string; why: string }[];
  };
}

export interface Measured {
  moment_bytes: number[];
  after_bytes: number[];
  peak_bytes: number | null;
  step_ns: number | null;
  plain_step_ns: number | null;
  plain_peak_bytes: number | null;
  identical_to_plain: boolean | null;
}

/** The data of the page with the indices and sums that its parts share. */
export class Report {
  readonly runCount: number;
  readonly peakRun: number;
  /** The first run of backward, or the number of runs if there is none. */
  readonly firstBackward: number;
  /** For each value, its copies as indices into `lives`, in order of time. */
  readonly livesOf: number[][];
  readonly rerunNs: number;
  readonly rerunCount: number;

  constructor(readonly data: ReportData) {
    const { runs, ops, values, lives } = data;
    this.runCount = runs.op.length;
    let peak = 0;
    for (let run = 1; run < this.runCount; run++) if (runs.moment_bytes[run] > runs.moment_bytes[peak]) peak = run;
    this.peakRun = peak;
    const backward = runs.op.findIndex((op) => ops.backward[op] === 1);
    this.firstBackward = backward < 0 ? this.runCount : backward;
    this.livesOf = values.name.map(() => []);
    lives.value.forEach((value, life) => this.livesOf[value].push(life));
    let rerunNs = 0;
    let rerunCount = 0;
    runs.op.forEach((op, run) => {
      if (runs.again[run] !== 1) return;
      rerunNs += ops.time_ns[op];
      rerunCount++;
    });
    this.rerunNs = rerunNs;
    this.rerunCount = rerunCount;
  }

  opOf(run: number): number {
    return this.data.runs.op[run];
  }

  /** Returns the module of an op, or an empty text. */
  moduleOf(op: number): string {
    return this.data.ops.module[op] ?? "";
  }

  sourceOf(op: number): string {
    return this.data.ops.source[op] ?? "";
  }

  /** Returns the copies that are live during a run, largest first. */
  liveDuring(run: number): number[] {
    const { lives, values } = this.data;
    const live: number[] = [];
    for (let life = 0; life < lives.value.length; life++)
      if (lives.from[life] <= run && run <= lives.to[life]) live.push(life);
    const bytes = (life: number): number => values.bytes[lives.value[life]];
    return live.sort((a, b) => bytes(b) - bytes(a) || a - b);
  }

  /** Returns whether a rerun computed this copy. */
  isRecomputed(life: number): boolean {
    const { lives, runs, values } = this.data;
    return values.resident[lives.value[life]] === 0 && runs.again[lives.from[life]] === 1;
  }

  /** Returns whether this copy was computed in forward, by a first run, and is live when backward begins. */
  isSaved(life: number): boolean {
    const { lives } = this.data;
    return !this.isRecomputed(life) && lives.from[life] < this.firstBackward && lives.to[life] >= this.firstBackward;
  }

  /** Returns the lower bound on the time of plans with at most this peak, or 0 if none is known. */
  boundFor(peakBytes: number): number {
    let bound = 0;
    for (const [bytes, ns] of this.data.fronts.bounds) if (bytes >= peakBytes) bound = Math.max(bound, ns);
    if (this.data.peak_bytes >= peakBytes && (this.data.budget_bytes ?? 0) <= this.data.peak_bytes)
      bound = Math.max(bound, this.data.lower_bound_ns);
    return bound;
  }
}
