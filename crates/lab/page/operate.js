// Actions in the live view: switch modes, reload the rules, inspect a key.

import { h } from "./dom.js";
import { timeOfDay } from "./format.js";
import { authorization } from "./token.js";

const MODES = [["as-written", "as written"], ["enforce", "enforce"], ["shadow", "shadow"], ["off", "off"]];
const SPANS = [["", "until further notice"], ["15min", "for 15 min"], ["1h", "for an hour"], ["1day", "for a day"]];
/** How many notes are kept. */
const NOTES = 20;
/** The keys are looked at once in so many views. */
const PEEK_EVERY = 3;

async function ask(method, path, body) {
  const answer = await fetch(`../v1/${path}`, {
    method,
    headers: { ...authorization(), ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body ? JSON.stringify(body) : undefined,
  });
  const document = await answer.json();
  if (!answer.ok) throw new Refused(document);
  return document;
}

/** What the server said no to. */
class Refused extends Error {
  constructor({ detail, findings }) {
    super([detail, ...(findings ?? []).map(found)].join("\n"));
  }
}

/** A finding in a rules file, in one line. */
function found({ file, line, column, problem, help }) {
  return `${file}:${line}:${column}: ${problem}${help ? `: ${help}` : ""}`;
}

/** Why a switch should not happen by a slip of the hand; null if it may. */
function reasonToAsk(rule, mode, limits) {
  const isOff = mode === "off";
  if (rule === null && mode !== "as-written") {
    return isOff ? "This is the kill switch: no rule limits anything any more."
      : `Every rule is switched, in place of the mode in its file.${mode === "shadow" ? " Nothing is denied any more." : ""}`;
  }
  const together = limits.length > 1 ? `This switches the whole rule ${rule}: ${limits.join(", ")}.` : "";
  const off = isOff ? `The rule ${rule} then limits nothing and counts nothing.` : "";
  return [together, off].filter(Boolean).join(" ") || null;
}

/** A promise, and how to keep it. */
function later() {
  let resolve;
  const promise = new Promise((keep) => { resolve = keep; });
  return { promise, resolve };
}

/** Switches, reloads, and notes of both. */
export class Operating {
  constructor() {
    this.rooms = new Map();
    this.turn = 0;
    const spans = SPANS.map(([value, name]) => h("option", { value }, name));
    this.lasting = h("select", { "aria-label": "How long a switch lasts" }, spans);
    this.notes = h("div", { class: "notes", role: "log", "aria-live": "polite", "aria-label": "What was done" });
    const again = () => this.#reload();
    const reload = h("button", { class: "quiet", type: "button", id: "reload", onclick: again }, "Reload the rules");
    const all = this.switchFor(null, { name: "Mode of all rules" });
    this.element = h("div", { class: "saving" },
      h("div", { class: "row" },
        h("span", { class: "hint" }, "All rules"), all, h("span", { class: "hint" }, "A switch lasts"), this.lasting),
      h("div", { class: "row" }, reload),
      this.notes);
  }

  /**
   * The mode selector of a rule, or of all rules if `rule` is null. The limits of a rule cannot be switched separately: `limits`
   * are those that are switched together.
   */
  switchFor(rule, { name = `Mode of the rule ${rule}`, limits = () => [] } = {}) {
    const choice = h("select", { "aria-label": name, "data-switch": rule ?? "" },
      h("option", { value: "" }, "switch …"), MODES.map(([value, name]) => h("option", { value }, name)));
    choice.addEventListener("change", async () => {
      if (choice.value === "") return;
      const lasting = this.lasting.value ? { for: this.lasting.value } : {};
      const how = { ...(rule === null ? {} : { rule }), mode: choice.value, ...lasting };
      const [mode, span] = [choice, this.lasting].map((select) => select.selectedOptions[0].textContent);
      const what = `${rule ?? "All rules"}: ${mode} ${span}.`;
      choice.value = "";
      choice.blur();
      const why = reasonToAsk(rule, how.mode, limits());
      if (why && !(await this.#agreed(what, why))) return;
      try {
        await ask("POST", "modes", how);
        this.note(what, false);
      } catch (error) {
        this.note(error.message, true);
      }
    });
    return h("span", { class: "mode" }, choice);
  }

  /** Whether the operator wants this, now that they have read what it does. */
  #agreed(what, why) {
    const { promise, resolve } = later();
    const dialog = h("dialog", { class: "card agree", "aria-labelledby": "agree-what" });
    const close = (value) => h("button", {
      type: "button", class: value ? "primary" : "quiet", "data-agree": value ? "yes" : "no",
      onclick: () => dialog.close(value ? "yes" : ""),
    }, value ? "Switch" : "Cancel");
    dialog.append(h("h2", { id: "agree-what" }, what), h("p", {}, why), h("div", { class: "row" }, close(false), close(true)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    return promise;
  }

  async #reload() {
    try {
      const { generation, rules, warnings } = await ask("POST", "rules/reload");
      const said = [`Read again: ${rules} rules, generation ${generation}.`, ...warnings.map(found)];
      this.note(said.join("\n"), false);
    } catch (error) {
      this.note(error.message, true);
    }
  }

  /** Says what has happened. A note with a name replaces the one before of that name. */
  note(text, bad, name = null) {
    if (name) {
      const same = this.notes.querySelector(`[data-note="${name}"]`);
      if (same?.dataset.text === text) return;
      same?.remove();
    }
    const time = `${timeOfDay(Date.now())} UTC`;
    const line = h("p", { class: bad ? "said bad" : "said" }, `${time}  ${bad ? "Not done: " : ""}${text}`);
    if (name) Object.assign(line.dataset, { note: name, text });
    this.notes.prepend(line);
    while (this.notes.childElementCount > NOTES) this.notes.lastElementChild.remove();
  }

  /** Looks how much the busiest keys have left, now and then. */
  peek(keys) {
    this.turn += 1;
    if (this.turn % PEEK_EVERY !== 1) return;
    for (const { rule, in_full: key } of keys.slice(0, 8)) if (key) this.#look(rule, key);
  }

  async #look(rule, key) {
    const name = JSON.stringify([rule, key]);
    try {
      const { limits } = await ask("POST", "keys/peek", { rule, key });
      const share = ({ remaining, limit }) => remaining / limit;
      const [tightest] = limits.sort((one, other) => share(one) - share(other));
      this.rooms.set(name, tightest ?? null);
    } catch {
      // The rule may have been removed meanwhile.
      this.rooms.set(name, null);
    }
    if (this.rooms.size > 200) this.rooms.clear();
  }

  /** What a key has left, as far as it is known. One that is too long to be kept, or that belongs to no rule, cannot be asked for. */
  room({ rule, in_full: key }) {
    return (key && this.rooms.get(JSON.stringify([rule, key]))) ?? null;
  }
}
