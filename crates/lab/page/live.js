// The live view of a running server, from the admin listener's stream.

import { Pane, ceiling, palette } from "./canvas.js";
import { card, figure, legend, list, noRows } from "./cards.js";
import { h, setText } from "./dom.js";
import { count, percent, short, span, timeOfDay } from "./format.js";
import { COLUMNS, History } from "./history.js";
import { Operating } from "./operate.js";
import { Pointer } from "./readout.js";
import { follow } from "./stream.js";
import { authorization, forgetToken, keepToken, token } from "./token.js";

/** The spans that the chart can show, in seconds. */
const SPANS = [[120, "2 minutes"], [900, "15 minutes"], [3_600, "1 hour"]];
/** How many denials are listed. */
const LISTED = 100;
/** How many keys are listed. */
const KEYS = 8;
/** The rule of keys that bring their limit with each command, so that their headroom is not known here. */
const INLINE = "@cl.throttle";
const FIGURES = ["Allowed", "Denied", "Denied share", "Store", "Room for keys", "Generation of rules"];
const RULE_HEADS = [
  "Rule", "Mode", "#Allowed /s", "#Denied /s", "#Would deny /s", "#Denied so far", "Last two minutes", "Switch",
];

/** The live view. */
export class Live {
  constructor(place) {
    this.place = place;
    this.isOpen = false;
    this.history = new History();
    this.seconds = SPANS[0][0];
    this.#forget();
  }

  #forget() {
    this.denials = [];
    this.before = null;
  }

  open() {
    if (this.isOpen) return;
    this.isOpen = true;
    if (token()) this.#follow();
    else this.#ask(null);
  }

  close() {
    this.isOpen = false;
    this.stream?.stop();
    this.stream = null;
  }

  /** Colours have changed. */
  touch() {
    if (this.pane) this.#draw();
  }

  #ask(problem) {
    const field = h("input", { type: "password", id: "token", autocomplete: "off", "aria-describedby": "token-error" });
    const error = h("p", { class: "error", id: "token-error", hidden: !problem }, problem ?? "");
    if (problem) field.setAttribute("aria-invalid", "true");
    const look = (event) => {
      event.preventDefault();
      if (field.value.trim() === "") return;
      keepToken(field.value.trim());
      this.#follow();
    };
    const about = "The value of admin.token, or the token that the server printed when it started. It stays in this tab.";
    const form = h("form", { class: "card token", onsubmit: look },
      h("h2", {}, "The server's token"),
      h("p", { class: "hint" }, about),
      h("label", { for: "token" }, "Token"), field, error,
      h("button", { class: "primary" }, "Connect"));
    this.place.replaceChildren(form);
    if (problem) field.focus();
  }

  #follow() {
    this.#forget();
    this.#build();
    this.stream?.stop();
    this.#state("connecting", "Connecting …");
    this.stream = follow("../v1/stream?most=50", {
      headers: authorization(),
      silence: 6_000,
      opened: () => {
        this.#state("running", "Live.");
        this.#recall();
      },
      event: (kind, view) => {
        if (kind === "view") this.#see(view);
      },
      lost: () => {
        this.before = null;
        this.#state("lost", "The server does not respond. Trying again; the numbers are the last known ones.");
      },
      refused: (problem, status) => {
        this.stream = null;
        this.pane = null;
        if (status === 401) {
          forgetToken();
          this.#ask("The server does not accept this token.");
        } else {
          this.#state("refused", problem.detail);
        }
      },
    });
  }

  /** What the server has decided while this page was not connected. */
  async #recall() {
    try {
      const response = await fetch("../v1/history", { headers: authorization(), cache: "no-store" });
      if (!response.ok) return;
      this.history.fill((await response.json()).samples);
      this.touch();
    } catch (error) {
      // The network's errors are told by the stream, which is asked again for its history when it is back.
      if (!(error instanceof TypeError) && error.name !== "AbortError") throw error;
    }
  }

  #build() {
    this.status = h("div", { class: "status", id: "live-status", role: "status" });
    this.banner = h("div", { class: "card banner", id: "switched", role: "status", hidden: true });
    this.figures = Object.fromEntries(FIGURES.map((name) => [name, h("b", {}, "–")]));
    const canvas = h("canvas", { class: "pulse", role: "img", "aria-label": "Decisions a second" });
    this.rules = h("tbody");
    this.traffic = h("tbody");
    this.denied = h("tbody");
    this.feed = h("tbody");
    this.called = h("tbody");
    this.tier = h("p", { class: "hint", id: "tier" });
    this.redis = card("Calls to Redis", "", this.tier, list(["Key", "Rule", "#Calls /s", "Share", "State"], this.called));
    this.redis.hidden = true;
    this.shares = h("tbody");
    this.confirmed = h("p", { class: "hint", id: "region" });
    this.region = card("Region", "", this.confirmed, list(["Rule", "#Share", "#Floor", "#Parked", "#Demand /s"], this.shares));
    this.region.hidden = true;
    this.operating = new Operating();
    this.rows = new Map();
    this.silence = noRows(8, "No rule has matched a request yet.");
    const board = h("div", { class: "board" },
      this.status,
      this.banner,
      h("div", { class: "card figures" }, FIGURES.map((name) => figure(name, this.figures[name]))),
      card("Decisions a second", "", this.#span(), legend("allowed", "denied"), canvas),
      card("Rules", "", legend("allowed", "denied, also in shadow mode"), list(RULE_HEADS, this.rules, "scroll named")),
      card("Busiest keys", "half", list(["Key", "Rule", "#Requests", "Headroom"], this.traffic)),
      card("Most denied keys", "half", list(["Key", "Rule", "#Denials", "Share"], this.denied)),
      this.redis,
      this.region,
      card("Recent denials (sampled)", "half", list(["At (UTC)", "Rule", "Key", "Retry after"], this.feed, "feed")),
      card("Operate", "half", this.operating.element));
    this.place.replaceChildren(board);
    this.pane = new Pane(canvas, () => this.#draw());
    this.pointer = new Pointer(canvas, () => this.#draw());
    this.canvas = canvas;
  }

  /** The choice of the span. */
  #span() {
    const choose = (event) => {
      this.seconds = Number(event.target.value);
      this.#draw();
    };
    const option = ([seconds, text]) => h("option", { value: String(seconds), selected: seconds === this.seconds }, text);
    const field = h("select", { id: "span", onchange: choose }, SPANS.map(option));
    return h("p", { class: "hint" }, h("label", { for: "span" }, "Last "), field);
  }

  #state(state, text) {
    this.status.dataset.state = state;
    setText(this.status, text);
  }

  #see(view) {
    const { before } = this;
    const seconds = before ? Math.max(0.2, (view.at_ms - before.at_ms) / 1_000) : null;
    const gained = (of, now, then) => (seconds === null ? 0 : Math.max(0, of(now) - of(then)) / seconds);
    const known = new Map((before?.rules ?? []).map((rule) => [rule.rule, rule]));
    const rates = view.rules.map((rule) => {
      const then = known.get(rule.rule) ?? rule;
      return {
        ...rule,
        allowedRate: gained((rule) => rule.allowed + rule.shadow_allowed, rule, then),
        deniedRate: gained((rule) => rule.denied, rule, then),
        shadowRate: gained((rule) => rule.shadow_denied, rule, then),
      };
    });
    const then = before?.requests ?? view.requests;
    const allowed = gained((requests) => requests.allowed, view.requests, then);
    const denied = gained((requests) => requests.denied + requests.refused, view.requests, then);
    if (before) {
      const rules = new Map(rates.map((rule) => [rule.rule, [rule.allowedRate, rule.deniedRate + rule.shadowRate]]));
      this.history.push({ at: view.at_ms, seconds, allowed, denied, rules });
    }
    const reload = view.reload;
    if (reload?.problem && reload.at_ms !== before?.reload?.at_ms) {
      this.operating.note(`The rules files have errors: the previous rules stay in force.\n${reload.problem}`, true, "reload");
    }
    if (before && before.generation !== view.generation) {
      this.operating.note(`Generation ${view.generation} of the rules is in force.`, false);
    }
    this.before = view;
    this.#figures(view, allowed, denied);
    this.#rules(view, rates);
    this.#switched(view.switched ?? []);
    this.#keys(view);
    this.#calls(view, before);
    this.#shares(view.region ?? null);
    this.denials = [...view.denials.slice().reverse(), ...this.denials].slice(0, LISTED);
    this.#feed();
    this.#draw();
  }

  #figures(view, allowed, denied) {
    const set = (name, text, bad = false) => {
      setText(this.figures[name], text);
      this.figures[name].parentElement.classList.toggle("bad", bad);
    };
    set("Allowed", `${short(allowed)}/s`);
    set("Denied", `${short(denied)}/s`);
    set("Denied share", allowed + denied > 0 ? percent(denied / (allowed + denied)) : "–");
    set("Store", view.store.healthy ? view.store.kind : `${view.store.kind}: unavailable`, !view.store.healthy);
    this.figures.Store.title = view.store.trouble ?? "";
    const keys = view.store.keys;
    set("Room for keys", keys ? percent(1 - keys[0] / keys[1]) : "–", keys !== null && keys[0] / keys[1] > 0.9);
    set("Generation of rules", String(view.generation));
  }

  /** Rows stay where they are as long as they can: somebody may be choosing in one of them. */
  #rules(view, rates) {
    for (const rule of rates) {
      if (!this.rows.has(rule.rule)) this.rows.set(rule.rule, this.#row(rule));
      const { mode, numbers, spark, lacking } = this.rows.get(rule.rule);
      setText(mode, rule.mode ?? "–");
      mode.className = `tag ${rule.mode ?? ""}`;
      // A global key: all clients share the limit.
      const keyless = rule.without_key > 0 ? ` ${count(rule.without_key)} without key` : "";
      setText(lacking, keyless + (rule.rate ? ` at ${rule.rate.present} of ${rule.rate.highest}` : ""));
      const rates = [rule.allowedRate, rule.deniedRate, rule.shadowRate].map(short);
      const shown = [...rates, count(rule.denied + rule.shadow_denied)];
      numbers.forEach((cell, n) => setText(cell, shown[n]));
      this.#spark(spark, rule.rule);
    }
    const wanted = rates.length > 0 ? rates.map(({ rule }) => this.rows.get(rule).element) : [this.silence];
    const { children } = this.rules;
    const changed = wanted.length !== children.length || wanted.some((row, n) => row !== children[n]);
    if (changed && !this.rules.contains(document.activeElement)) this.rules.replaceChildren(...wanted);
  }

  /** What is switched, for as long as it is: nobody should have to look for it. */
  #switched(switched) {
    const until = (seconds) => (seconds === null ? "until it is taken back" : `until ${moment(seconds * 1_000)}`);
    const said = switched.map(({ rule, mode, until: end }) => `${rule ?? "all rules"} to ${mode}, ${until(end ?? null)}`);
    this.banner.hidden = said.length === 0;
    this.banner.classList.toggle("off", switched.some(({ rule, mode }) => !rule && mode !== "enforce"));
    setText(this.banner, said.length > 0 ? `Switched: ${said.join("; ")}.` : "");
  }

  #row({ rule, of }) {
    const whole = of ?? rule;
    const limits = () => (this.before?.rules ?? []).filter((row) => (row.of ?? row.rule) === whole).map((row) => row.rule);
    const mode = h("span");
    const numbers = [0, 1, 2, 3].map(() => h("td", { class: "number" }));
    const label = `Decisions of ${rule} in the last two minutes`;
    const spark = h("canvas", { class: "spark", role: "img", "aria-label": label });
    const lacking = h("small");
    const cells = [h("td", {}, h("code", {}, rule), lacking), h("td", {}, mode)];
    const others = [spark, this.operating.switchFor(whole, { limits: () => (of ? limits() : []) })].map((content) => h("td", {}, content));
    const element = h("tr", { "data-rule": rule }, cells, numbers, others);
    return { element, mode, numbers, spark, lacking };
  }

  #keys(view) {
    const traffic = view.traffic.keys.slice(0, KEYS);
    const denied = view.denied.keys.slice(0, KEYS);
    this.operating.peek(traffic);
    const row = ({ key, rule, count: times }, last) => h("tr", {},
      h("td", {}, h("code", {}, shown(key))), h("td", {}, rule), h("td", { class: "number" }, count(times)), h("td", {}, last));
    const room = (top) => (top.rule === INLINE ? "limit in each command" : headroom(this.operating.room(top)));
    const busy = traffic.map((top) => row(top, room(top)));
    const refused = denied.map((top) => row(top, meter(top.count / Math.max(1, view.denied.total), true)));
    this.traffic.replaceChildren(...(busy.length > 0 ? busy : [noRows(4, "No recent requests.")]));
    this.denied.replaceChildren(...(refused.length > 0 ? refused : [noRows(4, "No recent denials.")]));
  }

  /** Where requests are decided, and the keys that Redis is called for all the same. */
  #calls({ store, store_keys: called }, before) {
    this.redis.hidden = !store.tier;
    if (!store.tier || !called) return;
    const then = before?.store.tier ?? store.tier;
    const grown = (name) => Math.max(0, store.tier[name] - then[name]);
    const decisions = grown("by_redis") + grown("by_memory") + grown("by_lease");
    const calls = grown("by_redis") + grown("lease_calls");
    const held = `${count(store.tier.cost_held)} held of ${count(store.tier.keys_held)} leased keys.`;
    const rates = decisions > 0
      ? `Leases decide ${percent(grown("by_lease") / decisions)} of requests, remembered denials ${percent(grown("by_memory") / decisions)}: `
        + `${(calls / decisions).toFixed(3)} calls a decision. `
      : "";
    setText(this.tier, rates + held);
    const rows = called.keys.slice(0, KEYS).map(({ key, rule, count: times, hot, leased }) => h("tr", { "data-hot": String(hot ?? false) },
      h("td", {}, h("code", {}, shown(key))), h("td", {}, rule),
      h("td", { class: "number" }, short(times / called.seconds)),
      h("td", {}, meter(times / Math.max(1, called.total), hot ?? false)),
      h("td", {}, [hot ? "hot" : null, leased ? "leased" : null].filter(Boolean).join(", "))));
    this.called.replaceChildren(...(rows.length > 0 ? rows : [noRows(5, "No recent calls.")]));
  }

  /** The shares of the server's region, and those on their way to others. */
  #shares(own) {
    this.region.hidden = own === null;
    if (own === null) return;
    const state = own.confirmed ? `${own.region}, record ${own.version}.` : `${own.region}: unconfirmed, so the floor applies.`;
    const parked = own.outgoing.map(({ to, rule, share }) => ` ${share}${rule ? ` of ${rule}` : ""} on the way to ${to}.`);
    setText(this.confirmed, state + parked.join(""));
    const rows = own.shares.map(({ rule, share, floor, parked: away, demand }) => h("tr", {},
      h("td", {}, rule === "" ? "all rules" : h("code", {}, rule)),
      [share, floor, away, count(demand)].map((text) => h("td", { class: "number" }, text))));
    this.shares.replaceChildren(...(rows.length > 0 ? rows : [noRows(5, "No record of this region was read.")]));
  }

  #feed() {
    const rows = this.denials.map(({ at_ms, rule, key, retry_after_ms, mode }) => h("tr", {},
      h("td", {}, timeOfDay(at_ms)),
      h("td", {}, rule, mode === "shadow" ? h("span", { class: "tag shadow" }, "shadow") : null),
      h("td", {}, h("code", {}, shown(key))),
      h("td", {}, retry_after_ms === null ? "never" : span(retry_after_ms * 1_000))));
    this.feed.replaceChildren(...(rows.length > 0 ? rows : [noRows(4, "No denials since this page was opened.")]));
  }

  #draw() {
    const { pane, seconds } = this;
    if (!pane || pane.width === 0) return;
    const context = pane.cleared();
    const colours = palette();
    const [left, bottom, top] = [52, pane.height - 20, 8];
    const width = pane.width - left - 8;
    const columns = this.history.columns(seconds);
    const scale = ceiling(columns.reduce((most, column) => Math.max(most, column ? column.allowed + column.denied : 0), 0));
    const y = (value) => bottom - (value / scale) * (bottom - top);
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const at = Math.round(y(share * scale)) + 0.5;
      context.strokeStyle = colours.line;
      context.beginPath();
      context.moveTo(left, at);
      context.lineTo(left + width, at);
      context.stroke();
      context.fillStyle = colours.muted;
      context.fillText(share === 0 ? "0" : `${short(scale * share)}/s`, left - 8, at + 4);
    }
    context.textAlign = "left";
    context.fillText(seconds > 120 ? `${seconds / 60} min ago` : `${seconds} s ago`, left, pane.height - 4);
    context.textAlign = "right";
    context.fillText("now", left + width, pane.height - 4);
    const bar = width / COLUMNS;
    columns.forEach((column, n) => {
      if (!column) return;
      const { allowed, denied } = column;
      const x = left + n * bar;
      context.fillStyle = colours.accent;
      context.fillRect(x, y(allowed), bar - 1, bottom - y(allowed));
      // Denied requests are hatched, so that they differ without colour too.
      context.fillStyle = colours.deny;
      const [from, to] = [y(allowed + denied), y(allowed)];
      for (let line = to - 2; line >= from; line -= 3) context.fillRect(x, line, bar - 1, 2);
    });
    const pointed = Math.floor((this.pointer.x - left) / bar);
    if (this.pointer.x !== null && columns[pointed]) {
      const { allowed, denied } = columns[pointed];
      const ago = span((COLUMNS - 1 - pointed) * (seconds / COLUMNS) * 1e6);
      const lines = [pointed === COLUMNS - 1 ? "now" : `${ago} ago`, `${short(allowed)}/s allowed`, `${short(denied)}/s denied`];
      this.pointer.show(context, lines, left, left + width, top);
    }
    const { last } = this.history;
    this.canvas.dataset.columns = String(columns.filter(Boolean).length);
    const now = last ? `: now ${short(last.allowed)} allowed and ${short(last.denied)} denied.` : "";
    this.canvas.setAttribute("aria-label", `Decisions a second${now}`);
  }

  /** The decisions of one rule, second by second: denied ones on top. */
  #spark(canvas, rule) {
    const [width, height] = [160, 26];
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const colours = palette();
    const seconds = this.history.latest.map(({ rules }) => rules.get(rule) ?? [0, 0]);
    const most = Math.max(1, ...seconds.map(([allowed, denied]) => allowed + denied));
    const bar = width / COLUMNS;
    seconds.forEach(([allowed, denied], n) => {
      const x = width - (seconds.length - n) * bar;
      const [low, high] = [(allowed / most) * height, (denied / most) * height];
      context.fillStyle = colours.accent;
      context.fillRect(x, height - low, bar, low);
      context.fillStyle = colours.deny;
      context.fillRect(x, height - low - high, bar, high);
    });
  }
}

/** A time of day in UTC, as in the log, with the day if that is another. */
function moment(ms) {
  const day = (ms) => new Date(ms).toISOString().slice(0, 10);
  return `${day(ms) === day(Date.now()) ? "" : `${day(ms)} `}${timeOfDay(ms)} UTC`;
}

/** A key's parts as one text. */
function shown(key) {
  return key.length > 0 ? key.join(" · ") : "(shared)";
}

/** A share as a bar. */
function meter(share, isBad) {
  const fill = h("i", { class: isBad ? "bad" : "" });
  fill.style.width = `${Math.round(Math.min(1, Math.max(0, share)) * 100)}%`;
  return h("span", { class: "meter", role: "img", "aria-label": percent(share) }, fill);
}

/** What a key has left, as far as it is known. */
function headroom(room) {
  if (room === null) return "–";
  const { remaining, limit } = room;
  return h("span", { class: "mode" }, meter(remaining / (limit || 1), remaining === 0), `${short(remaining)} of ${short(limit)}`);
}
