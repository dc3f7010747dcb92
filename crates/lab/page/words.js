// The state of a limit in words.

import { short, span } from "./format.js";
import { ALLOWED, TOO_LARGE } from "./record.js";

/** The name of a limit's level, for a legend. */
export function levelName(kind, algorithm) {
  if (kind === "spent") return algorithm === "concurrent" ? "slots held" : "spent";
  return {
    tokens: "tokens left",
    server: "requests in the server",
    water: "water",
    queue: "queue",
    ahead: "TAT ahead of now",
    estimate: "estimate in the window",
  }[kind];
}

/** How a client stands, and what was last decided, in words. */
export function describeState(standing, counted, time) {
  const level = standing.level(counted, time);
  const top = standing.kind === "ahead" ? span(standing.top) : short(standing.top);
  const now = {
    tokens: () => `${short(level)} of ${top} tokens`,
    server: () => `limit at ${short(standing.present(counted))}${standing.limitsInFlight ? " in flight" : "/s"}, ${short(level)} requests in the server`,
    water: () => `water at ${short(level)} of ${top}`,
    queue: () => `${short(level)} of ${top} in the queue`,
    ahead: () => `TAT ${span(level)} ahead of now, ${top} at most`,
    estimate: () => `about ${short(level)} of ${top} in the window`,
    spent: () => `${short(level)} of ${top} ${standing.described.algorithm === "concurrent" ? "slots held" : "spent"}`,
  }[standing.kind]();
  if (counted === 0) return `${now}. Nothing was decided yet.`;
  const number = standing.own.number[counted - 1];
  const { outcome, wait, remaining } = standing.column;
  const left = `${short(remaining[number])} remaining`;
  switch (outcome[number]) {
    case ALLOWED:
      return `${now}. Last: admitted${wait[number] > 0 ? ` after ${span(wait[number])}` : ""}, ${left}.`;
    case TOO_LARGE:
      return `${now}. Last: too large, it never can pass.`;
    default:
      return `${now}. Last: denied, retry after ${span(wait[number])}, ${left}.`;
  }
}
