// Drawings of an algorithm's state: tokens in a bucket, water, a queue, windows, entries, slots.

import { STRONG, palette, rounded } from "./canvas.js";
import { short, span, trimmed } from "./format.js";
import { ALLOWED } from "./record.js";

/** Draws how a client stands at an instant. */
export function drawState(pane, standing, counted, time, series) {
  const context = pane.cleared();
  const colours = palette();
  const ink = { ...colours, own: colours[`series-${series}`] };
  const box = { x: 14, y: 12, width: pane.width - 28, height: pane.height - 24 };
  if (box.width < 20 || box.height < 20) return;
  const level = standing.level(counted, time);
  switch (standing.kind) {
    case "tokens":
      return bucket(context, box, ink, level, standing.top, "tokens");
    case "server":
      return server(context, box, ink, level, standing, counted);
    case "water":
      return water(context, box, ink, level, standing.top);
    case "queue":
      return queue(context, box, ink, level, standing);
    case "ahead":
      return tat(context, box, ink, level, standing);
    case "estimate":
      return sliding(context, box, ink, standing, counted, time, level);
    default:
      switch (standing.described.algorithm) {
        case "fixed":
          // A remote store reports only the cost spent.
          if (standing.column.width < 2) return gauge(context, box, ink, level, standing.top);
          return fixed(context, box, ink, standing, counted, time, level);
        case "log":
          return log(context, box, ink, standing, counted, time, level);
        case "concurrent":
          return slots(context, box, ink, level, standing);
        default:
          return gauge(context, box, ink, level, standing.top);
      }
  }
}

function label(context, ink, box, strong, faint) {
  context.textAlign = "center";
  context.fillStyle = ink.ink;
  context.font = STRONG;
  context.fillText(strong, box.x + box.width / 2, box.y + box.height - 16);
  context.fillStyle = ink.muted;
  context.font = "11px system-ui, sans-serif";
  context.fillText(faint, box.x + box.width / 2, box.y + box.height - 1);
}

/** The outline of a vessel that is open above; `hole` leaves a gap at the bottom. */
function vessel(context, ink, box, hole) {
  const width = Math.min(box.width, 104);
  const inner = { x: box.x + (box.width - width) / 2, y: box.y + 2, width, height: box.height - 40 };
  const { x, y, height } = inner;
  const middle = x + width / 2;
  context.strokeStyle = ink.muted;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x + 5, y + height - 6);
  context.quadraticCurveTo(x + 6, y + height, x + 12, y + height);
  if (hole) {
    context.lineTo(middle - 5, y + height);
    context.moveTo(middle + 5, y + height);
  }
  context.lineTo(x + width - 12, y + height);
  context.quadraticCurveTo(x + width - 6, y + height, x + width - 5, y + height - 6);
  context.lineTo(x + width, y);
  context.stroke();
  return inner;
}

function filled(context, inner, share) {
  const { x, y, width, height } = inner;
  context.save();
  context.beginPath();
  context.moveTo(x + 3, y);
  context.lineTo(x + 7, y + height - 7);
  context.quadraticCurveTo(x + 8, y + height - 2, x + 13, y + height - 2);
  context.lineTo(x + width - 13, y + height - 2);
  context.quadraticCurveTo(x + width - 8, y + height - 2, x + width - 7, y + height - 7);
  context.lineTo(x + width - 3, y);
  context.closePath();
  context.clip();
  const tall = (height - 2) * Math.min(1, Math.max(0, share));
  context.fillRect(x, y + height - 2 - tall, width, tall);
  context.restore();
  return y + height - 2 - tall;
}

/** Few tokens are drawn one by one, many as a filling. */
function bucket(context, box, ink, level, top, unit) {
  const inner = vessel(context, ink, box, false);
  context.fillStyle = ink.own;
  if (top <= 60) {
    const { across, size } = arranged(top, inner.width - 22, inner.height - 6, 24);
    const left = inner.x + (inner.width - across * size) / 2;
    for (let token = 0; token < top; token += 1) {
      const share = Math.min(1, Math.max(0, level - token));
      const x = left + (token % across) * size + size / 2;
      const y = inner.y + inner.height - 4 - (Math.floor(token / across) + 0.5) * size;
      context.globalAlpha = 0.14;
      context.beginPath();
      context.arc(x, y, size * 0.4, 0, 7);
      context.fill();
      if (share > 0) {
        context.globalAlpha = share < 1 ? 0.55 : 1;
        context.beginPath();
        context.arc(x, y, size * 0.4 * Math.sqrt(share), 0, 7);
        context.fill();
      }
    }
    context.globalAlpha = 1;
  } else {
    context.globalAlpha = 0.85;
    filled(context, inner, level / top);
    context.globalAlpha = 1;
  }
  label(context, ink, box, short(level), `of ${short(top)} ${unit}`);
}

/** How many of `number` things to put side by side so that they become as large as they can. */
function arranged(number, width, height, largest) {
  let best = { across: 1, rows: number, size: 0 };
  for (let across = 1; across <= number; across += 1) {
    const rows = Math.ceil(number / across);
    const size = Math.min(width / across, height / rows, largest);
    if (size > best.size) best = { across, rows, size };
  }
  return best;
}

function water(context, box, ink, level, top) {
  const inner = vessel(context, ink, box, true);
  context.fillStyle = ink.own;
  context.globalAlpha = 0.85;
  const surface = filled(context, inner, level / top);
  context.globalAlpha = 1;
  if (level > 0) {
    const middle = inner.x + inner.width / 2;
    const bottom = inner.y + inner.height;
    for (const drop of [4, 11]) {
      context.beginPath();
      context.arc(middle, bottom + drop, 2, 0, 7);
      context.fill();
    }
    context.strokeStyle = ink.own;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(inner.x + 8, surface + 0.5);
    context.lineTo(inner.x + inner.width - 8, surface + 0.5);
    context.stroke();
  }
  label(context, ink, box, short(level), `of ${short(top)}, leaking`);
}

/** The requests in a server, and the limit before it. */
function server(context, box, ink, level, standing, counted) {
  const { workers, highest } = standing.described.server;
  const limit = standing.present(counted);
  const bar = (y, share, colour) => {
    rounded(context, box.x, y, box.width, 18, 5);
    context.fillStyle = colour;
    context.globalAlpha = 0.14;
    context.fill();
    context.globalAlpha = 0.9;
    rounded(context, box.x, y, box.width * Math.min(1, share), 18, 5);
    context.fill();
    context.globalAlpha = 1;
  };
  const middle = box.y + (box.height - 40) / 2;
  bar(middle - 24, limit / ((standing.limitsInFlight ? standing.top : highest) || 1), ink.ink);
  bar(middle + 6, level / standing.top, ink.own);
  const waiting = Math.max(0, level - workers);
  const most = standing.limitsInFlight ? " in flight at most" : "/s admitted at most";
  label(context, ink, box, `${short(limit)}${most}`, `${short(waiting)} wait for ${workers} workers`);
}

/** Those who wait, the next to go at the left. */
function queue(context, box, ink, level, standing) {
  const top = standing.top;
  const across = Math.min(10, top);
  const rows = Math.min(5, Math.ceil(Math.min(top, 50) / across));
  const size = Math.min(box.width / (across + 1.5), (box.height - 42) / rows);
  const shown = across * rows;
  const scale = top / shown;
  const left = box.x + (box.width - across * size) / 2 + size / 2;
  for (let place = 0; place < shown; place += 1) {
    const share = Math.min(1, Math.max(0, level / scale - place));
    const x = left + (place % across) * size;
    const y = box.y + 4 + Math.floor(place / across) * size;
    rounded(context, x + 1.5, y + 1.5, size - 3, size - 3, 3);
    context.fillStyle = ink.own;
    context.globalAlpha = 0.12;
    context.fill();
    if (share > 0) {
      context.globalAlpha = 0.3 + 0.7 * share;
      context.fill();
    }
  }
  context.globalAlpha = 1;
  context.strokeStyle = ink.muted;
  context.lineWidth = 1.5;
  const [x, y] = [left - 4, box.y + 4 + size / 2];
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x - size * 0.6, y);
  context.lineTo(x - size * 0.6 + 4, y - 3);
  context.moveTo(x - size * 0.6, y);
  context.lineTo(x - size * 0.6 + 4, y + 3);
  context.stroke();
  const each = 1 / standing.perMicro;
  label(context, ink, box, `${short(level)} waiting`, `of ${short(top)}, one goes each ${span(each)}`);
}

/** The theoretical arrival time, on a line that begins now. */
function tat(context, box, ink, ahead, standing) {
  const y = box.y + (box.height - 40) / 2 + 8;
  const width = box.width - 16;
  const left = box.x + 8;
  const at = (micros) => left + (Math.min(micros, standing.top * 1.15) / (standing.top * 1.15)) * width;
  context.fillStyle = ink.own;
  context.globalAlpha = 0.16;
  context.fillRect(at(0), y - 13, at(standing.top) - at(0), 26);
  context.globalAlpha = 0.85;
  context.fillRect(at(0), y - 13, at(ahead) - at(0), 26);
  context.globalAlpha = 1;
  context.strokeStyle = ink.muted;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(left + width, y);
  context.stroke();
  const mark = (micros, text, above, align) => {
    context.strokeStyle = ink.ink;
    context.beginPath();
    context.moveTo(at(micros), y - 19);
    context.lineTo(at(micros), y + 19);
    context.stroke();
    context.fillStyle = ink.muted;
    context.textAlign = align;
    context.fillText(text, at(micros), above ? y - 24 : y + 31);
  };
  mark(0, "now", false, "left");
  mark(standing.top, "burst", false, "center");
  mark(ahead, "TAT", true, ahead > standing.top * 0.9 ? "right" : ahead < standing.top * 0.1 ? "left" : "center");
  label(context, ink, box, ahead > 0 ? `${span(ahead)} ahead` : "not ahead", `of ${span(standing.top)}, ${span(1 / standing.perMicro)} a request`);
}

function gauge(context, box, ink, level, top) {
  const height = 26;
  const y = box.y + (box.height - 40 - height) / 2;
  rounded(context, box.x, y, box.width, height, 5);
  context.fillStyle = ink.own;
  context.globalAlpha = 0.14;
  context.fill();
  context.globalAlpha = 0.9;
  rounded(context, box.x, y, box.width * Math.min(1, level / (top || 1)), height, 5);
  context.fill();
  context.globalAlpha = 1;
  label(context, ink, box, short(level), `of ${short(top)} spent`);
}

/** The window that goes by, and its counter. */
function fixed(context, box, ink, standing, counted, time, level) {
  const end = standing.windowEnd(counted, time);
  const { window } = standing.described;
  const passed = Math.min(1, Math.max(0, 1 - (end - time) / window));
  const tall = box.height - 44;
  context.fillStyle = ink.own;
  context.globalAlpha = 0.1;
  context.fillRect(box.x, box.y, box.width, tall);
  context.globalAlpha = 0.85;
  const share = Math.min(1, level / (standing.top || 1));
  context.fillRect(box.x, box.y + tall * (1 - share), box.width * passed, tall * share);
  context.globalAlpha = 1;
  context.strokeStyle = ink.muted;
  context.lineWidth = 1.5;
  context.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, tall);
  context.strokeStyle = ink.ink;
  context.beginPath();
  context.moveTo(box.x + box.width * passed, box.y - 4);
  context.lineTo(box.x + box.width * passed, box.y + tall + 4);
  context.stroke();
  label(context, ink, box, `${short(level)} of ${short(standing.top)}`, `afresh in ${span(end - time)}`);
}

/** Counters side by side, and the window that slides over them. */
function sliding(context, box, ink, standing, counted, time, level) {
  const counters = standing.counters(counted, time);
  if (!counters) return gauge(context, box, ink, level, standing.top);
  const { spent, covered } = counters;
  const tall = box.height - 44;
  const width = box.width / spent.length;
  const most = Math.max(1, ...spent, standing.top / Math.max(1, spent.length - 1));
  spent.forEach((one, part) => {
    const height = (one / most) * (tall - 6);
    const x = box.x + part * width;
    context.fillStyle = ink.own;
    context.globalAlpha = part === 0 ? 0.25 : 0.85;
    context.fillRect(x + 1, box.y + tall - height, width - 2, height);
    // The share of the oldest part that still counts.
    if (part === 0) {
      context.globalAlpha = 0.85;
      context.fillRect(x + 1 + (width - 2) * (1 - covered), box.y + tall - height, (width - 2) * covered, height);
    }
  });
  context.globalAlpha = 1;
  context.strokeStyle = ink.line;
  context.beginPath();
  context.moveTo(box.x, box.y + tall + 0.5);
  context.lineTo(box.x + box.width, box.y + tall + 0.5);
  context.stroke();
  context.strokeStyle = ink.ink;
  context.lineWidth = 1.5;
  const left = box.x + width * (1 - covered);
  context.strokeRect(left, box.y, width * (spent.length - 1), tall + 3);
  const counts = `oldest sub-window counts ${trimmed(covered * 100, 0)} %`;
  label(context, ink, box, `about ${short(level)} of ${short(standing.top)}`, counts);
}

/** The entries of the window that ends now. */
function log(context, box, ink, standing, counted, time, level) {
  const { own, limit } = standing;
  const { window } = standing.described;
  const tall = box.height - 44;
  const { first } = standing.entries(counted, time);
  context.fillStyle = ink.own;
  context.globalAlpha = 0.1;
  context.fillRect(box.x, box.y, box.width, tall);
  const outcome = standing.record.limits[limit].outcome;
  context.globalAlpha = counted - first > 200 ? 0.35 : 0.9;
  for (let entry = first; entry < counted; entry += 1) {
    if (outcome[own.number[entry]] !== ALLOWED) continue;
    const x = box.x + box.width * (1 - (time - own.at[entry]) / window);
    context.fillRect(x - 1, box.y + 5, 2, tall - 10);
  }
  context.globalAlpha = 1;
  context.strokeStyle = ink.muted;
  context.lineWidth = 1.5;
  context.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, tall);
  label(context, ink, box, `${short(level)} of ${short(standing.top)}`, `in the last ${span(window)}`);
}

function slots(context, box, ink, level, standing) {
  const top = standing.top;
  if (top > 60) return gauge(context, box, ink, level, top);
  if (top === 0) return label(context, ink, box, "closed", "no slots at all");
  const { across, rows, size } = arranged(top, box.width, box.height - 44, 44);
  const left = box.x + (box.width - across * size) / 2;
  const above = box.y + (box.height - 44 - rows * size) / 2;
  for (let slot = 0; slot < top; slot += 1) {
    const [x, y] = [left + (slot % across) * size, above + Math.floor(slot / across) * size];
    rounded(context, x + 3, y + 3, size - 6, size - 6, 5);
    context.fillStyle = ink.own;
    context.globalAlpha = slot < level ? 0.9 : 0.1;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = ink.muted;
    context.lineWidth = 1;
    context.stroke();
  }
  label(context, ink, box, `${short(level)} held`, `of ${short(top)} slots`);
}
