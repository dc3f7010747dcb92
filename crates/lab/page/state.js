// Interpolation of an algorithm's state between two decisions: buckets fill, queues drain, windows change. The
// engine sends the state after each decision; the rest is arithmetic.

import { upperBound } from "./record.js";

/** How one client stands under one limit, at any instant of a record. */
export class Standing {
  constructor(record, limit, own) {
    this.record = record;
    this.limit = limit;
    this.own = own;
    this.column = record.limits[limit];
    this.described = this.column.described;
    this.kind = this.described.state[0];
    const [tokens, period] = this.described.rate ?? [0, 1];
    this.perMicro = tokens / period;
    // What a server works off.
    const { server } = this.described;
    if (server) this.perMicro = server.workers / server.service;
    const { holding } = record.expected;
    const { window } = this.described;
    this.held = this.described.algorithm === "concurrent" && holding !== null ? Math.min(holding, window) : window;
  }

  /** The highest that its level can stand. */
  get top() {
    // Three times its workers, or the requests that a server works off in a second.
    if (this.kind === "server") {
      const { workers } = this.described.server;
      return this.limitsInFlight ? 3 * workers : Math.max(this.perMicro * 1e6, 3 * workers);
    }
    return this.kind === "ahead" ? this.described.capacity / this.perMicro : this.described.capacity;
  }

  /** Whether the limit before a server is one on its requests in flight, and not a rate. */
  get limitsInFlight() {
    return this.described.state[1] === "limit";
  }

  /** Whether the level is what is left, and not what is spent. */
  get isLeft() {
    return this.kind === "tokens";
  }

  /** The level at `time`, `counted` being how many of the client's decisions were made by then. */
  level(counted, time) {
    if (counted === 0) return this.isLeft ? this.top : 0;
    const number = this.own.number[counted - 1];
    const state = this.column.state[number * this.column.width];
    const since = Math.max(0, time - this.own.at[counted - 1]);
    switch (this.kind) {
      case "tokens":
        return Math.min(this.top, state + since * this.perMicro);
      case "water":
      case "server":
      case "queue":
        return Math.max(0, state - since * this.perMicro);
      case "ahead":
        return Math.max(0, state - since);
      case "estimate":
        return this.counters(counted, time)?.estimate ?? state;
      case "spent":
        return this.#spent(number, state, counted, time);
    }
    return state;
  }

  /** The limit at that instant, as a rate in a second or as requests in flight; only with a server. */
  present(counted) {
    if (counted === 0) return this.described.server.initial;
    return this.column.state[this.own.number[counted - 1] * this.column.width + 1];
  }

  #spent(number, state, counted, time) {
    switch (this.described.algorithm) {
      case "fixed":
        return this.column.width < 2 || time < this.column.state[number * this.column.width + 1] ? state : 0;
      case "log":
      case "concurrent":
        return this.entries(counted, time).spent;
      default:
        return state;
    }
  }

  /** What the algorithm holds of the client one by one: from which of its decisions on, and what they cost together. */
  entries(counted, time) {
    const first = upperBound(this.own.at, counted, time - this.held);
    const spent = this.own.spent[this.limit];
    const upTo = (index) => (index > 0 ? spent[index - 1] : 0);
    return { first, spent: upTo(counted) - upTo(first) };
  }

  /** A sliding window's counters, the oldest first, and its estimate; `null` if they were not sent. Good until the next call. */
  counters(counted, time) {
    const parts = this.described.parts;
    const width = this.column.width;
    if (width < 2) return null;
    const length = this.described.window / parts;
    const { start } = this.record.expected;
    const present = Math.floor((start + time) / length);
    const covered = 1 - ((start + time) % length) / length;
    this.spent ??= new Array(parts + 1);
    const { spent } = this;
    spent.fill(0);
    if (counted > 0) {
      const number = this.own.number[counted - 1];
      const shift = present - Math.floor((start + this.own.at[counted - 1]) / length);
      for (let part = 0; part + shift <= parts; part += 1) spent[part] = this.column.state[number * width + 1 + part + shift];
    }
    let estimate = spent[0] * covered;
    for (let part = 1; part <= parts; part += 1) estimate += spent[part];
    return { spent, covered, estimate };
  }

  /** When a fixed window ends, from `time` on. */
  windowEnd(counted, time) {
    const width = this.column.width;
    if (counted > 0 && width > 1) {
      const end = this.column.state[this.own.number[counted - 1] * width + 1];
      if (end > time) return end;
    }
    const { start } = this.record.expected;
    const { window } = this.described;
    return time + window - ((start + time) % window);
  }
}
