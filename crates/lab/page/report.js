// A report of `tidegate replay`, opened from a file. It stays in the browser.

import { Pane, ceiling, palette } from "./canvas.js";
import { card, figure, filledList, legend } from "./cards.js";
import { copy, h } from "./dom.js";
import { count, percent, short, span } from "./format.js";
import { Pointer } from "./readout.js";

/** What a file holds: the report as JSON, by itself or in the page that `--html` writes. */
export function readReport(text) {
  const inside = /<script type="application\/json" id="tidegate-replay">(.*?)<\/script>/s.exec(text);
  const report = JSON.parse(inside ? inside[1] : text);
  if (!Array.isArray(report?.outcome?.timeline)) throw new SyntaxError("no report");
  return report;
}

const instant = (micros) => new Date(micros / 1_000).toISOString().slice(0, 19).replace("T", " ");

/** The tab on which reports are shown. `simulate` is given a limit that is to be tried, with traffic like the log's. */
export class Reports {
  constructor(place, simulate) {
    this.place = place;
    this.simulate = simulate;
    this.charts = [];
    const input = h("input", { type: "file", id: "report-file", accept: ".html,.json" });
    input.addEventListener("change", () => this.#open(input.files[0]));
    this.error = h("p", { class: "error", id: "report-error", role: "alert", hidden: true });
    input.setAttribute("aria-describedby", this.error.id);
    this.shown = h("div", { class: "board", id: "report" });
    const opening = h("section", { class: "card token drop" },
      h("h2", {}, "Open a replay"),
      h("p", { class: "hint" }, "Choose a report, or drop it here: a file that tidegate replay wrote with --html or --format json. It stays in this browser."),
      h("label", { for: input.id }, "Report"), input, this.error);
    place.replaceChildren(h("div", { class: "board" }, opening), this.shown);
    place.addEventListener("dragover", (event) => {
      event.preventDefault();
      opening.classList.add("over");
    });
    place.addEventListener("dragleave", () => opening.classList.remove("over"));
    place.addEventListener("drop", (event) => {
      event.preventDefault();
      opening.classList.remove("over");
      this.#open(event.dataTransfer.files[0]);
    });
  }

  /** Colours have changed. */
  touch() {
    for (const draw of this.charts) draw();
  }

  async #open(file) {
    if (!file) return;
    try {
      this.#show(readReport(await file.text()));
      this.error.hidden = true;
    } catch {
      const wanted = "choose one that tidegate replay wrote with --html or --format json";
      this.error.textContent = `${file.name} is no report: ${wanted}.`;
      this.error.hidden = false;
    }
  }

  #show(report) {
    this.charts = [];
    this.similar = new Map(report.suggestions.map(({ limit, similar }) => [limit, similar]));
    const { outcome, comparison, reading } = report;
    const title = `Replay of ${reading.logs.map(([name]) => name).join(", ")}`;
    const when = outcome.from === null ? "" : `${instant(outcome.from)} to ${instant(outcome.to)} UTC`;
    const parts = [h("div", {}, h("h2", { class: "title" }, title), h("p", { class: "hint" }, when))];
    if (!report.suggestions_only) {
      parts.push(...(comparison ? this.#compared(outcome, comparison) : this.#set("", outcome)));
    }
    parts.push(...report.suggestions.map((suggestion) => this.#suggestion(suggestion, report.suggestions_only)));
    const ofFuture = reading.in_future > 0 ? ` (${count(reading.in_future)} with a time in the future)` : "";
    const left = reading.malformed > 0 ? `, ${count(reading.malformed)} of them unparsable${ofFuture}` : "";
    parts.push(h("p", { class: "hint" }, `${count(reading.lines)} lines were read${left}.`));
    this.shown.replaceChildren(...parts);
    this.touch();
  }

  #compared(outcome, comparison) {
    // One scale for both charts, so that they can be compared.
    const scale = Math.max(highest(outcome.timeline), highest(comparison.new.timeline));
    return [
      figures([
        ["Requests", count(outcome.requests)],
        ["Denied by the old only", count(comparison.newly_admitted)],
        ["Denied by the new only", count(comparison.newly_denied)],
      ]),
      ...this.#changed("Who loses", comparison.losers),
      ...this.#changed("Who gains", comparison.gainers),
      h("div", { class: "half set" }, ...this.#set("Old rules: ", outcome, scale)),
      h("div", { class: "half set" }, ...this.#set("New rules: ", comparison.new, scale)),
    ];
  }

  #set(which, outcome, scale = highest(outcome.timeline)) {
    const share = (part) => (outcome.requests > 0 ? ` (${percent(part / outcome.requests)})` : "");
    const limits = outcome.limits.map(({ id, limit, mode, admitted, denied }) =>
      [id, h("code", {}, limit ?? "several"), mode, count(admitted), count(denied), this.#try(limit, this.similar.get(id))]);
    const keys = (list) => list.map(({ key, limit, denied, longest_streak, first, last }) =>
      [h("code", {}, key), limit, count(denied), count(longest_streak), instant(first), instant(last)]);
    const parts = [
      figures([
        ["Requests", count(outcome.requests)],
        ["Admitted", count(outcome.admitted) + share(outcome.admitted)],
        ["Denied", count(outcome.denied) + share(outcome.denied)],
        ["Keys limited", count(outcome.denied_keys)],
      ]),
      card(`${which}Over time`, "", legend("admitted", "denied"), this.#chart(outcome.timeline, scale)),
      card(`${which}By limit`, "", filledList(["Rule", "Limit", "Mode", "#Admitted", "#Denied", ""], limits)),
    ];
    const heads = ["Key", "Rule", "#Denied", "#In a row", "First", "Last"];
    const lists = [
      ["Keys that would have been limited most", outcome.keys],
      ["Keys that limits in shadow mode would have limited most", outcome.keys_in_shadow ?? []],
    ];
    for (const [title, list] of lists) {
      if (list.length > 0) parts.push(card(which + title, "", filledList(heads, keys(list))));
    }
    if (outcome.waits) parts.push(card(`${which}Retry-After`, "", waits(outcome.waits)));
    return parts;
  }

  #changed(title, changed) {
    if (changed.length === 0) return [];
    const rows = changed.map(({ key, limit, requests, first, last }) =>
      [h("code", {}, key), limit, count(requests), instant(first), instant(last)]);
    return [card(title, "", filledList(["Key", "Rule", "#Requests", "First", "Last"], rows))];
  }

  #suggestion(suggestion, isAlone) {
    const { limit, proposal, limited, keys, limited_keys: named, headroom, rule, similar, alternatives } = suggestion;
    const found = h("p", {}, h("code", {}, proposal), ` would have limited ${count(limited)} of ${count(keys)} keys.`);
    const room = `Half of the keys used up to ${percent(headroom.half)} of it, 90 % up to ${percent(headroom.nine_of_ten)}. `
      + "With room for twice as many requests of each key: ";
    const rows = alternatives.map((other) => [h("code", {}, other.limit), count(other.limited), this.#try(other.limit, similar)]);
    const of = named.map(({ key, requests, burst }) => [h("code", {}, key), count(requests), count(burst)]);
    const paste = h("button", { type: "button", class: "quiet small", onclick: () => copy(rule, paste) }, "Copy");
    return card(`Suggested limit for ${isAlone ? "this key" : limit}`, "",
      h("div", { class: "row" }, found, this.#try(proposal, similar)),
      of.length > 0 ? filledList(["Key that it limits", "#Requests", "#Burst needed"], of) : null,
      h("p", { class: "hint" }, room, h("code", {}, headroom.for_twice), "."),
      h("div", { class: "yaml" }, h("div", { class: "row" }, isAlone ? "As a rule" : `In place of the limit of ${limit}`, paste), h("pre", {}, rule)),
      h("details", {}, h("summary", {}, "Others that limit as few"), filledList(["Limit", "#Keys limited", ""], rows)));
  }

  /** A button that runs a limit against traffic like the log's, if that is known. */
  #try(limit, similar) {
    if (!limit || !similar) return "";
    const title = `Simulates ${limit} with traffic like that of the log`;
    return h("button", { type: "button", class: "quiet small", title, onclick: () => this.simulate(limit, similar) }, "Try it");
  }

  #chart(timeline, scale) {
    const canvas = h("canvas", { class: "pulse", role: "img", "aria-label": "Admitted and denied requests over time" });
    let pane = null;
    let pointer = null;
    const draw = () => {
      pane ??= new Pane(canvas, draw);
      pointer ??= new Pointer(canvas, draw);
      drawTimeline(pane, timeline, scale, pointer);
    };
    this.charts.push(draw);
    return canvas;
  }
}

const rate = ({ admitted, denied, seconds }) => (admitted + denied) / seconds;

/** The highest rate of a timeline. */
function highest(timeline) {
  return timeline.reduce((most, bin) => Math.max(most, rate(bin)), 0);
}

function drawTimeline(pane, timeline, most, pointer) {
  if (pane.width < 80 || timeline.length === 0) return;
  const context = pane.cleared();
  const colours = palette();
  const [left, bottom, top] = [56, pane.height - 20, 8];
  const width = pane.width - left - 8;
  const scale = ceiling(most);
  const begin = timeline[0].from;
  const length = timeline.at(-1).from + timeline.at(-1).seconds - begin;
  const x = (second) => left + ((second - begin) / length) * width;
  const tall = (requests, seconds) => (requests / seconds / scale) * (bottom - top);
  context.fillStyle = colours.muted;
  context.strokeStyle = colours.line;
  context.textAlign = "right";
  for (const share of [0, 1]) {
    const y = Math.round(bottom - share * (bottom - top)) + 0.5;
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(left + width, y);
    context.stroke();
    context.fillText(share === 0 ? "0" : `${short(scale)}/s`, left - 8, y + 4);
  }
  context.fillText(instant((begin + length) * 1e6), left + width, pane.height - 4);
  context.textAlign = "left";
  context.fillText(instant(begin * 1e6), left, pane.height - 4);
  for (const { from, seconds, admitted, denied } of timeline) {
    const [at, wide] = [x(from), Math.max(1, x(from + seconds) - x(from) - 0.5)];
    const [low, high] = [tall(admitted, seconds), tall(denied, seconds)];
    context.fillStyle = colours.accent;
    context.fillRect(at, bottom - low, wide, low);
    // Denied requests are hatched, so that they differ without colour too.
    context.fillStyle = colours.deny;
    for (let y = bottom - low - 2; y >= bottom - low - high; y -= 3) context.fillRect(at, y, wide, 2);
  }
  pane.canvas.dataset.scale = String(scale);
  const bin = timeline.find(({ from, seconds }) => pointer.x !== null && pointer.x >= x(from) && pointer.x < x(from + seconds));
  if (!bin) return;
  const { from, seconds, admitted, denied } = bin;
  const lines = [`${instant(from * 1e6)}, ${span(seconds * 1e6)}`, `${count(admitted)} admitted`, `${count(denied)} denied`];
  pointer.show(context, lines, left, left + width, top);
}

/** How long those who were denied were told to wait. */
function waits({ least, half, nine_of_ten, ninety_nine, most }) {
  const rows = [
    ["Shortest", least], ["Half up to", half], ["90 % up to", nine_of_ten], ["99 % up to", ninety_nine], ["Longest", most],
  ];
  return filledList(["Share", "#Wait"], rows.map(([name, wait]) => [name, span(wait)]));
}

function figures(numbers) {
  return h("div", { class: "card figures" }, numbers.map(([name, value]) => figure(name, h("b", {}, value))));
}
