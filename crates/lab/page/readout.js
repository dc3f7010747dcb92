// Values under the pointer: its position over a chart, and a box with what is there.

import { SMALL, palette, rounded } from "./canvas.js";

const LINE = 15;
const INSET = 8;

/** The pointer whose values are shown, if any. */
let present = null;

/** The position of the pointer over a canvas: `x` from its left, `null` if it is elsewhere. */
export class Pointer {
  /** `changed` is called when the position has changed. */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.x = null;
    for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, (event) => this.move(event.offsetX));
    // A finger leaves as soon as it is lifted: its values stay until the page is touched elsewhere.
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.move(null);
    });
  }

  move(x) {
    if (x === this.x) return;
    this.x = x;
    if (x !== null) present = this;
    delete this.canvas.dataset.readout;
    this.changed();
  }

  /** Draws the lines of a box beside the pointer, between `left` and `right`. */
  show(context, lines, left, right, top) {
    const { canvas, x } = this;
    canvas.dataset.readout = lines.join("; ");
    const colours = palette();
    context.font = SMALL;
    const width = Math.max(...lines.map((line) => context.measureText(line).width)) + 2 * INSET;
    const isRight = x + 12 + width <= right;
    const from = Math.max(left, isRight ? x + 12 : x - 12 - width);
    context.strokeStyle = colours.muted;
    context.setLineDash([]);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, top);
    context.lineTo(Math.round(x) + 0.5, canvas.clientHeight - 22);
    context.stroke();
    context.fillStyle = colours.surface;
    context.strokeStyle = colours.line;
    rounded(context, from, top, width, lines.length * LINE + 8, 5);
    context.fill();
    context.stroke();
    context.fillStyle = colours.ink;
    context.textAlign = "left";
    lines.forEach((line, n) => context.fillText(line, from + INSET, top + 15 + n * LINE));
  }
}

document.addEventListener("pointerdown", (event) => {
  if (present && event.target !== present.canvas) present.move(null);
});
