// Cards, lists and legends of the live view and of reports.

import { h } from "./dom.js";

/** A part of the page with a title. */
export function card(title, css, ...content) {
  return h("section", { class: `card ${css}`, "aria-label": title }, h("h2", {}, title), ...content);
}

/** A table with these heads; those that begin with `#` stand above numbers. */
export function list(heads, body, css = "scroll") {
  const head = (name) => {
    const isNumber = name.startsWith("#");
    return h("th", { scope: "col", class: isNumber ? "number" : "" }, isNumber ? name.slice(1) : name);
  };
  const table = h("table", { class: "list" }, h("thead", {}, h("tr", {}, heads.map(head))), body);
  // Scrollable with the keyboard, because it may be larger than its container.
  return h("div", { class: css, tabIndex: 0 }, table);
}

/** A table of rows that are there already. */
export function filledList(heads, rows) {
  const cell = (content, n) => h("td", { class: heads[n].startsWith("#") ? "number" : "" }, content);
  return list(heads, h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))));
}

/** One sign of a legend, and what it stands for. */
export function chartKey(css, ...text) {
  return h("span", { class: `key ${css}` }, h("i", { "aria-hidden": "true" }), text);
}

/** The two colours of a chart: the first is solid, the second hatched. */
export function legend(solid, hatched) {
  return h("p", { class: "legend" }, chartKey("solid", solid), chartKey("hatched", hatched));
}

/** One large number, and what it is. */
export function figure(name, value) {
  return h("div", { class: "figure", "data-figure": name }, value, h("span", {}, name));
}

/** A row that says why there are no rows. */
export function noRows(columns, text) {
  return h("tr", {}, h("td", { colSpan: columns, class: "hint" }, text));
}
