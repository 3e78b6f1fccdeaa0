// Numbers for people, as the command line writes them.

export function formatBytes(bytes: number): string {
  const units = ["KiB", "MiB", "GiB", "TiB"];
  if (Math.abs(bytes) < 1024) return `${bytes} B`;
  let value = bytes / 1024;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit++;
  }
  return `${value.toFixed(2)} ${units[unit]}`;
}

export function formatNs(ns: number): string {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(2)} us`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(2)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}

/** The same without decimals that say nothing, for the marks of an axis `span` long. */
export function axisNs(ns: number, span: number): string {
  const [unit, size] = span < 2e4 ? ["ns", 1] : span < 2e7 ? ["us", 1e3] : span < 2e9 ? ["ms", 1e6] : ["s", 1e9];
  return `${+(ns / (size as number)).toPrecision(6)} ${unit}`;
}

export function axisBytes(bytes: number): string {
  return formatBytes(bytes).replace(/\.?0+ (?=[KMGT])/, " ");
}

export function percent(part: number, whole: number, digits = 0): string {
  return whole === 0 ? "-" : `${((100 * part) / whole).toFixed(digits)} %`;
}

/** "+12.5 %", from `base` to `amount`. */
export function change(amount: number, base: number): string {
  if (base === 0) return "";
  const difference = 100 * (amount / base - 1);
  return `${difference < 0 ? "\u2212" : "+"}${Math.abs(difference).toFixed(1)} %`;
}

export function count(amount: number, one: string, many = `${one}s`): string {
  return `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;
}

/** A name of bounded length: the middle of a long one is left out. */
export function shorten(name: string, most = 60): string {
  const characters = Array.from(name.length > 4 * most ? name.slice(0, 2 * most) + name.slice(-2 * most) : name);
  if (characters.length <= most && name.length <= 4 * most) return name;
  const half = Math.floor((most - 1) / 2);
  return `${characters.slice(0, half).join("")}\u2026${characters.slice(-half).join("")}`;
}
