// The settings form of a run.

import { toQuery } from "./address.js";
import { byId, h, setText } from "./dom.js";
import { Limits } from "./limits.js";
import { CONTROLLER, MODELS, canBeRandom, readTraffic, writeTraffic } from "./notation.js";
import { PRESETS } from "./presets.js";
import { errorLine, slider, tell, textField } from "./sliders.js";

const SPEEDS = [
  ["1", "real time"],
  ["2", "2 ×"],
  ["10", "10 ×"],
  ["60", "60 × (a minute a second)"],
  ["3600", "3 600 × (an hour a second)"],
  ["86400", "86 400 × (a day a second)"],
  ["max", "maximum"],
];

/** All fields of a run. */
export class Form {
  /** `changed` is called when a field was changed by hand, `submitted` when it is to be run. */
  constructor(changed, submitted) {
    this.changed = () => {
      this.#clearErrors();
      this.#mark();
      changed();
    };
    this.limits = new Limits(byId("limits"), byId("add-limit"), this.changed);
    this.#presets(submitted);
    this.#traffic();
    this.#running();
    byId("settings").addEventListener("submit", (event) => {
      event.preventDefault();
      submitted();
    });
  }

  /** The stores that can be chosen. */
  stores(names) {
    for (const name of names) {
      if (![...this.store.options].some((option) => option.value === name)) {
        this.store.append(h("option", { value: name }, name === "redis" ? "Redis, in real time" : name));
      }
    }
  }

  settings() {
    return {
      limits: this.limits.texts(),
      traffic: this.trafficText.value.trim(),
      for: this.length.value.trim(),
      seed: this.seed.value.trim(),
      speed: this.speed.value,
      store: this.store.value,
      holding: this.holding.value.trim(),
      server: this.server.value.trim(),
    };
  }

  show(settings) {
    this.limits.show(settings.limits.length > 0 ? settings.limits : [""]);
    this.trafficText.value = settings.traffic;
    this.#readTraffic();
    this.length.value = settings.for;
    this.seed.value = settings.seed;
    this.holding.value = settings.holding;
    this.server.value = settings.server ?? "";
    choose(this.speed, settings.speed);
    choose(this.store, settings.store);
    this.#clearErrors();
    this.#needed();
    this.#mark();
  }

  /** Says what is wrong at the fields that are at fault. What belongs to no field comes back. */
  errors(errors) {
    this.#clearErrors();
    const left = [];
    let first = null;
    for (const { field, message } of errors) {
      const limit = /^limit\.(\d+)$/.exec(field);
      const place = limit ? this.limits.field(Number(limit[1])) : this.fields[field];
      if (!place) {
        left.push(`${field}: ${message}`);
        continue;
      }
      tell(place, message);
      place.mistaken?.();
      first ??= place.text;
    }
    first?.focus();
    return left;
  }

  #clearErrors() {
    for (const place of [...this.limits.cards, ...Object.values(this.fields ?? {})]) tell(place, null);
  }

  #presets(submitted) {
    const buttons = PRESETS.map(({ name, settings }) => {
      const run = () => {
        this.show(settings);
        submitted();
      };
      return h("button", { type: "button", class: "chip", "aria-pressed": "false", onclick: run }, name);
    });
    byId("presets").append(...buttons);
    this.presets = buttons;
  }

  /** Marks the worked case that the fields say, if they say one. */
  #mark() {
    // The playback speed is not part of a preset.
    const query = (settings) => toQuery({ ...settings, speed: "1" });
    const present = query(this.settings());
    const number = PRESETS.findIndex(({ settings }) => query(settings) === present);
    this.presets.forEach((button, n) => button.setAttribute("aria-pressed", String(n === number)));
    setText(byId("preset-about"), PRESETS[number]?.about ?? "");
  }

  #traffic() {
    const text = textField("traffic-text", "Traffic as text", "traffic-error");
    const error = errorLine("traffic-error");
    this.trafficText = text;
    const models = MODELS.map(({ id, name }) => h("option", { value: id }, name));
    this.model = h("select", { id: "model", "aria-label": "Model of traffic" }, models);
    this.modelAbout = h("span", { class: "hint" });
    this.trafficFields = h("div", { class: "parameters" });
    byId("traffic").append(this.model, text, error, this.modelAbout, this.trafficFields);
    this.fields = { traffic: { text, error } };
    text.addEventListener("input", () => {
      this.#readTraffic();
      this.changed();
    });
    this.model.addEventListener("change", () => {
      const before = readTraffic(text.value);
      if (this.model.value !== "text") text.value = writeTraffic({ ...before, model: this.model.value, values: {} });
      this.#readTraffic();
      if (this.model.value === "text") text.focus();
      this.changed();
    });
  }

  #readTraffic() {
    const read = readTraffic(this.trafficText.value);
    const model = MODELS.find(({ id }) => id === read.model);
    this.model.value = read.model;
    this.modelAbout.textContent = model.about;
    const write = () => {
      this.trafficText.value = writeTraffic(read);
      this.changed();
    };
    this.trafficFields.replaceChildren(...(model.form ? trafficFields(read, model, write) : []));
  }

  #running() {
    const place = byId("running");
    const line = (label, id, control, hint) => {
      control.id = id;
      const error = errorLine(`${id}-error`);
      control.setAttribute("aria-describedby", error.id);
      const about = hint ? h("span", { class: "hint" }, hint) : null;
      place.append(h("div", { class: "stacked" }, h("label", { for: id }, label), control, about, error));
      control.addEventListener("input", this.changed);
      return { text: control, error };
    };
    const text = (value) => h("input", { type: "text", value, spellcheck: false, autocomplete: "off" });
    this.length = text("1min");
    this.seed = text("1");
    this.speed = h("select", {}, SPEEDS.map(([value, name]) => h("option", { value }, name)));
    this.store = h("select", {}, h("option", { value: "memory" }, "Memory"));
    this.holding = text("");
    this.server = text("");
    Object.assign(this.fields, {
      for: line("Length", "length", this.length),
      speed: line("Speed", "speed", this.speed),
      seed: line("Seed", "seed", this.seed),
      store: line("Store", "store", this.store),
      holding: line("Slots are held for", "holding", this.holding, "such as 250ms; empty: as long as a lease"),
      server: line("Server behind each limit", "server", this.server, "workers and their time, such as 20 x 40ms"),
    });
    this.store.addEventListener("change", () => {
      if (this.store.value === "redis") this.speed.value = "1";
    });
    byId("limits").addEventListener("input", () => this.#needed());
    byId("limits").addEventListener("change", () => this.#needed());
  }

  /** How long slots are held matters where there are slots, and a server where a limit adapts to it. */
  #needed() {
    const needed = this.limits.texts().some((text) => text.startsWith("concurrent"));
    this.holding.parentElement.hidden = !needed && this.holding.value === "";
    const adapts = this.limits.texts().some((text) => text.includes(" adapt ") || CONTROLLER.test(text));
    this.server.parentElement.hidden = !adapts && this.server.value === "";
  }
}

/** Chooses a value, even one that is not on the list. */
function choose(select, value) {
  if (![...select.options].some((option) => option.value === value)) {
    select.append(h("option", { value }, /^[\d.]+$/.test(value) ? `${value} ×` : value));
  }
  select.value = value;
}

function trafficFields(read, model, write) {
  const set = (name, value) => {
    read.values[name] = value;
    write();
  };
  const own = model.fields.map(({ name, label, kind, fallback }) => {
    const value = read.values[name] ?? fallback;
    const called = `${label} of the traffic`;
    if (kind === "number") return slider(label, called, String(value).replaceAll("_", ""), 5, (to) => set(name, to));
    if (kind === "rate") {
      const [count, period] = String(value).includes("/") ? String(value).split("/") : [value, "s"];
      const write = (to) => set(name, `${to}/${period}`);
      return slider(`${label} /${period}`, called, String(count).replaceAll("_", ""), 4, write);
    }
    const input = h("input", { type: "text", value, "aria-label": called, onchange: () => set(name, input.value.trim()) });
    return h("label", { class: "field" }, h("span", {}, label), input);
  });
  const clients = slider("Clients", "Clients", read.clients, 5, (number) => {
    read.clients = number;
    write();
  });
  const cost = slider("Cost", "Cost of a request", read.cost, 5, (number) => {
    read.cost = number;
    write();
  });
  const zipf = h("input", { type: "number", min: 0, max: 5, step: 0.1, "aria-label": "Popularity: Zipf's exponent" });
  zipf.value = String(read.zipf);
  zipf.addEventListener("input", () => {
    read.zipf = Number(zipf.value);
    write();
  });
  const random = h("input", { type: "checkbox", checked: read.random });
  random.addEventListener("change", () => {
    read.random = random.checked;
    write();
  });
  return [
    ...own,
    canBeRandom(model.id) ? h("label", { class: "check" }, random, "random") : null,
    clients,
    h("label", { class: "field", title: "Zipf exponent: 0, all clients alike; 1, the second sends half as much as the first, the third a third" },
      h("span", {}, "Skew (Zipf)"), zipf),
    cost,
  ].filter((field) => field !== null);
}
