// Formatting of numbers and time spans.

const UNITS = [
  [86_400e6, "day"],
  [3_600e6, "h"],
  [60e6, "min"],
  [1e6, "s"],
  [1e3, "ms"],
  [1, "µs"],
];

/** Microseconds, with three digits or so: `2.5 s`. */
export function span(micros) {
  if (!(micros > 0)) return "0 s";
  const [unit, name] = UNITS.find(([unit]) => micros >= unit) ?? [1, "µs"];
  const number = micros / unit;
  return `${trimmed(number, number >= 100 ? 0 : number >= 10 ? 1 : 2)} ${name}`;
}

/** Microseconds as limits and traffic write them, exactly: `90s`. */
export function spanText(micros) {
  const [unit, name] = UNITS.find(([unit]) => micros % unit === 0) ?? [1, "µs"];
  return `${micros / unit}${name === "µs" ? "us" : name}`;
}

/** `1 234 567`, set apart by thin spaces. */
export function count(number) {
  const [whole, part] = String(number).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, "\u2009");
  return part ? `${grouped}.${part}` : grouped;
}

/** A number with so many digits behind the point at most. */
export function trimmed(number, digits) {
  return count(Number(number.toFixed(digits)));
}

export function percent(share) {
  return Number.isFinite(share) ? `${(share * 100).toFixed(1)} %` : "–";
}

/** A number that may be a fraction, in few characters: `31.2`, `1.2 M`. */
export function short(number) {
  const size = Math.abs(number);
  if (size >= 1e9) return `${trimmed(number / 1e9, 1)} G`;
  if (size >= 1e6) return `${trimmed(number / 1e6, 1)} M`;
  if (size >= 1e4 || (size >= 1e3 && size % 100 === 0)) return `${trimmed(number / 1e3, 1)} k`;
  return trimmed(number, size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** The time of day of an instant in milliseconds, in UTC: `09:52:55`. */
export function timeOfDay(ms) {
  return new Date(ms).toISOString().slice(11, 19);
}

/** An instant of a run of this length. */
export function clock(micros, length) {
  const seconds = micros / 1e6;
  if (length <= 120e6) return `${seconds.toFixed(length <= 10e6 ? 3 : 2)} s`;
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const day = Math.floor(seconds / 86_400);
  if (length < 3_600e6) return `${Math.floor(seconds / 60)}:${two(seconds % 60)}`;
  const rest = `${two((seconds % 86_400) / 3_600)}:${two((seconds % 3_600) / 60)}:${two(seconds % 60)}`;
  return day > 0 ? `${day}d ${rest}` : rest;
}
