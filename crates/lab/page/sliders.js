// Number inputs with a slider, and the error line below a field.

import { h } from "./dom.js";

const STEPS = 200;

/** Whole numbers from 1 to 10^`most`, evenly by their size. */
export function slider(label, name, value, most, changed) {
  const number = h("input", { type: "number", min: 0, step: 1, value: String(value), "aria-label": name });
  const range = h("input", { type: "range", min: 0, max: STEPS, step: 1, "aria-label": `${name}, slider` });
  const place = (value) => Math.round((Math.log10(Math.max(1, value)) / most) * STEPS);
  const show = (value) => {
    range.value = String(place(value));
    range.setAttribute("aria-valuetext", String(value));
  };
  show(Number(value));
  range.addEventListener("input", () => {
    const exact = 10 ** ((Number(range.value) / STEPS) * most);
    const power = 10 ** Math.max(0, Math.floor(Math.log10(exact)) - 1);
    const value = Math.max(1, Math.round(exact / power) * power);
    number.value = String(value);
    range.setAttribute("aria-valuetext", String(value));
    changed(value);
  });
  number.addEventListener("input", () => {
    // Invalid input is kept and sent, and the server answers with the error.
    const value = number.value === "" ? 0 : Number(number.value);
    show(value);
    changed(value);
  });
  return h("div", { class: "field slide" }, h("span", { "aria-hidden": "true" }, label), range, number);
}

/** A field for text that a program reads. */
export function textField(id, name, error) {
  return h("input", { type: "text", id, spellcheck: false, autocomplete: "off", "aria-label": name, "aria-describedby": error });
}

/** Where an error of a field is said. */
export function errorLine(id) {
  return h("p", { class: "error", id, hidden: true });
}

/** Says what is wrong with a field, or that nothing is. */
export function tell({ text, error }, message) {
  error.textContent = message ?? "";
  error.hidden = !message;
  if (message) text.setAttribute("aria-invalid", "true");
  else text.removeAttribute("aria-invalid");
}
