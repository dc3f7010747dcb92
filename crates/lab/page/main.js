// Puts the page together.

import { DEFAULTS, fromQuery, toQuery } from "./address.js";
import { byId } from "./dom.js";
import { Form } from "./form.js";
import { Live } from "./live.js";
import { Runner } from "./run.js";
import { saving } from "./saving.js";
import { Stage } from "./stage.js";
import { themes } from "./theme.js";
import { token, tokenFromAddress } from "./token.js";

tokenFromAddress();
const stage = new Stage();
const keep = saving(() => ({ record: stage.record, playback: stage.playback, flow: byId("flow"), tracks: stage.tracks }));
const form = new Form(
  () => {
    byId("stale").hidden = stage.record === null;
    keep.limits(form.settings().limits);
  },
  () => {
    run(true);
    // Where everything stands in one column, the picture is further down.
    if (matchMedia("(max-width: 900px)").matches) byId("stage").scrollIntoView({ block: "start" });
  },
);
const runner = new Runner(stage, form, keep);
let live = null;

function run(remember) {
  const settings = form.settings();
  const address = `?${toQuery(settings)}`;
  if (remember && address !== location.search) history.pushState(null, "", address + location.hash);
  byId("stale").hidden = true;
  runner.start(settings);
}

function show(settings, start) {
  form.show(settings);
  keep.limits(settings.limits);
  if (start) run(false);
}

function tab(name) {
  for (const each of ["simulate", "live"]) {
    const chosen = each === name;
    byId(each).hidden = !chosen;
    byId(`tab-${each}`).setAttribute("aria-selected", String(chosen));
    byId(`tab-${each}`).tabIndex = chosen ? 0 : -1;
  }
  if (name === "live") live?.open();
  else live?.close();
  stage.touch();
}

function tabs() {
  byId("tabs").hidden = false;
  live = new Live(byId("live"));
  const choose = (name) => {
    history.replaceState(null, "", location.pathname + location.search + (name === "live" ? "#live" : ""));
    tab(name);
  };
  for (const name of ["simulate", "live"]) byId(`tab-${name}`).addEventListener("click", () => choose(name));
  byId("tabs").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = byId("simulate").hidden ? "simulate" : "live";
    choose(other);
    byId(`tab-${other}`).focus();
  });
  tab(location.hash === "#live" ? "live" : "simulate");
}

window.addEventListener("popstate", () => show(fromQuery(location.search) ?? DEFAULTS, true));
themes(() => {
  stage.touch();
  live?.touch();
});

const about = await fetch("about").then((answer) => answer.json()).catch(() => ({ stores: ["memory"], live: false }));
form.stores(about.stores);
if (about.live) tabs();
const linked = fromQuery(location.search);
const mayRun = !about.live || token() !== null;
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
show(linked ?? DEFAULTS, mayRun && (linked !== null || !calm));
document.documentElement.dataset.ready = "true";
