// One limit over time: its state, a mark for each decision, and its totals next to the expected ones.

import { LETTERS, Pane, palette } from "./canvas.js";
import { chartKey } from "./cards.js";
import { h, setText } from "./dom.js";
import { drawNow, drawTime, plotArea } from "./flow.js";
import { clock, count, percent, short, span, trimmed } from "./format.js";
import { ALGORITHMS } from "./notation.js";
import { drawState } from "./picture.js";
import { Pointer } from "./readout.js";
import { ALLOWED, TOO_LARGE, upperBound } from "./record.js";
import { Standing } from "./state.js";
import { describeState, levelName } from "./words.js";

const TOP = 12;
const LANE = 44;
const BOTTOM = 22;
/** Marks that stand at least so far apart are drawn one by one. */
const APART = 5;
/** Marks within so many pixels of the pointer are below it. */
const NEAR = 5;

const ROWS = [
  ["Requests", ({ arrivals }) => count(arrivals), ({ arrivals }) => trimmed(arrivals, 0)],
  ["Admitted", ({ admitted }) => count(admitted), null],
  ["Admitted cost", ({ admitted_cost }) => count(admitted_cost), ({ accepted }) => trimmed(accepted, 0)],
  ["Denied", ({ denied, too_large }) => count(denied + too_large), null],
  ["Acceptance", ({ cost, admitted_cost }) => percent(admitted_cost / cost), ({ acceptance }) => percent(acceptance)],
  ["At most", null, ({ ceiling }) => (ceiling === null ? "no bound" : count(ceiling))],
  ["Longest wait", ({ longest_wait }) => (longest_wait > 0 ? span(longest_wait) : "–"), null],
  ["Longest delay", ({ longest_delay }) => (longest_delay > 0 ? span(longest_delay) : "–"), null],
  ["Time to drain", null, ({ drain }) => span(drain)],
];

/** What a limit's card shows. */
export class Track {
  constructor(record, limit, changed) {
    this.record = record;
    this.limit = limit;
    this.column = record.limits[limit];
    this.described = this.column.described;
    const { name } = ALGORITHMS.find(({ id }) => id === this.described.algorithm);
    const title = `limit-${limit}`;
    this.chart = h("canvas", { class: "levels", role: "img" });
    this.own = h("canvas", { class: "own", role: "img" });
    this.words = h("p", { class: "words" });
    this.table = this.#table();
    this.element = h(
      "section",
      { class: `card track series-${limit}`, "aria-labelledby": title, "data-limit": String(limit) },
      h("h2", { id: title },
        h("span", { class: "badge" }, LETTERS[limit]), h("code", {}, this.described.limit), h("span", { class: "name" }, name)),
      this.chart,
      this.#legend(),
      this.words,
      h("div", { class: "pictures" }, this.own, this.table),
    );
    this.pane = new Pane(this.chart, changed);
    this.ownPane = new Pane(this.own, changed);
    this.pointer = new Pointer(this.chart, changed);
  }

  /** The marks of the chart. */
  #legend() {
    const { algorithm, state, server } = this.described;
    const keys = [
      chartKey("level", levelName(state[0], algorithm)),
      server ? chartKey("rate", state[1] === "limit" ? "limit on requests in flight" : `limit, up to ${short(server.highest)}/s`) : null,
      chartKey("dot", "admitted"),
      algorithm === "shaper" ? chartKey("ring", "admitted, delayed") : null,
      algorithm === "shaper" ? chartKey("tick", "released") : null,
      chartKey("cross", "denied"),
    ];
    return h("p", { class: "legend" }, keys);
  }

  #table() {
    const { expected } = this.described;
    const worst = expected.worst_window;
    const rows = worst ? [...ROWS, [`Most in ${span(worst.length)}`, null, () => count(worst.most)]] : ROWS;
    const delays = this.described.algorithm === "shaper";
    const costs = expected.cost !== expected.arrivals;
    const shown = rows.filter(([name]) => (delays || name !== "Longest delay") && (costs || name !== "Admitted cost"));
    this.cells = [];
    const body = shown.map(([name, found, thought]) => {
      const cell = h("td", { "data-total": name });
      if (found) this.cells.push([cell, found]);
      // If every request costs one, the expected cost is comparable with the number of admitted requests.
      const isKnown = !this.described.server?.adapts || name === "Requests";
      const beside = !isKnown ? null : name === "Admitted" && !costs ? ({ accepted }) => trimmed(accepted, 0) : thought;
      const thoughtOf = h("td", { class: "thought" }, beside ? beside(expected) : "");
      return h("tr", {}, h("th", { scope: "row" }, name), cell, thoughtOf);
    });
    const columns = ["so far", "estimate at end"].map((name) => h("th", { scope: "col" }, name));
    const head = h("tr", {}, h("th", {}, h("span", { class: "unseen" }, "What")), columns);
    return h("table", { class: "totals" }, h("thead", {}, head), h("tbody", {}, body));
  }

  /** Brings the numbers up to date. */
  tell(playback, own) {
    const totals = this.record.totals(this.limit, playback.arrivals);
    for (const [cell, found] of this.cells) setText(cell, found(totals));
    const standing = new Standing(this.record, this.limit, own);
    const counted = own.countAmong(playback.arrivals);
    setText(this.words, describeState(standing, counted, playback.time));
  }

  /** What the pictures show, for those who do not see them. */
  describe(playback, own) {
    const totals = this.record.totals(this.limit, playback.arrivals);
    const standing = new Standing(this.record, this.limit, own);
    const state = describeState(standing, own.countAmong(playback.arrivals), playback.time);
    this.own.setAttribute("aria-label", `State of ${this.described.limit}: ${state}`);
    const came = `${totals.admitted} admitted, ${totals.denied + totals.too_large} denied`;
    this.chart.setAttribute("aria-label", `${this.described.limit} over time: ${came}.`);
  }

  draw(playback, view, own) {
    const standing = new Standing(this.record, this.limit, own);
    const counted = own.countAmong(playback.arrivals);
    drawState(this.ownPane, standing, counted, playback.time, this.limit);
    const context = this.pane.cleared();
    const area = plotArea(this.pane, view);
    const bottom = this.pane.height - BOTTOM - LANE;
    this.#frame(context, area, standing, bottom);
    context.save();
    context.beginPath();
    context.rect(area.left, 0, area.width, this.pane.height - BOTTOM + 2);
    context.clip();
    this.#level(context, area, view, playback, standing, counted, bottom);
    if (standing.kind === "server") this.#limit(context, area, view, playback, standing, counted, bottom);
    this.#marks(context, area, view, playback, own, bottom + LANE / 2 + 4);
    context.restore();
    drawTime(context, area, view, this.pane.height, this.record.expected.length);
    drawNow(context, area, view, playback.time, TOP, this.pane.height - BOTTOM);
    if (this.pointer.x !== null) this.#pointed(context, area, view, playback, standing, counted);
  }

  /** The state below the pointer, and the decisions there. */
  #pointed(context, area, view, playback, standing, counted) {
    const { record, column } = this;
    const { x } = this.pointer;
    const perPixel = (view.to - view.from) / area.width;
    const time = view.from + (x - area.left) * perPixel;
    if (x < area.left || x > area.right || time > playback.time) return;
    const made = upperBound(standing.own.at, counted, time);
    const [state] = describeState(standing, made, time).split(". ");
    const lines = [clock(time, record.expected.length), state];
    const from = record.countAt(time - NEAR * perPixel);
    const until = Math.min(playback.arrivals, record.countAt(time + NEAR * perPixel));
    const admitted = column.outcome.subarray(from, until).reduce((sum, outcome) => sum + (outcome === ALLOWED ? 1 : 0), 0);
    if (until > from) lines.push(`${count(admitted)} admitted, ${count(until - from - admitted)} denied`);
    this.pointer.show(context, lines, area.left, area.right, TOP);
  }

  #frame(context, area, standing, bottom) {
    const colours = palette();
    context.strokeStyle = colours.line;
    context.fillStyle = colours.muted;
    context.textAlign = "right";
    const top = standing.kind === "ahead" ? span(standing.top) : short(standing.top);
    for (const [at, text] of [[TOP, top], [bottom, "0"]]) {
      context.beginPath();
      context.moveTo(area.left, at + 0.5);
      context.lineTo(area.right, at + 0.5);
      context.stroke();
      context.fillText(text, area.left - 6, at + 4);
    }
  }

  /** The level of the watched client, pixel by pixel: from the lowest to the highest that it stood there. */
  #level(context, area, view, playback, standing, counted, bottom) {
    const colours = palette();
    const top = standing.top || 1;
    const y = (level) => bottom - (Math.min(Math.max(level, 0), top) / top) * (bottom - TOP);
    const levels = this.#levels(area, view, playback, standing, counted);
    const { pixels, low, high, last } = levels;
    if (pixels === 0) return;
    const x = (pixel) => area.left + pixel;
    context.fillStyle = colours[`series-${this.limit}`];
    context.globalAlpha = 0.14;
    context.beginPath();
    context.moveTo(x(0), bottom);
    for (let pixel = 0; pixel < pixels; pixel += 1) context.lineTo(x(pixel), y(last[pixel]));
    context.lineTo(x(pixels), bottom);
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = colours[`series-${this.limit}`];
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    for (let pixel = 0; pixel < pixels; pixel += 1) {
      if (y(low[pixel]) - y(high[pixel]) > 1) {
        context.lineTo(x(pixel), y(low[pixel]));
        context.lineTo(x(pixel), y(high[pixel]));
      }
      context.lineTo(x(pixel), y(last[pixel]));
    }
    context.stroke();
  }

  /** The limit over the requests in the server: a line on their scale, or from zero to the highest rate. */
  #limit(context, area, view, playback, standing, counted, bottom) {
    const { own } = standing;
    const top = (standing.limitsInFlight ? standing.top : standing.described.server.highest) || 1;
    const y = (limit) => bottom - (Math.min(limit, top) / top) * (bottom - TOP);
    const until = Math.min(playback.time, view.to);
    context.strokeStyle = palette().ink;
    context.lineWidth = 1.5;
    context.beginPath();
    const first = upperBound(own.at, counted, view.from);
    let limit = standing.present(first);
    context.moveTo(area.x(view.from), y(limit));
    for (let index = first; index < counted && own.at[index] <= until; index += 1) {
      const next = standing.present(index + 1);
      if (next === limit) continue;
      context.lineTo(area.x(own.at[index]), y(limit));
      context.lineTo(area.x(own.at[index]), y(next));
      limit = next;
    }
    context.lineTo(area.x(until), y(limit));
    context.stroke();
  }

  /** How it stood in each pixel up to now. What is past stays as it was, and is not looked at again. */
  #levels(area, view, playback, standing, counted) {
    const { own } = standing;
    const width = Math.ceil(area.width);
    const perPixel = (view.to - view.from) / area.width;
    const key = `${view.from} ${view.to} ${area.width}`;
    if (this.seen?.key !== key || this.seen.own !== own) {
      const numbers = () => new Float64Array(width + 1);
      this.seen = { key, own, whole: 0, low: numbers(), high: numbers(), last: numbers() };
    }
    const { seen } = this;
    const pixels = Math.min(width, Math.max(0, Math.ceil((playback.time - view.from) / perPixel)));
    const begin = Math.min(seen.whole, Math.max(0, pixels - 1));
    let index = upperBound(own.at, counted, begin === 0 ? view.from - 1 : view.from + begin * perPixel);
    for (let pixel = begin; pixel < pixels; pixel += 1) {
      const end = view.from + (pixel + 1) * perPixel;
      const until = Math.min(end, playback.time);
      let low = Infinity;
      let high = -Infinity;
      for (; index < counted && own.at[index] <= until; index += 1) {
        const before = standing.level(index, own.at[index]);
        const after = standing.level(index + 1, own.at[index]);
        low = Math.min(low, before, after);
        high = Math.max(high, before, after);
      }
      const level = standing.level(index, until);
      seen.low[pixel] = Math.min(low, level);
      seen.high[pixel] = Math.max(high, level);
      seen.last[pixel] = level;
      if (until === end) seen.whole = Math.max(seen.whole, pixel + 1);
      else seen.whole = Math.min(seen.whole, pixel);
    }
    return { pixels, ...seen };
  }

  /** Decisions: the admitted above the line, the denied below it. */
  #marks(context, area, view, playback, own, middle) {
    const { record, column } = this;
    const from = record.countAt(view.from - 1);
    const until = Math.min(playback.arrivals, record.countAt(view.to));
    const colours = palette();
    context.strokeStyle = colours.line;
    context.beginPath();
    context.moveTo(area.left, middle + 0.5);
    context.lineTo(area.right, middle + 0.5);
    context.stroke();
    const passed = (Math.min(playback.time, view.to) - view.from) / (view.to - view.from);
    if (until > from && (until - from) * APART <= area.width * (passed + 0.05)) {
      this.#single(context, area, from, until, own.client, middle);
    } else {
      this.#dense(context, area, view, from, until, middle, column);
    }
    if (this.described.algorithm === "shaper") this.#departures(context, area, view, playback, middle);
  }

  /** What a shaper has let go, on the line: evenly, however it came. */
  #departures(context, area, view, playback, middle) {
    const { record, column } = this;
    if (playback.arrivals === 0) return;
    const longest = column.longestDelay[playback.arrivals - 1];
    context.fillStyle = palette().ink;
    for (let number = record.countAt(view.from - longest - 1); number < playback.arrivals; number += 1) {
      const leaves = record.at[number] + column.wait[number];
      if (column.outcome[number] !== ALLOWED || leaves > playback.time || leaves < view.from || leaves > view.to) continue;
      context.fillRect(area.x(leaves) - 0.75, middle - 2, 1.5, 5);
    }
  }

  #single(context, area, from, until, watched, middle) {
    const { record, column } = this;
    const colours = palette();
    const crowd = record.expected.clients > 1;
    for (let number = from; number < until; number += 1) {
      const x = area.x(record.at[number]);
      const outcome = column.outcome[number];
      context.globalAlpha = crowd && record.client[number] !== watched ? 0.35 : 1;
      context.lineWidth = 1.5;
      if (outcome === ALLOWED) {
        context.strokeStyle = context.fillStyle = colours[`series-${this.limit}`];
        context.beginPath();
        context.arc(x, middle - 9, 3.2, 0, 7);
        // A delayed request is hollow.
        if (column.wait[number] > 0) context.stroke();
        else context.fill();
      } else {
        context.strokeStyle = colours.deny;
        context.beginPath();
        const [y, size] = [middle + 10, outcome === TOO_LARGE ? 4.5 : 3];
        context.moveTo(x - size, y - size);
        context.lineTo(x + size, y + size);
        context.moveTo(x + size, y - size);
        context.lineTo(x - size, y + size);
        context.stroke();
      }
    }
    context.globalAlpha = 1;
  }

  /** So many that several share a pixel: each pixel has a bar up and a bar down. */
  #dense(context, area, view, from, until, middle, column) {
    const { record } = this;
    const pixels = Math.ceil(area.width);
    if (this.up?.length !== pixels) {
      this.up = new Uint32Array(pixels);
      this.down = new Uint32Array(pixels);
    }
    this.up.fill(0);
    this.down.fill(0);
    const scale = area.width / (view.to - view.from);
    let most = 1;
    for (let number = from; number < until; number += 1) {
      const x = Math.min(pixels - 1, Math.max(0, Math.floor((record.at[number] - view.from) * scale)));
      const lane = column.outcome[number] === ALLOWED ? this.up : this.down;
      lane[x] += 1;
      if (lane[x] > most) most = lane[x];
    }
    const colours = palette();
    const half = LANE / 2 - 4;
    const height = (n) => 3 + ((half - 3) * Math.log1p(n)) / Math.log1p(most);
    for (const [lane, colour, up] of [[this.up, colours[`series-${this.limit}`], true], [this.down, colours.deny, false]]) {
      context.fillStyle = colour;
      for (let x = 0; x < pixels; x += 1) {
        if (lane[x] === 0) continue;
        const tall = height(lane[x]);
        context.fillRect(area.left + x, up ? middle - tall : middle + 1, 1, tall);
      }
    }
  }
}
