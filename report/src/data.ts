// The block of data in the page: headroom.report/1 of docs/report.md.

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

/** The data with what the page's parts ask of it. */
export class Report {
  readonly runCount: number;
  readonly peakRun: number;
  /** The first run of backward; the number of runs where there is none. */
  readonly firstBackward: number;
  /** By value, the copies of it, in order: positions in `lives`. */
  readonly livesOf: number[][];
  readonly againNs: number;
  readonly againRuns: number;

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
    let againNs = 0;
    let againRuns = 0;
    runs.op.forEach((op, run) => {
      if (runs.again[run] !== 1) return;
      againNs += ops.time_ns[op];
      againRuns++;
    });
    this.againNs = againNs;
    this.againRuns = againRuns;
  }

  opOf(run: number): number {
    return this.data.runs.op[run];
  }

  /** The module of an op, or "". */
  moduleOf(op: number): string {
    return this.data.ops.module[op] ?? "";
  }

  sourceOf(op: number): string {
    return this.data.ops.source[op] ?? "";
  }

  /** The copies in memory during a run, largest first. */
  aliveDuring(run: number): number[] {
    const { lives, values } = this.data;
    const found: number[] = [];
    for (let life = 0; life < lives.value.length; life++)
      if (lives.from[life] <= run && run <= lives.to[life]) found.push(life);
    const bytes = (life: number): number => values.bytes[lives.value[life]];
    return found.sort((a, b) => bytes(b) - bytes(a) || a - b);
  }

  /** Whether a copy is of a run that computes again. */
  isAgain(life: number): boolean {
    const { lives, runs, values } = this.data;
    return values.resident[lives.value[life]] === 0 && runs.again[lives.from[life]] === 1;
  }

  /** Whether a copy is made in forward, first, and still there when backward begins. */
  isKept(life: number): boolean {
    const { lives } = this.data;
    return !this.isAgain(life) && lives.from[life] < this.firstBackward && lives.to[life] >= this.firstBackward;
  }

  /** The bound on the time of plans with at most this peak. */
  boundFor(peakBytes: number): number {
    let bound = 0;
    for (const [bytes, ns] of this.data.fronts.bounds) if (bytes >= peakBytes) bound = Math.max(bound, ns);
    if (this.data.peak_bytes >= peakBytes && (this.data.budget_bytes ?? 0) <= this.data.peak_bytes)
      bound = Math.max(bound, this.data.lower_bound_ns);
    return bound;
  }
}
