// A canvas at the screen's resolution, in the colours of the page.

const NAMES = ["ink", "muted", "line", "surface", "accent", "deny", "faint", "series-0", "series-1", "series-2", "series-3"];
let colours = null;

/** The page's colours, as they are in the present theme. */
export function palette() {
  if (!colours) {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return colours;
}

/** To be called when the theme changes. */
export function forgetPalette() {
  colours = null;
}

/** How lines of several limits differ, besides their colour. */
export const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
export const LETTERS = ["A", "B", "C", "D"];

/** A canvas that fills its box. `changed` is called when the box has another size. */
export class Pane {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.width = 0;
    this.height = 0;
    new ResizeObserver(() => {
      this.fit();
      changed();
    }).observe(canvas);
    this.fit();
  }

  fit() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const scale = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
    }
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
  }

  /** The context, with nothing drawn. */
  cleared() {
    const { context } = this;
    context.clearRect(0, 0, this.width, this.height);
    context.setLineDash([]);
    context.globalAlpha = 1;
    context.lineWidth = 1;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.font = SMALL;
    return context;
  }
}

export const SMALL = "11px system-ui, sans-serif";
export const STRONG = "600 13px system-ui, sans-serif";

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500].map((ms) => ms * 1e3)
  .concat([1, 2, 5, 10, 15, 30].map((s) => s * 1e6))
  .concat([1, 2, 5, 10, 15, 30].map((min) => min * 60e6))
  .concat([1, 2, 3, 6, 12].map((hours) => hours * 3_600e6))
  .concat([1, 2, 7, 14, 30, 60].map((days) => days * 86_400e6));

/** Ticks of a time axis that stand far enough apart. */
export function timeTicks(from, to, width) {
  const least = ((to - from) / Math.max(1, width)) * 64;
  const step = STEPS.find((step) => step >= least) ?? Math.ceil(least / 86_400e6) * 86_400e6;
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}

/** A round number at or above `value`, for the top of an axis. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** A rectangle with round corners, as a path. */
export function rounded(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, Math.max(0, width), Math.max(0, height), radius);
}
