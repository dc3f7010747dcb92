// Arrivals and admissions over time.

import { DASHES, LETTERS, Pane, ceiling, palette, rounded, timeTicks } from "./canvas.js";
import { clock, short, span } from "./format.js";
import { ALLOWED } from "./record.js";

const LEFT = 50;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 22;
/** The width of a bar. */
const BAR = 6;

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

/** The chart that all limits share. */
export class FlowChart {
  constructor(canvas, changed) {
    this.pane = new Pane(canvas, changed);
    this.bars = new Bars();
    this.scale = 1;
    /** Where the pointer is, from the left; `null` if it is elsewhere. */
    this.pointer = null;
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = event.offsetX;
      changed();
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      changed();
    });
  }

  draw(record, playback, view) {
    const { pane } = this;
    const context = pane.cleared();
    const colours = palette();
    const area = plotArea(pane, view);
    const bottom = pane.height - BOTTOM;
    const width = barWidth(view, area.width, record);
    const first = Math.floor(view.from / width);
    const bars = Math.ceil(view.to / width) - first;
    this.bars.count(record, playback.arrivals, first, bars, width);
    const { arrived, admitted } = this.bars;
    const most = arrived.reduce((most, one) => Math.max(most, one), 0);
    const perSecond = 1e6 / width;
    const wanted = ceiling(most * perSecond);
    this.scale = view.isNew ? wanted : Math.max(wanted, Math.min(this.scale, wanted * 2));
    const y = (count) => bottom - (count * perSecond * (bottom - TOP)) / this.scale;

    context.strokeStyle = colours.line;
    context.fillStyle = colours.muted;
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const at = Math.round(bottom - share * (bottom - TOP)) + 0.5;
      context.beginPath();
      context.moveTo(area.left, at);
      context.lineTo(area.right, at);
      context.stroke();
      context.fillText(share === 0 ? "0" : `${short(this.scale * share)}/s`, area.left - 6, at + 4);
    }
    context.save();
    context.beginPath();
    context.rect(area.left, 0, area.width, bottom + 1);
    context.clip();
    context.fillStyle = colours.faint;
    for (let bar = 0; bar < bars; bar += 1) {
      if (arrived[bar] === 0) continue;
      const from = area.x((first + bar) * width);
      const to = area.x((first + bar + 1) * width);
      context.fillRect(from, y(arrived[bar]), Math.max(1, to - from - 1), bottom - y(arrived[bar]));
    }
    const shown = Math.min(bars, Math.ceil(playback.time / width) - first);
    admitted.forEach((counts, n) => {
      context.strokeStyle = colours[`series-${n}`];
      context.lineWidth = 2;
      context.setLineDash(DASHES[n]);
      context.beginPath();
      for (let bar = 0; bar < shown; bar += 1) {
        const at = y(counts[bar]) - (n - (admitted.length - 1) / 2) * 1.5;
        context.lineTo(area.x((first + bar) * width), at);
        context.lineTo(area.x((first + bar + 1) * width), at);
      }
      context.stroke();
    });
    context.restore();
    drawTime(context, area, view, pane.height, record.expected.length);
    drawNow(context, area, view, playback.time, TOP, bottom);
    if (this.pointer !== null) this.#pointed(context, area, view, width, first, record);
  }

  /** The numbers of the bar below the pointer. */
  #pointed(context, area, view, width, first, record) {
    const time = view.from + ((this.pointer - area.left) / area.width) * (view.to - view.from);
    const bar = Math.floor(time / width) - first;
    const arrived = this.bars.arrived[bar];
    if (this.pointer < area.left || this.pointer > area.right || arrived === undefined) return;
    const admitted = this.bars.admitted.map((counts, n) => `${LETTERS[n]} ${counts[bar]}`);
    const from = clock((first + bar) * width, record.expected.length);
    const text = `${from}, ${span(width)}: ${arrived} arrived, admitted by ${admitted.join(", ")}`;
    const colours = palette();
    const wide = context.measureText(text).width + 16;
    const left = Math.min(Math.max(area.left, this.pointer - wide / 2), area.right - wide);
    context.fillStyle = colours.surface;
    context.strokeStyle = colours.line;
    rounded(context, left, TOP, wide, 22, 5);
    context.fill();
    context.stroke();
    context.fillStyle = colours.ink;
    context.textAlign = "left";
    context.fillText(text, left + 8, TOP + 15);
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
 * Bars of round lengths, so that they keep their position over time. They are as long as the shortest period of a limit if
 * twenty of them fit: within a period, counts vary under any limit.
 */
function barWidth(view, pixels, record) {
  const periods = record.limits.map(({ described }) => described.expected.worst_window?.length ?? 0);
  const period = Math.min(...periods.filter((period) => period > 0));
  const shown = view.to - view.from;
  const narrowest = (shown / pixels) * BAR;
  if (period >= narrowest && period * 20 <= shown) return period;
  const least = narrowest;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= least * 0.999);
}
