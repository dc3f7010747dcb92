// Export of a run: link, CSV, PNG and rule.

import { byId, copy, h, save } from "./dom.js";
import { composed } from "./image.js";
import { CONTROLLER } from "./notation.js";

const OUTCOMES = ["denied", "admitted", "too large"];

/** A limit as a rule, to be pasted into a rules file. */
export function ruleText(limit) {
  const adaptive = /^(.*) adapt (\S+) on (.*)$/.exec(limit);
  if (adaptive) {
    const [, own, lowest, signals] = adaptive;
    const highest = /\d[\d_]*\/\S+/.exec(own)?.[0] ?? own;
    const adapt = `{ between: ${lowest}..${highest}, on: [${signals}] }`;
    return `rules:\n  - id: my-limit\n    limit: ${own}\n    adapt: ${adapt}\n`;
  }
  // A limit on requests in flight that adapts is a setting of the gateway.
  if (CONTROLLER.test(limit)) return `gateway:\n  concurrency: ${limit}\n`;
  // A limit needs quotes in YAML only if it has a special character.
  const plain = /^[\w./ µ-]+$/.test(limit) && limit !== "";
  const written = plain ? limit : JSON.stringify(limit);
  return `rules:\n  - id: my-limit\n    key: address\n    limit: ${written}\n`;
}

/** All decisions, as lines of values between commas. */
export function csv(record) {
  const head = ["seconds", "client", "cost"];
  for (const { described } of record.limits) {
    const isRepeated = (name) => described.state.indexOf(name) !== described.state.lastIndexOf(name);
    const state = described.state.map((name, part) => (isRepeated(name) ? `${name} ${part}` : name));
    const names = ["decision", "remaining", "wait_seconds", ...state];
    head.push(...names.map((name) => `"${described.limit}: ${name}"`));
  }
  const lines = [head.join(",")];
  for (let n = 0; n < record.length; n += 1) {
    const line = [(record.at[n] / 1e6).toFixed(6), record.client[n], record.cost[n]];
    for (const column of record.limits) {
      const wait = (column.wait[n] / 1e6).toFixed(6);
      const state = column.state.subarray(n * column.width, (n + 1) * column.width);
      line.push(OUTCOMES[column.outcome[n]], column.remaining[n], wait, ...state);
    }
    lines.push(line.join(","));
  }
  return `${lines.join("\n")}\n`;
}

/** The buttons. `present` says what there is to save: a record, a playback, a flow chart's canvas and tracks. */
export function saving(present) {
  byId("copy-link").addEventListener("click", () => copy(location.href, byId("copy-link")));
  byId("copy-rule").addEventListener("click", () => copy(byId("rule").textContent, byId("copy-rule")));
  byId("save-csv").addEventListener("click", () => {
    const { record } = present();
    save("tidegate-run.csv", new Blob([csv(record)], { type: "text/csv" }));
  });
  byId("save-png").addEventListener("click", () => {
    const { record, playback, flow, tracks } = present();
    composed(record, playback, flow, tracks).toBlob((blob) => save("tidegate-run.png", blob), "image/png");
  });
  const choice = byId("rule-of");
  let limits = [];
  const show = () => {
    byId("rule").textContent = limits.length > 0 ? ruleText(limits[Number(choice.value)] ?? "") : "";
    byId("rule").closest(".yaml").hidden = limits.length === 0;
  };
  choice.addEventListener("change", show);
  return {
    /** The limits that can be made rules. */
    limits(texts) {
      const before = choice.value;
      limits = texts;
      choice.replaceChildren(...texts.map((text, n) => h("option", { value: String(n) }, text)));
      choice.value = Number(before) < texts.length ? before || "0" : "0";
      choice.parentElement.querySelector("label").hidden = false;
      show();
    },
    ready(is) {
      byId("save-csv").disabled = !is;
      byId("save-png").disabled = !is;
    },
  };
}
