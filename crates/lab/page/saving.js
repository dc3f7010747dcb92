// Export of a run: link, CSV, PNG and rule.

import { LETTERS, palette } from "./canvas.js";
import { byId, copy, h, save } from "./dom.js";
import { clock } from "./format.js";

const OUTCOMES = ["denied", "admitted", "too large"];

/** A limit as a rule, to be pasted into a rules file. */
export function ruleText(limit) {
  const adaptive = /^(.*) adapt (\S+) on (.*)$/.exec(limit);
  if (adaptive) {
    const [, own, lowest, signals] = adaptive;
    const highest = /\d[\d_]*\/\S+/.exec(own)?.[0] ?? own;
    const adapt = `{ between: ${lowest}..${highest}, on: [${signals}] }`;
    return `rules:\n  - id: my-limit\n    limit: ${own}\n    adapt: ${adapt}\n`;
  }
  // A limit needs quotes in YAML only if it has a special character.
  const plain = /^[\w./ µ-]+$/.test(limit) && limit !== "";
  const written = plain ? limit : JSON.stringify(limit);
  return `rules:\n  - id: my-limit\n    key: address\n    limit: ${written}\n`;
}

/** All decisions, as lines of values between commas. */
export function csv(record) {
  const head = ["seconds", "client", "cost"];
  for (const { described } of record.limits) {
    const names = ["decision", "remaining", "wait_seconds", described.state[0]];
    head.push(...names.map((name) => `"${described.limit}: ${name}"`));
  }
  const lines = [head.join(",")];
  for (let n = 0; n < record.length; n += 1) {
    const line = [(record.at[n] / 1e6).toFixed(6), record.client[n], record.cost[n]];
    for (const column of record.limits) {
      const wait = (column.wait[n] / 1e6).toFixed(6);
      line.push(OUTCOMES[column.outcome[n]], column.remaining[n], wait, column.state[n * column.width]);
    }
    lines.push(line.join(","));
  }
  return `${lines.join("\n")}\n`;
}

/** All that is drawn, on one canvas. */
export function composed(record, playback, flow, tracks) {
  const colours = palette();
  const scale = window.devicePixelRatio || 1;
  const [margin, title, gap] = [24, 26, 18];
  const { traffic, seed, length } = record.expected;
  const rows = [{ text: `${traffic}, seed ${seed}, until ${clock(playback.time, length)}`, parts: [flow] }];
  tracks.forEach((track, n) => {
    const totals = record.totals(n, playback.arrivals);
    const denied = totals.denied + totals.too_large;
    const text = `${LETTERS[n]}  ${track.described.limit}: ${totals.admitted} of ${totals.arrivals} admitted, ${denied} denied`;
    rows.push({ text, parts: [track.own, track.chart] });
  });
  const boxes = rows.map(({ parts }) => parts.map((part) => part.getBoundingClientRect()));
  const heights = boxes.map((row) => Math.max(...row.map((box) => box.height)));
  const widths = boxes.map((row) => row.reduce((sum, box) => sum + box.width + gap, -gap));
  const width = Math.max(700, ...widths) + 2 * margin;
  // Every row takes the full width in the image.
  boxes.forEach((row, n) => stretch(row, width - 2 * margin - widths[n]));
  const canvas = document.createElement("canvas");
  canvas.width = width * scale;
  canvas.height = (2 * margin + heights.reduce((sum, height) => sum + height + title + gap, 0)) * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = colours.surface;
  context.fillRect(0, 0, canvas.width, canvas.height);
  let y = margin;
  rows.forEach(({ text, parts }, n) => {
    context.fillStyle = colours.ink;
    context.font = "600 14px system-ui, sans-serif";
    context.fillText(text, margin, y + 14);
    if (n === 0) legend(context, record, colours, margin + context.measureText(text).width + 2 * gap, y + 14);
    let x = margin;
    parts.forEach((part, number) => {
      const box = boxes[n][number];
      context.drawImage(part, x, y + title, box.width, box.height);
      x += box.width + gap;
    });
    y += heights[n] + title + gap;
  });
  return canvas;
}

/** Gives what is left of a row's width to its last picture. */
function stretch(row, left) {
  const last = row.at(-1);
  row[row.length - 1] = { width: last.width + left, height: last.height };
}

/** Says which colour is which limit. */
function legend(context, record, colours, x, y) {
  context.font = "13px system-ui, sans-serif";
  record.limits.forEach((_, n) => {
    context.fillStyle = colours[`series-${n}`];
    context.fillRect(x, y - 6, 18, 3);
    context.fillStyle = colours.muted;
    context.fillText(LETTERS[n], x + 24, y);
    x += 52;
  });
}

/** The buttons. `present` says what there is to save: a record, a playback, a flow chart's canvas and tracks. */
export function saving(present) {
  byId("copy-link").addEventListener("click", () => copy(location.href, byId("copy-link")));
  byId("copy-rule").addEventListener("click", () => copy(byId("rule").textContent, byId("copy-rule")));
  byId("save-csv").addEventListener("click", () => {
    const { record } = present();
    save("tidegate-run.csv", new Blob([csv(record)], { type: "text/csv" }));
  });
  byId("save-png").addEventListener("click", () => {
    const { record, playback, flow, tracks } = present();
    composed(record, playback, flow, tracks).toBlob((blob) => save("tidegate-run.png", blob), "image/png");
  });
  const choice = byId("rule-of");
  let limits = [];
  const show = () => {
    byId("rule").textContent = limits.length > 0 ? ruleText(limits[Number(choice.value)] ?? "") : "";
    byId("rule").closest(".yaml").hidden = limits.length === 0;
  };
  choice.addEventListener("change", show);
  return {
    /** The limits that can be made rules. */
    limits(texts) {
      const before = choice.value;
      limits = texts;
      choice.replaceChildren(...texts.map((text, n) => h("option", { value: String(n) }, text)));
      choice.value = Number(before) < texts.length ? before || "0" : "0";
      choice.parentElement.querySelector("label").hidden = false;
      show();
    },
    ready(is) {
      byId("save-csv").disabled = !is;
      byId("save-png").disabled = !is;
    },
  };
}
