// Entry point of the page.

import { DEFAULTS, fromQuery, toQuery } from "./address.js";
import { byId } from "./dom.js";
import { Form } from "./form.js";
import { Live } from "./live.js";
import { Reports } from "./report.js";
import { Runner } from "./run.js";
import { saving } from "./saving.js";
import { Stage } from "./stage.js";
import { themes } from "./theme.js";
import { token, tokenFromAddress } from "./token.js";

tokenFromAddress();
const narrow = matchMedia("(max-width: 900px)");
const stage = new Stage();
const keep = saving(() => ({ record: stage.record, playback: stage.playback, flow: byId("flow"), tracks: stage.tracks }));
const form = new Form(
  () => {
    byId("stale").hidden = stage.record === null;
    keep.limits(form.settings().limits);
  },
  () => {
    run(true);
    if (narrow.matches) byId("stage").scrollIntoView({ block: "start" });
  },
);
const runner = new Runner(stage, form, keep);
let live = null;

/** Runs what the form says. `whole`: the finished run at once, to be played afterwards. */
function run(remember, whole = false) {
  const settings = form.settings();
  const address = `?${toQuery(settings)}`;
  if (remember && address !== location.search) history.pushState(null, "", address + location.hash);
  byId("stale").hidden = true;
  runner.start(settings, whole);
}

function show(settings, start, whole = false) {
  form.show(settings);
  keep.limits(settings.limits);
  if (start) run(false, whole);
}

const TABS = ["simulate", "replay", "live"];

function tab(name) {
  for (const each of TABS) {
    const chosen = each === name;
    byId(each).hidden = !chosen;
    byId(`tab-${each}`).setAttribute("aria-selected", String(chosen));
    byId(`tab-${each}`).tabIndex = chosen ? 0 : -1;
  }
  if (name === "live") live?.open();
  else live?.close();
  stage.touch();
  reports.touch();
}

function choose(name) {
  history.replaceState(null, "", location.pathname + location.search + (name === "simulate" ? "" : `#${name}`));
  tab(name);
}

const reports = new Reports(byId("replay"), (limit, { traffic, length }) => {
  choose("simulate");
  show({ ...DEFAULTS, limits: [limit], traffic, for: length }, false);
  run(true, true);
  byId("stage").focus();
});

function tabs(hasLive) {
  if (hasLive) {
    byId("tab-live").hidden = false;
    live = new Live(byId("live"));
  }
  const present = hasLive ? TABS : TABS.slice(0, 2);
  for (const name of present) byId(`tab-${name}`).addEventListener("click", () => choose(name));
  byId("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const now = present.findIndex((name) => !byId(name).hidden);
    const next = present[(now + by + present.length) % present.length];
    choose(next);
    byId(`tab-${next}`).focus();
  });
  const asked = location.hash.slice(1);
  // A server's page opens the live view, unless the link has a run.
  const first = hasLive && fromQuery(location.search) === null ? "live" : "simulate";
  tab(present.includes(asked) ? asked : first);
}

// In a single column the chart comes first: the form is longer than a phone's screen.
function arrange() {
  if (narrow.matches) byId("settings").before(byId("stage"));
  else byId("settings").after(byId("stage"));
}
narrow.addEventListener("change", arrange);
arrange();

window.addEventListener("popstate", () => show(fromQuery(location.search) ?? DEFAULTS, true));
themes(() => {
  stage.touch();
  reports.touch();
  live?.touch();
});

const about = await fetch("about").then((answer) => answer.json()).catch(() => ({ stores: ["memory"], live: false }));
form.stores(about.stores);
tabs(about.live);
const linked = fromQuery(location.search);
const mayRun = !about.live || token() !== null;
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
show(linked ?? DEFAULTS, mayRun && (linked !== null || !calm), linked === null);
document.documentElement.dataset.ready = "true";
