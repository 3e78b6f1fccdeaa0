// Formats numbers as the command line does.

/** Formats an amount in the first unit in which it is less than `step` when rounded to hundredths. */
function inUnits(amount: number, units: string[], step: number): string {
  if (amount < 0) return `-${inUnits(-amount, units, step)}`;
  if (amount < step) return `${amount} ${units[0]}`;
  let size = step;
  let unit = 1;
  while (unit + 1 < units.length && Math.round((amount / size) * 100) >= step * 100) {
    size *= step;
    unit++;
  }
  return `${(Math.round((amount / size) * 100) / 100).toFixed(2)} ${units[unit]}`;
}

export function formatBytes(bytes: number): string {
  return inUnits(bytes, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
}

export function formatNs(ns: number): string {
  return inUnits(ns, ["ns", "us", "ms", "s"], 1000);
}

/** Formats a mark of an axis of length `span`, without trailing zeros. */
export function axisNs(ns: number, span: number): string {
  const [unit, size] = span < 5e3 ? ["ns", 1] : span < 5e6 ? ["us", 1e3] : span < 1e9 ? ["ms", 1e6] : ["s", 1e9];
  return `${+(ns / (size as number)).toPrecision(6)} ${unit}`;
}

/** Formats a mark of an axis whose marks are `step` apart. */
export function axisBytes(bytes: number, step: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const unit = bytes < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  const size = 1024 ** unit;
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / size))));
  return `${+(bytes / size).toFixed(digits)} ${units[unit]}`;
}

export function percent(part: number, whole: number, digits = 0): string {
  return whole === 0 ? "-" : `${((100 * part) / whole).toFixed(digits)} %`;
}

/** Returns the change from `base` to `amount`, such as "+12.5 %". */
export function change(amount: number, base: number): string {
  if (base === 0) return "";
  const difference = 100 * (amount / base - 1);
  return `${difference < 0 ? "\u2212" : "+"}${Math.abs(difference).toFixed(1)} %`;
}

export function count(amount: number, singular: string, plural = `${singular}s`): string {
  return `${amount.toLocaleString("en")} ${amount === 1 ? singular : plural}`;
}

/** Returns the name with its middle left out if it is longer than `max` characters. */
export function shorten(name: string, max = 60): string {
  const characters = Array.from(name.length > 4 * max ? name.slice(0, 2 * max) + name.slice(-2 * max) : name);
  if (characters.length <= max && name.length <= 4 * max) return name;
  const half = Math.floor((max - 1) / 2);
  return `${characters.slice(0, half).join("")}\u2026${characters.slice(-half).join("")}`;
}
