// Decisions a second of the last hour: as the server has kept them, and from then on as the page sees them.

/** Columns of a chart, whatever its span. */
export const COLUMNS = 120;
/** The longest span, in seconds. */
const HOUR = 3_600;
/** For so many seconds each rule is kept too. */
const BY_RULE = 120;

/** Rates with the time at which each was measured, and the seconds that it covers, in order. */
export class History {
  constructor() {
    this.points = [];
  }

  push(point) {
    this.points.push(point);
    this.#forget(point.at);
    const older = this.points.at(-BY_RULE - 1);
    if (older) older.rules = null;
  }

  /** Adds the server's samples of the times that the page has not seen itself. */
  fill(samples) {
    const unseen = samples.filter(({ at_ms: end, span_ms: span }) =>
      !this.points.some(({ at }) => at > end - span && at <= end));
    const points = unseen.map(({ at_ms: at, span_ms: span, allowed, denied, refused }) => {
      const seconds = span / 1_000;
      return { at, seconds, allowed: allowed / seconds, denied: (denied + refused) / seconds, rules: null };
    });
    this.points = [...this.points, ...points].sort((one, other) => one.at - other.at);
    if (this.last) this.#forget(this.last.at);
  }

  #forget(now) {
    const first = this.points.findIndex(({ at }) => at > now - HOUR * 1_000);
    this.points.splice(0, first);
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
    for (const { at, seconds: covered, allowed, denied } of this.points) {
      const end = COLUMNS - 1 - Math.floor((last.at - at) / width);
      const wide = Math.max(1, Math.round((covered * 1_000) / width));
      for (let n = end; n > end - wide; n -= 1) {
        if (n < 0 || n >= COLUMNS) continue;
        const column = (columns[n] ??= { allowed: 0, denied: 0, seconds: 0 });
        column.allowed += allowed * covered;
        column.denied += denied * covered;
        column.seconds += covered;
      }
    }
    return columns.map((column) =>
      column && { allowed: column.allowed / column.seconds, denied: column.denied / column.seconds });
  }
}
