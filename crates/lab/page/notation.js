// Conversion of limits and traffic between notation and form fields.
//
// The notation is authoritative. A text that the fields cannot represent stays unchanged and has no sliders.

const field = (name, label, most, fallback) => ({ name, label, most, fallback });
const COUNT = field("count", "Requests", 5, 20);

const BURST = field("burst", "Burst", 5, 50);

const algorithm = (id, name, about, fields) => ({ id, name, about, fields });

/** The algorithms, with the fields of each. A limit's text begins with the id, but for the token bucket's. */
export const ALGORITHMS = [
  algorithm("token-bucket", "Token bucket", "a sustained rate, with bursts", [COUNT, "period", BURST]),
  algorithm("gcra", "GCRA", "the token bucket as one timestamp", [COUNT, "period", BURST]),
  algorithm("meter", "Leaky bucket, meter", "refuses what would overflow", [COUNT, "period", BURST]),
  algorithm("shaper", "Leaky bucket, shaper", "delays, so that they leave evenly", [COUNT, "period", field("queue", "Queue", 5, 50)]),
  algorithm("fixed", "Fixed window", "one counter for each window", [COUNT, "period", "calendar"]),
  algorithm("sliding", "Sliding window", "the window before, weighted by overlap", [COUNT, "period", field("parts", "Sub-windows", 2, 1)]),
  algorithm("log", "Sliding log", "exact: every admission is remembered", [COUNT, "period"]),
  algorithm("concurrent", "Concurrency", "concurrent requests", [field("slots", "Slots", 4, 3), "ttl"]),
];

/** A limit on the requests in flight at a server that follows the server. */
export const CONTROLLER = /^\s*(gradient2|vegas|aimd)\b/;

const whole = (text) => Number(text.replaceAll("_", ""));

/** The fields of a limit's text; `null` if they cannot say it. */
export function readLimit(text) {
  const words = text.trim().toLowerCase().split(/\s+/);
  const named = ALGORITHMS.find(({ id }) => id === words[0]);
  const algorithm = named ?? ALGORITHMS[0];
  const rest = named ? words.slice(1) : words;
  const values = {};
  if (algorithm.id === "concurrent") {
    if (!/^[\d_]+$/.test(rest[0] ?? "")) return null;
    values.slots = whole(rest.shift());
    values.ttl = "1min";
  } else {
    const rate = /^([\d_]+)\/(\d*[a-zµ]+)$/.exec(rest.shift() ?? "");
    if (!rate) return null;
    values.count = whole(rate[1]);
    values.period = rate[2];
  }
  while (rest.length > 0) {
    const word = rest.shift();
    if (word === "calendar" && algorithm.fields.includes("calendar")) {
      values.calendar = true;
    } else if (word === "ttl" && algorithm.id === "concurrent" && rest.length > 0) {
      values.ttl = rest.shift();
    } else {
      const own = algorithm.fields.find((known) => known.name === word);
      if (!own || !/^[\d_]+$/.test(rest[0] ?? "")) return null;
      values[word] = whole(rest.shift());
    }
  }
  values.burst ??= values.count;
  values.queue ??= values.count;
  values.parts ??= 1;
  return { algorithm: algorithm.id, values };
}

/** The text of a limit's fields. */
export function writeLimit({ algorithm, values }) {
  const { fields } = ALGORITHMS.find((known) => known.id === algorithm);
  const has = (name) => fields.some((known) => known === name || known.name === name);
  const parts = algorithm === "token-bucket" ? [] : [algorithm];
  if (algorithm === "concurrent") {
    parts.push(values.slots ?? 3, "ttl", values.ttl ?? "1min");
  } else {
    parts.push(`${values.count ?? 20}/${values.period ?? "s"}`);
    for (const name of ["burst", "queue"]) {
      if (has(name) && values[name] !== undefined && values[name] !== values.count) parts.push(name, values[name]);
    }
    if (has("parts") && (values.parts ?? 1) !== 1) parts.push("parts", values.parts);
    if (has("calendar") && values.calendar) parts.push("calendar");
  }
  return parts.join(" ");
}

const rate = (name, label, fallback) => ({ name, label, fallback, kind: "rate" });
const number = (name, label, fallback) => ({ name, label, fallback, kind: "number" });
const time = (name, label, fallback) => ({ name, label, fallback, kind: "span" });

const model = (id, name, about, form, fields) => ({ id, name, about, form, fields });

/** The models of traffic: how each is written, with its fields in braces. */
export const MODELS = [
  model("steady", "Steady", "evenly apart", "steady {rate}", [rate("rate", "Rate", "30/s")]),
  model("poisson", "Poisson", "random, at a mean rate", "poisson {rate}", [rate("rate", "Rate", "30/s")]),
  model("square", "Square wave", "one rate for half of each period, the other for the rest", "square {peak} {base} every {period}",
    [rate("peak", "Peak", "100/s"), rate("base", "Base", "5/s"), time("period", "Period", "10s")]),
  model("ramp", "Ramp", "from one rate to the other", "ramp {from} {to} over {over}",
    [rate("from", "From", "0/s"), rate("to", "To", "100/s"), time("over", "Over", "30s")]),
  model("on-off", "On and off", "bursts with silence between", "on-off {rate} on {on} off {off}",
    [rate("rate", "Rate", "50/s"), time("on", "On", "2s"), time("off", "Off", "8s")]),
  model("spike", "Spike", "so many at once", "spike {count} at {at} within {within}",
    [number("count", "Requests", 500), time("at", "At", "5s"), time("within", "Within", "1s")]),
  model("boundary", "Window-boundary attack", "just before a window ends, and just after", "boundary {count} every {window}",
    [number("count", "On each side", 20), time("window", "Window", "1s")]),
  model("text", "As text", "parts joined by `then` and `+`", null, []),
];

/** What may follow any model. */
const BEHIND = [
  "(?<random> random)?",
  "(?: clients (?<clients>\\d[\\d_]*)(?: zipf (?<zipf>[\\d.]+))?)?",
  "(?: cost (?<cost>\\d[\\d_]*))?",
].join("");

const PATTERNS = { rate: "\\d[\\d_]*(?:/\\d*[a-zµ]+)?", number: "\\d[\\d_]*", span: "\\d+[a-zµ]+" };

/** The fields of a traffic's text. What they cannot say is the model `text`. */
export function readTraffic(text) {
  const trimmed = text.trim().toLowerCase().replace(/\s+/g, " ");
  for (const model of MODELS) {
    if (!model.form) continue;
    const own = model.fields.reduce(
      (form, { name, kind }) => form.replace(`{${name}}`, `(?<${name}>${PATTERNS[kind]})`),
      model.form,
    );
    const found = new RegExp(`^${own}${BEHIND}$`).exec(trimmed)?.groups;
    if (!found) continue;
    const values = Object.fromEntries(model.fields.map(({ name }) => [name, found[name]]));
    return {
      model: model.id,
      values,
      random: found.random !== undefined,
      clients: found.clients ? whole(found.clients) : 1,
      zipf: found.zipf ? Number(found.zipf) : 0,
      cost: found.cost ? whole(found.cost) : 1,
    };
  }
  return { model: "text", values: {}, random: false, clients: 1, zipf: 0, cost: 1 };
}

/** The text of a traffic's fields. */
export function writeTraffic({ model, values, random, clients, zipf, cost }) {
  const { form, fields } = MODELS.find((known) => known.id === model);
  let text = fields.reduce((text, { name, fallback }) => text.replace(`{${name}}`, values[name] ?? fallback), form);
  if (random && canBeRandom(model)) text += " random";
  if (clients > 1) text += ` clients ${clients}${zipf > 0 ? ` zipf ${zipf}` : ""}`;
  if (cost !== 1) text += ` cost ${cost}`;
  return text;
}

/** Whether a model can come by chance instead of evenly. */
export function canBeRandom(model) {
  return ["square", "ramp", "on-off"].includes(model);
}
