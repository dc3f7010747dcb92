// The record of decisions, in columns: a million decisions take some tens of megabytes, and drawing iterates over plain arrays.

const DENIED = 0;
export const ALLOWED = 1;
export const TOO_LARGE = 2;

/** The decisions of one limit. Sums run from the first decision to each one. */
class Column {
  constructor(described) {
    this.described = described;
    this.width = described.state.length;
    this.outcome = new Uint8Array(0);
    this.remaining = new Float64Array(0);
    this.wait = new Float64Array(0);
    this.state = new Float64Array(0);
    this.admitted = new Uint32Array(0);
    this.admittedCost = new Float64Array(0);
    this.tooLarge = new Uint32Array(0);
    this.delayed = new Uint32Array(0);
    this.longestWait = new Float64Array(0);
    this.longestDelay = new Float64Array(0);
  }
}

const COLUMNS = ["outcome", "remaining", "wait", "admitted", "admittedCost", "tooLarge", "delayed", "longestWait", "longestDelay"];

const NOTHING = {
  arrivals: 0,
  cost: 0,
  admitted: 0,
  admitted_cost: 0,
  denied: 0,
  too_large: 0,
  delayed: 0,
  longest_delay: 0,
  longest_wait: 0,
};

/** All decisions of a run so far. */
export class Record {
  constructor(expected) {
    this.expected = expected;
    this.length = 0;
    this.room = 0;
    this.until = 0;
    this.at = new Float64Array(0);
    this.client = new Uint32Array(0);
    this.cost = new Float64Array(0);
    this.costs = new Float64Array(0);
    this.limits = expected.limits.map((described) => new Column(described));
  }

  #grow(wanted) {
    if (wanted <= this.room) return;
    this.room = Math.max(4_096, wanted, this.room * 2);
    const grown = (old, size) => {
      const next = new old.constructor(size);
      next.set(old);
      return next;
    };
    for (const name of ["at", "client", "cost", "costs"]) this[name] = grown(this[name], this.room);
    for (const column of this.limits) {
      for (const name of COLUMNS) column[name] = grown(column[name], this.room);
      column.state = grown(column.state, this.room * column.width);
    }
  }

  /** Adds what an event brings. What is known already is passed over. */
  append(batch) {
    const skip = this.length - batch.first;
    const more = batch.at.length - skip;
    this.until = Math.max(this.until, batch.until);
    if (more <= 0) return;
    this.#grow(this.length + more);
    for (let from = skip, to = this.length; from < batch.at.length; from += 1, to += 1) {
      this.at[to] = batch.at[from];
      this.client[to] = batch.client[from];
      this.cost[to] = batch.cost[from];
      this.costs[to] = (to > 0 ? this.costs[to - 1] : 0) + batch.cost[from];
      this.limits.forEach((column, n) => this.#decided(column, batch.limits[n], from, to, batch.cost[from]));
    }
    this.length += more;
  }

  #decided(column, told, from, to, cost) {
    const outcome = told.outcome[from];
    const wait = told.wait[from];
    const before = to - 1;
    const sum = (array) => (to > 0 ? array[before] : 0);
    column.outcome[to] = outcome;
    column.remaining[to] = told.remaining[from];
    column.wait[to] = wait;
    column.admitted[to] = sum(column.admitted) + (outcome === ALLOWED ? 1 : 0);
    column.admittedCost[to] = sum(column.admittedCost) + (outcome === ALLOWED ? cost : 0);
    column.tooLarge[to] = sum(column.tooLarge) + (outcome === TOO_LARGE ? 1 : 0);
    column.delayed[to] = sum(column.delayed) + (outcome === ALLOWED && wait > 0 ? 1 : 0);
    column.longestWait[to] = Math.max(sum(column.longestWait), outcome === DENIED ? wait : 0);
    column.longestDelay[to] = Math.max(sum(column.longestDelay), outcome === ALLOWED ? wait : 0);
    const width = column.width;
    for (let part = 0; part < width; part += 1) column.state[to * width + part] = told.state[from * width + part];
  }

  /** How many decisions were made until this instant. */
  countAt(time) {
    return upperBound(this.at, this.length, time);
  }

  /** What a limit had decided after so many arrivals. */
  totals(limit, arrivals) {
    const column = this.limits[limit];
    if (arrivals === 0) return NOTHING;
    const last = arrivals - 1;
    const admitted = column.admitted[last];
    return {
      arrivals,
      cost: this.costs[last],
      admitted,
      admitted_cost: column.admittedCost[last],
      denied: arrivals - admitted - column.tooLarge[last],
      too_large: column.tooLarge[last],
      delayed: column.delayed[last],
      longest_delay: column.longestDelay[last],
      longest_wait: column.longestWait[last],
    };
  }
}

/** The first of `length` sorted numbers that is larger than `value`. */
export function upperBound(sorted, length, value) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The decisions of one client, in a record that grows. */
export class Own {
  constructor(record, client) {
    this.record = record;
    this.client = client;
    this.seen = 0;
    this.length = 0;
    this.number = new Uint32Array(256);
    this.at = new Float64Array(256);
    /** What each limit had let through. */
    this.spent = record.limits.map(() => new Float64Array(256));
  }

  /** Looks at what has come since. */
  follow() {
    const { record } = this;
    for (; this.seen < record.length; this.seen += 1) {
      if (record.client[this.seen] !== this.client) continue;
      if (this.length === this.at.length) this.#grow();
      this.number[this.length] = this.seen;
      this.at[this.length] = record.at[this.seen];
      for (let n = 0; n < this.spent.length; n += 1) {
        const before = this.length > 0 ? this.spent[n][this.length - 1] : 0;
        const allowed = record.limits[n].outcome[this.seen] === ALLOWED;
        this.spent[n][this.length] = before + (allowed ? record.cost[this.seen] : 0);
      }
      this.length += 1;
    }
  }

  #grow() {
    const grown = (old) => {
      const next = new old.constructor(old.length * 2);
      next.set(old);
      return next;
    };
    this.number = grown(this.number);
    this.at = grown(this.at);
    this.spent = this.spent.map(grown);
  }

  /** How many of its decisions were among the first `arrivals` of all. */
  countAmong(arrivals) {
    return upperBound(this.number, this.length, arrivals - 1);
  }
}
