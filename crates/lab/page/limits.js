// The limits of a run, each with its notation and, if possible, sliders.

import { LETTERS } from "./canvas.js";
import { h } from "./dom.js";
import { ALGORITHMS, readLimit, writeLimit } from "./notation.js";
import { errorLine, slider, textField } from "./sliders.js";

const MOST = 4;
const PERIODS = ["s", "10s", "min", "10min", "h", "3h", "day", "month"];
const LEASES = ["10s", "30s", "1min", "10min", "1h"];

/** The fields of all limits. */
export class Limits {
  constructor(place, add, changed) {
    this.place = place;
    this.add = add;
    this.changed = changed;
    this.cards = [];
    add.addEventListener("click", () => {
      this.show([...this.texts(), SUGGESTED[this.cards.length] ?? "10/s"]);
      this.cards.at(-1).text.focus();
      changed();
    });
  }

  texts() {
    return this.cards.map((card) => card.text.value.trim());
  }

  show(texts) {
    this.cards = texts.slice(0, MOST).map((text, number) => this.#card(text, number, texts.length));
    this.place.replaceChildren(...this.cards.map((card) => card.element));
    this.add.disabled = this.cards.length >= MOST;
  }

  /** The field of one limit, for an error. */
  field(number) {
    return this.cards[number];
  }

  #card(text, number, of) {
    const letter = LETTERS[number];
    const input = textField(`limit-text-${number}`, `Limit ${letter} as text`, `limit-error-${number}`);
    input.value = text;
    const error = errorLine(`limit-error-${number}`);
    const choice = h("select", { "aria-label": `Algorithm of limit ${letter}`, id: `algorithm-${number}` },
      h("option", { value: "", hidden: true }, "As text"), ALGORITHMS.map(({ id, name }) => h("option", { value: id }, name)));
    const about = h("span", { class: "hint" });
    const parameters = h("div", { class: "parameters" });
    const remove = h("button", { type: "button", class: "quiet small", "aria-label": `Remove limit ${letter}` }, "Remove");
    remove.disabled = of < 2;
    const element = h("div", { class: `limit series-${number}`, role: "group", "aria-label": `Limit ${letter}` },
      h("div", { class: "row" }, h("span", { class: "badge", "aria-hidden": "true" }, letter), choice, remove),
      input, error, about, parameters);
    // A text without sliders may be valid or not: only the engine can tell.
    const mistaken = () => {
      about.textContent = "";
    };
    const card = { element, text: input, error, mistaken };
    const write = (fields) => {
      input.value = writeLimit(fields);
      this.changed();
    };
    const read = (keepFocus) => {
      const fields = readLimit(input.value);
      const algorithm = fields && ALGORITHMS.find(({ id }) => id === fields.algorithm);
      choice.value = fields?.algorithm ?? "";
      about.textContent = algorithm ? algorithm.about : "There are no sliders for this text.";
      if (!keepFocus) parameters.replaceChildren(...(fields ? this.#parameters(fields, algorithm, number, write) : []));
    };
    input.addEventListener("input", () => {
      read(false);
      this.changed();
    });
    choice.addEventListener("change", () => {
      const before = readLimit(input.value)?.values ?? {};
      const { fields } = ALGORITHMS.find(({ id }) => id === choice.value);
      const values = { ...before };
      for (const own of fields) if (own.name && values[own.name] === undefined) values[own.name] = own.fallback;
      input.value = writeLimit({ algorithm: choice.value, values });
      read(false);
      this.changed();
    });
    remove.addEventListener("click", () => {
      this.show(this.texts().filter((_, other) => other !== number));
      this.cards[Math.max(0, number - 1)].text.focus();
      this.changed();
    });
    read(false);
    return card;
  }

  #parameters({ algorithm, values }, { fields }, number, write) {
    const letter = LETTERS[number];
    const set = (name, value) => {
      values[name] = value;
      write({ algorithm, values });
    };
    return fields.map((own) => {
      switch (own) {
        case "period":
          return choose(`Per`, `Period of limit ${letter}`, PERIODS, values.period, (period) => set("period", period));
        case "ttl":
          return choose(`Lease`, `Lease of limit ${letter}`, LEASES, values.ttl, (ttl) => set("ttl", ttl));
        case "calendar": {
          const box = h("input", { type: "checkbox", checked: values.calendar === true });
          box.addEventListener("change", () => set("calendar", box.checked));
          return h("label", { class: "check" }, box, "by the calendar");
        }
        default:
          return slider(own.label, `${own.label} of limit ${letter}`, values[own.name], own.most, (to) => set(own.name, to));
      }
    });
  }
}

const SUGGESTED = ["20/s burst 50", "fixed 20/s", "sliding 20/s", "log 20/s"];

function choose(label, name, known, value, changed) {
  const all = known.includes(value) || value === undefined ? known : [value, ...known];
  const choice = h("select", { "aria-label": name }, all.map((one) => h("option", { value: one }, one)));
  choice.addEventListener("change", () => changed(choice.value));
  choice.value = value ?? known[0];
  return h("label", { class: "field" }, h("span", {}, label), choice);
}
