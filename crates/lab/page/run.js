// A run: requests it, follows its stream, and announces its state.

import { toQuery } from "./address.js";
import { byId, setText } from "./dom.js";
import { count } from "./format.js";
import { Playback } from "./playback.js";
import { Record } from "./record.js";
import { follow } from "./stream.js";
import { authorization, forgetToken } from "./token.js";

/** Runs what the form says, one run at a time. */
export class Runner {
  constructor(stage, form, saving) {
    this.stage = stage;
    this.form = form;
    this.saving = saving;
    this.stream = null;
    byId("stop").addEventListener("click", () => this.stop("Stopped. What has come so far stays."));
  }

  get record() {
    return this.stage.record;
  }

  /** Runs some settings. `whole`: as fast as it comes; the speed that was chosen is for playing it afterwards. */
  start(settings, whole = false) {
    this.stop(null);
    this.#problem(null);
    this.#busy(true);
    this.#state("connecting", "Asking for the run …");
    const name = settings.store === "redis" ? `&run=${crypto.getRandomValues(new Uint32Array(4)).join("")}` : "";
    const speed = settings.speed === "max" ? Infinity : Number(settings.speed);
    let record = null;
    let lost = false;
    const asked = whole && settings.store === "memory" ? { ...settings, speed: "max" } : settings;
    this.chosen = speed;
    this.stream = follow(`run?${toQuery(asked)}${name}`, {
      headers: authorization(),
      opened: () => {
        if (lost) this.#state("running", "The connection is back: the run continues where it stopped.");
        lost = false;
      },
      event: (kind, data) => {
        switch (kind) {
          case "expect":
            record = new Record(data);
            this.playback = new Playback(record, asked === settings ? speed : Infinity);
            this.stage.show(record, this.playback);
            this.saving.ready(true);
            this.saving.limits(data.limits.map(({ limit }) => limit));
            this.#state("running", `Running: ${data.traffic}, seed ${data.seed}.`);
            break;
          case "decisions":
            record.append(data);
            this.stage.touch();
            break;
          case "end":
            this.#ended(record, data);
            break;
          case "failed":
            this.stop(null);
            this.#problem(`The store could not decide, and the run has ended: ${data.detail}.`);
            break;
        }
      },
      lost: () => {
        lost = true;
        this.#state("lost", "The connection is lost. Reconnecting; the results so far are kept.");
      },
      refused: (problem, status) => this.#refused(problem, status),
    });
  }

  /** Ends the run, if there is one. */
  stop(text) {
    this.stream?.stop();
    this.stream = null;
    this.#busy(false);
    if (this.playback) this.playback.ended = true;
    if (text !== null) this.#state("stopped", text);
  }

  #ended(record, { totals, cut }) {
    this.stop(null);
    // The page's totals must equal the engine's.
    const counted = totals.every((engine, n) => {
      const own = record.totals(n, record.length);
      return Object.entries(engine).every(([name, value]) => own[name] === value);
    });
    const text = cut ? "Cut off here: the lab draws no more than this." : "All decisions are here.";
    this.#state("ended", `${text} ${count(record.length)} requests, ${count(record.length * totals.length)} decisions.`);
    this.stage.ended(this.chosen);
    document.documentElement.dataset.counted = String(counted);
    if (!counted) this.#problem("The counts of this page differ from those of the engine. Please report this.");
    this.stage.touch();
  }

  #refused(problem, status) {
    this.stream = null;
    this.#busy(false);
    if (status === 401) {
      forgetToken();
      this.#state("refused", "");
      this.#problem("The server wants its token before it runs anything: give it on the tab “Live”.");
      return;
    }
    const left = this.form.errors(problem.errors ?? []);
    // An invalid limit has no rule.
    if (problem.errors?.some(({ field }) => field.startsWith("limit"))) this.saving.limits([]);
    const where = problem.errors ? ": see the fields that are marked" : "";
    this.#state("refused", `The run was not started${where}.`);
    if (!problem.errors) this.#problem(problem.detail);
    else if (left.length > 0) this.#problem(left.join(" "));
  }

  #busy(is) {
    byId("stop").disabled = !is;
  }

  #problem(text) {
    const place = byId("problem");
    place.hidden = text === null;
    place.textContent = text ?? "";
  }

  #state(state, text) {
    byId("status").dataset.state = state;
    setText(byId("status"), text);
  }
}
