// Decisions a second of the last hour, kept by the page: also across reconnections and a reload of the page.

/** Columns of a chart, whatever its span. */
export const COLUMNS = 120;
/** The longest span, in seconds. */
const HOUR = 3_600;
/** For so many seconds each rule is kept too. */
const BY_RULE = 120;
const PLACE = "tidegate-live-hour";

/** Rates with the time at which each was measured, in order. */
export class History {
  /** What `storage` has of the hour before `now`. */
  constructor(storage, now) {
    this.storage = storage;
    this.points = [];
    try {
      const saved = JSON.parse(storage.getItem(PLACE) ?? "[]");
      this.points = saved
        .filter(([at]) => at <= now && at > now - HOUR * 1_000)
        .map(([at, allowed, denied]) => ({ at, allowed, denied, rules: null }));
    } catch {
      // Not ours, or storage is off: the hour begins now.
    }
  }

  push(point) {
    this.points.push(point);
    const first = this.points.findIndex(({ at }) => at > point.at - HOUR * 1_000);
    this.points.splice(0, first);
    const older = this.points.at(-BY_RULE - 1);
    if (older) older.rules = null;
  }

  /** Keeps it for the next page of this tab. */
  save() {
    try {
      const saved = this.points.map(({ at, allowed, denied }) => [at, Math.round(allowed * 10) / 10, Math.round(denied * 10) / 10]);
      this.storage.setItem(PLACE, JSON.stringify(saved));
    } catch {
      // Full or off: the page works without it.
    }
  }

  get last() {
    return this.points.at(-1);
  }

  /** The latest points with rules, at most a chart of them. */
  get latest() {
    return this.points.slice(-BY_RULE).filter(({ rules }) => rules !== null);
  }

  /** The mean rates of the columns that a span of seconds has, the last one now; `null` where nothing is known. */
  columns(seconds) {
    const { last } = this;
    const columns = new Array(COLUMNS).fill(null);
    if (!last) return columns;
    const width = (seconds * 1_000) / COLUMNS;
    for (const { at, allowed, denied } of this.points) {
      const n = COLUMNS - 1 - Math.floor((last.at - at) / width);
      if (n < 0 || n >= COLUMNS) continue;
      const column = (columns[n] ??= { allowed: 0, denied: 0, count: 0 });
      column.allowed += allowed;
      column.denied += denied;
      column.count += 1;
    }
    return columns.map((column) =>
      column && { allowed: column.allowed / column.count, denied: column.denied / column.count });
  }
}
