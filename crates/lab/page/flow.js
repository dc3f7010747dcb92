// Arrivals and admissions over time.

import { DASHES, LETTERS, Pane, SMALL, STRONG, ceiling, palette, timeTicks } from "./canvas.js";
import { clock, short, span } from "./format.js";
import { Pointer } from "./readout.js";
import { ALLOWED } from "./record.js";

const LEFT = 50;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 22;
/** The width of a bar. */
const BAR = 6;
/** More limits than this have a chart each, one below the other: lines of so many would cross everywhere. */
const TOGETHER = 2;
/** The height of each of these charts, and the space between them. */
const LANE = 78;
const GAP = 12;

/** The part of a chart that shows time, from left to right. */
export function plotArea(pane, view) {
  const width = Math.max(10, pane.width - LEFT - RIGHT);
  const x = (time) => LEFT + ((time - view.from) / (view.to - view.from)) * width;
  return { left: LEFT, right: LEFT + width, width, x };
}

/** Draws the axis of time below a chart, and the present instant. */
export function drawTime(context, area, view, height, length) {
  const colours = palette();
  context.fillStyle = colours.muted;
  context.textAlign = "center";
  for (const tick of timeTicks(view.from, view.to, area.width)) {
    const text = length <= 120e6 ? span(tick).replace("0 s", tick === 0 ? "0" : "0 s") : clock(tick, length);
    const x = area.x(tick);
    if (x > area.right - 16) continue;
    context.fillText(text, Math.max(x, area.left + 4), height - 6);
  }
}

export function drawNow(context, area, view, time, top, bottom) {
  if (time < view.from || time > view.to) return;
  const x = Math.round(area.x(time)) + 0.5;
  context.strokeStyle = palette().ink;
  context.globalAlpha = 0.55;
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, bottom);
  context.stroke();
  context.globalAlpha = 1;
}

/** Requests by time, counted into bars. Counting goes on where it stopped as long as the bars stay the same. */
class Bars {
  constructor() {
    this.key = "";
  }

  /** Counts the first `arrivals` of a record into bars of `width` microseconds, from bar `first` on. */
  count(record, arrivals, first, bars, width) {
    const key = `${first} ${bars} ${width}`;
    if (key !== this.key || arrivals < this.until || record !== this.record) {
      this.key = key;
      this.record = record;
      this.arrived = new Float64Array(bars);
      this.admitted = record.limits.map(() => new Float64Array(bars));
      this.until = record.countAt(first * width - 1);
    }
    for (; this.until < arrivals; this.until += 1) {
      const bar = Math.floor(record.at[this.until] / width) - first;
      if (bar >= bars) return;
      if (bar < 0) continue;
      this.arrived[bar] += 1;
      for (let n = 0; n < this.admitted.length; n += 1) {
        if (record.limits[n].outcome[this.until] === ALLOWED) this.admitted[n][bar] += 1;
      }
    }
  }
}

/** The charts of all limits, over the same arrivals. */
export class FlowChart {
  constructor(canvas, changed) {
    this.pane = new Pane(canvas, changed);
    this.bars = new Bars();
    this.scale = 1;
    this.pointer = new Pointer(canvas, changed);
  }

  /** Makes room for as many charts as a run has. */
  show(record) {
    const { canvas } = this.pane;
    const limits = record.limits.map((_, n) => n);
    this.lanes = limits.length > TOGETHER ? limits.map((n) => [n]) : [limits];
    canvas.dataset.lanes = String(this.lanes.length);
    const alone = this.lanes.length === 1;
    canvas.style.height = alone ? "" : `${TOP + BOTTOM + this.lanes.length * (LANE + GAP) - GAP}px`;
    this.pane.fit();
  }

  draw(record, playback, view) {
    const { pane, lanes } = this;
    const context = pane.cleared();
    const area = plotArea(pane, view);
    const width = barWidth(view, area.width, record);
    const first = Math.floor(view.from / width);
    const bars = Math.ceil(view.to / width) - first;
    this.bars.count(record, playback.arrivals, first, bars, width);
    pane.canvas.dataset.bar = String(width);
    const most = this.bars.arrived.reduce((most, one) => Math.max(most, one), 0);
    const perSecond = 1e6 / width;
    const wanted = ceiling(most * perSecond);
    this.scale = view.isNew ? wanted : Math.max(wanted, Math.min(this.scale, wanted * 2));
    const shown = Math.min(bars, Math.ceil(playback.time / width) - first);
    const height = (pane.height - TOP - BOTTOM - (lanes.length - 1) * GAP) / lanes.length;
    lanes.forEach((limits, lane) => {
      const top = TOP + lane * (height + GAP);
      const bottom = top + height;
      this.#frame(context, area, top, bottom);
      const y = (count) => bottom - (count * perSecond * height) / this.scale;
      const x = (bar) => area.x((first + bar) * width);
      this.#lane(context, area, { limits, bars, shown, x, y, top, bottom });
    });
    drawTime(context, area, view, pane.height, record.expected.length);
    drawNow(context, area, view, playback.time, TOP, pane.height - BOTTOM);
    if (this.pointer.x !== null) this.#pointed(context, area, view, width, first, record);
  }

  /** The axis of one chart. */
  #frame(context, area, top, bottom) {
    const colours = palette();
    context.strokeStyle = colours.line;
    context.fillStyle = colours.muted;
    context.textAlign = "right";
    for (const share of this.lanes.length > 1 ? [0, 1] : [0, 0.5, 1]) {
      const at = Math.round(bottom - share * (bottom - top)) + 0.5;
      context.beginPath();
      context.moveTo(area.left, at);
      context.lineTo(area.right, at);
      context.stroke();
      context.fillText(share === 0 ? "0" : `${short(this.scale * share)}/s`, area.left - 6, at + 4);
    }
  }

  /** The arrivals as bars, and a line for what each limit of this chart admitted. */
  #lane(context, area, { limits, bars, shown, x, y, top, bottom }) {
    const colours = palette();
    const { arrived, admitted } = this.bars;
    context.save();
    context.beginPath();
    context.rect(area.left, 0, area.width, bottom + 1);
    context.clip();
    context.fillStyle = colours.faint;
    for (let bar = 0; bar < bars; bar += 1) {
      if (arrived[bar] === 0) continue;
      context.fillRect(x(bar), y(arrived[bar]), Math.max(1, x(bar + 1) - x(bar) - 1), bottom - y(arrived[bar]));
    }
    limits.forEach((n, place) => {
      context.strokeStyle = colours[`series-${n}`];
      context.lineWidth = 2;
      context.setLineDash(DASHES[n]);
      context.beginPath();
      for (let bar = 0; bar < shown; bar += 1) {
        const at = y(admitted[n][bar]) - (place - (limits.length - 1) / 2) * 1.5;
        context.lineTo(x(bar), at);
        context.lineTo(x(bar + 1), at);
      }
      context.stroke();
    });
    context.restore();
    if (this.lanes.length === 1) return;
    context.font = STRONG;
    context.textAlign = "left";
    context.fillStyle = colours[`series-${limits[0]}`];
    context.fillText(LETTERS[limits[0]], area.left + 6, top + 14);
    context.font = SMALL;
  }

  /** The numbers of the bar below the pointer. */
  #pointed(context, area, view, width, first, record) {
    const { x } = this.pointer;
    const time = view.from + ((x - area.left) / area.width) * (view.to - view.from);
    const bar = Math.floor(time / width) - first;
    const arrived = this.bars.arrived[bar];
    if (x < area.left || x > area.right || arrived === undefined) return;
    const from = clock((first + bar) * width, record.expected.length);
    const admitted = this.bars.admitted.map((counts, n) => `${LETTERS[n]}: ${counts[bar]} admitted`);
    this.pointer.show(context, [`${from}, ${span(width)}`, `${arrived} arrived`, ...admitted], area.left, area.right, TOP);
  }

  /** What the chart says, in words. */
  describe(record, playback) {
    const arrivals = playback.arrivals;
    const each = record.limits.map((column, n) => {
      const { admitted, denied, too_large } = record.totals(n, arrivals);
      return `${LETTERS[n]}, ${column.described.limit}: ${admitted} admitted, ${denied + too_large} denied`;
    });
    const by = `By ${clock(playback.time, record.expected.length)} ${arrivals} requests had arrived.`;
    return `Arrivals and admissions over time. ${by} ${each.join("; ")}.`;
  }
}

/**
 * Bars of round lengths, so that they keep their position over time. They are whole periods of the shortest limit if at least
 * six fit: within a period, counts vary under any limit.
 */
function barWidth(view, pixels, record) {
  const periods = record.limits.map(({ described }) => described.expected.worst_window?.length ?? 0);
  const period = Math.min(...periods.filter((period) => period > 0));
  const shown = view.to - view.from;
  const narrowest = (shown / pixels) * BAR;
  if (period * 6 <= shown) return period * round(Math.max(1, narrowest / period), [1, 2, 5, 10]);
  return round(narrowest, [1, 2, 2.5, 5, 10]);
}

/** The lowest of these steps, times a power of ten, that is not below `value`. */
function round(value, steps) {
  const power = 10 ** Math.floor(Math.log10(value));
  return steps.map((step) => step * power).find((step) => step >= value * 0.999);
}
