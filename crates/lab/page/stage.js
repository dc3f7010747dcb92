// The stage of a run: charts, playback controls and view options.

import { LETTERS } from "./canvas.js";
import { chartKey } from "./cards.js";
import { byId, h, setText } from "./dom.js";
import { FlowChart } from "./flow.js";
import { clock, span } from "./format.js";
import { Own } from "./record.js";
import { Track } from "./track.js";

const PLAY = "▶";
const PAUSE = "❚❚";
/** How often numbers are written, in milliseconds: nobody reads sixty a second. */
const TELL = 100;
const VIEWS = [1, 2, 4, 10, 40, 200];

/** What is on the stage. */
export class Stage {
  constructor() {
    this.record = null;
    this.playback = null;
    this.tracks = [];
    this.dirty = true;
    this.told = 0;
    this.flow = new FlowChart(byId("flow"), () => this.touch());
    this.#buttons();
    this.#keys();
    let before = performance.now();
    const frame = (now) => {
      this.#frame(now, now - before);
      before = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** Something has changed that is drawn. */
  touch() {
    this.dirty = true;
  }

  /** Shows another run. */
  show(record, playback) {
    this.record = record;
    this.playback = playback;
    delete document.documentElement.dataset.arrivals;
    this.view = { from: 0, to: record.expected.length, isNew: true };
    const { clients, length } = record.expected;
    byId("watching").hidden = clients < 2;
    byId("watched").max = String(clients - 1);
    byId("watched").value = "0";
    this.own = new Own(record, 0);
    const named = (part) => (part === 1 ? "the whole run" : `${span(length / part)} of it`);
    byId("zoom").replaceChildren(...VIEWS.map((part) => h("option", { value: String(part) }, named(part))));
    this.flow.show(record);
    this.tracks = record.limits.map((_, limit) => new Track(record, limit, () => this.touch()));
    byId("tracks").replaceChildren(...this.tracks.map((track) => track.element));
    byId("tracks").className = this.tracks.length > 1 ? "several" : "";
    const keys = record.limits.map(({ described }, n) => chartKey(`series-${n}`, h("b", {}, LETTERS[n]), described.limit));
    byId("legend").replaceChildren(chartKey("arrived", "arrived"), ...keys);
    for (const id of ["play", "back", "forth", "latest", "scrub"]) byId(id).disabled = false;
    this.#pressed();
    this.touch();
  }

  /** All has come. From now on it is played at this speed. */
  ended(speed) {
    const { playback } = this;
    if (playback.speed === Infinity && speed !== Infinity) {
      playback.latest();
      playback.speed = speed;
    }
  }

  #frame(now, since) {
    const { record, playback } = this;
    if (!record) return;
    const wasAtEnd = playback.atEnd;
    if (playback.advance(Math.min(since, 250))) this.dirty = true;
    if (playback.atEnd && playback.playing) {
      playback.pause();
      this.#pressed();
    }
    if (!this.dirty) return;
    this.dirty = false;
    this.own.follow();
    this.#look();
    this.flow.draw(record, playback, this.view);
    for (const track of this.tracks) track.draw(playback, this.view, this.own);
    this.view.isNew = false;
    const settled = playback.atEnd && !wasAtEnd;
    if (now - this.told >= TELL || settled || !playback.playing) this.#tell(now);
    else this.dirty = true;
  }

  /** Keeps the present instant in view. */
  #look() {
    const { length } = this.record.expected;
    const width = length / Number(byId("zoom").value || 1);
    const { time } = this.playback;
    let { from } = this.view;
    if (width >= length) from = 0;
    // The view moves by pages: a still chart is readable and needs no full redraw.
    else if (time < from || time > from + width * 0.95) from = time - width * 0.25;
    from = Math.min(Math.max(0, from), length - width);
    const to = from + width;
    if (from === this.view.from && to === this.view.to) return;
    this.view = { from, to, isNew: width !== this.view.to - this.view.from };
  }

  #tell(now) {
    this.told = now;
    const { record, playback } = this;
    const { length } = record.expected;
    const text = `${clock(playback.time, length)} / ${clock(length, length)}`;
    setText(byId("clock"), text);
    const scrub = byId("scrub");
    scrub.value = String((playback.time / length) * 1_000);
    scrub.setAttribute("aria-valuetext", text);
    for (const track of this.tracks) track.tell(playback, this.own);
    if (!playback.playing) {
      const said = this.flow.describe(record, playback);
      this.flow.pane.canvas.setAttribute("aria-label", said);
      setText(byId("spoken"), said);
      for (const track of this.tracks) track.describe(playback, this.own);
    }
    document.documentElement.dataset.arrivals = String(playback.arrivals);
  }

  #pressed() {
    const { playing } = this.playback;
    const play = byId("play");
    play.textContent = playing ? PAUSE : PLAY;
    play.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.touch();
  }

  #move(act) {
    if (!this.playback) return;
    act(this.playback);
    this.#pressed();
  }

  #buttons() {
    byId("play").textContent = PLAY;
    byId("back").textContent = "◂";
    byId("forth").textContent = "▸";
    byId("latest").textContent = "▸▏";
    byId("play").addEventListener("click", () => this.toggle());
    byId("back").addEventListener("click", () => this.#move((playback) => playback.step(-1)));
    byId("forth").addEventListener("click", () => this.#move((playback) => playback.step(1)));
    byId("latest").addEventListener("click", () => this.#move((playback) => playback.latest()));
    byId("scrub").addEventListener("input", () => this.#move((playback) => {
      playback.pause();
      playback.seek((Number(byId("scrub").value) / 1_000) * this.record.expected.length);
    }));
    byId("zoom").addEventListener("change", () => this.touch());
    byId("watched").addEventListener("input", () => {
      const client = Number(byId("watched").value);
      if (!this.record || !Number.isInteger(client) || client < 0) return;
      this.own = new Own(this.record, client);
      this.touch();
    });
  }

  toggle() {
    this.#move((playback) => (playback.playing ? playback.pause() : playback.play()));
  }

  #keys() {
    document.addEventListener("keydown", (event) => {
      const busy = event.target.closest("input, select, textarea, button, [role=tab], .tab");
      if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === " ") this.toggle();
      else if (event.key === ",") this.#move((playback) => playback.step(-1));
      else if (event.key === ".") this.#move((playback) => playback.step(1));
      else return;
      event.preventDefault();
    });
  }
}
