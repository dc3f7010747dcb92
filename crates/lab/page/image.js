// A run as one picture, to be saved.

import { DASHES, LETTERS, palette } from "./canvas.js";
import { clock } from "./format.js";

const [MARGIN, GAP, TITLE, LINE] = [24, 24, 26, 18];
const HEADING = "600 14px system-ui, sans-serif";
const TEXT = "13px system-ui, sans-serif";

/** All that is drawn, on one canvas, with the totals of each limit and a legend. Limits stand side by side if they do on the page. */
export function composed(record, playback, flow, tracks) {
  const scale = window.devicePixelRatio || 1;
  const blocks = tracks.map((track, n) => trackBlock(track, n));
  const { width: flowWidth, height: flowHeight } = flow.getBoundingClientRect();
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  context.font = HEADING;
  const inner = Math.max(flowWidth, context.measureText(heading(record, playback)).width, ...blocks.map(({ width }) => width));
  const rows = wrapped(blocks, inner);
  const heights = rows.map((row) => Math.max(...row.map(({ height }) => height)));
  const head = TITLE + record.limits.length * LINE + LINE;
  canvas.width = (inner + 2 * MARGIN) * scale;
  canvas.height = (2 * MARGIN + head + flowHeight + heights.reduce((sum, height) => sum + GAP + height, 0)) * scale;
  // Its size resets a canvas.
  context.scale(scale, scale);
  context.fillStyle = palette().surface;
  context.fillRect(0, 0, canvas.width, canvas.height);
  drawHead(context, record, playback);
  context.drawImage(flow, MARGIN, MARGIN + head, flowWidth, flowHeight);
  let y = MARGIN + head + flowHeight + GAP;
  rows.forEach((row, n) => {
    let x = MARGIN;
    for (const block of row) {
      block.draw(context, x, y);
      x += block.width + GAP;
    }
    y += heights[n] + GAP;
  });
  return canvas;
}

/** Blocks in rows that are not wider than `width`. */
function wrapped(blocks, width) {
  const rows = [];
  let left = 0;
  for (const block of blocks) {
    if (rows.length === 0 || block.width > left) {
      rows.push([]);
      left = width;
    }
    rows.at(-1).push(block);
    left -= block.width + GAP;
  }
  return rows;
}

function heading(record, playback) {
  const { traffic, seed, length } = record.expected;
  return `${traffic}, seed ${seed}, until ${clock(playback.time, length)}`;
}

/** The traffic, and the legend. */
function drawHead(context, record, playback) {
  const colours = palette();
  context.fillStyle = colours.ink;
  context.font = HEADING;
  context.fillText(heading(record, playback), MARGIN, MARGIN + 14);
  context.font = TEXT;
  let y = MARGIN + TITLE + 10;
  const key = (text, draw) => {
    draw();
    context.fillStyle = colours.muted;
    context.fillText(text, MARGIN + 28, y);
    y += LINE;
  };
  key("arrived", () => {
    context.fillStyle = colours.faint;
    context.fillRect(MARGIN, y - 10, 18, 11);
  });
  record.limits.forEach(({ described }, n) => key(`${LETTERS[n]}  ${described.limit}`, () => {
    context.strokeStyle = colours[`series-${n}`];
    context.lineWidth = 2.5;
    context.setLineDash(DASHES[n]);
    context.beginPath();
    context.moveTo(MARGIN, y - 4);
    context.lineTo(MARGIN + 18, y - 4);
    context.stroke();
    context.setLineDash([]);
  }));
}

/** The pictures of one limit with its name, and its totals as the page has them at this moment. */
function trackBlock(track, n) {
  const [own, chart] = [track.own, track.chart].map((part) => ({ part, box: part.getBoundingClientRect() }));
  const [, ...rows] = [...track.table.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  const table = [["", "so far", "estimate"], ...rows];
  const beside = own.box.width < chart.box.width / 2;
  const [left, top] = beside ? [own.box.width + GAP, 0] : [0, own.box.height + LINE];
  const high = beside ? Math.max(own.box.height, table.length * LINE) : top + table.length * LINE;
  return {
    width: chart.box.width,
    height: TITLE + chart.box.height + LINE + high,
    draw(context, x, y) {
      context.fillStyle = palette().ink;
      context.font = HEADING;
      context.fillText(`${LETTERS[n]}  ${track.described.limit}`, x, y + 14);
      context.drawImage(chart.part, x, y + TITLE, chart.box.width, chart.box.height);
      const below = y + TITLE + chart.box.height + LINE;
      context.drawImage(own.part, x, below, own.box.width, own.box.height);
      drawTable(context, table, x + left, x + chart.box.width, below + top);
    },
  };
}

/** Rows of a name and two numbers, between two edges. */
function drawTable(context, table, left, right, top) {
  const colours = palette();
  const middle = right - (right - left) * 0.32;
  context.font = TEXT;
  table.forEach(([name, found, thought], n) => {
    const y = top + 13 + n * LINE;
    context.textAlign = "left";
    context.fillStyle = colours.muted;
    context.fillText(name, left, y);
    context.textAlign = "right";
    context.fillText(thought, right, y);
    context.fillStyle = n === 0 ? colours.muted : colours.ink;
    context.fillText(found, middle, y);
  });
  context.textAlign = "left";
}
