// Limits and traffic between their text, which the engine reads, and fields, which people move.
//
// The text is what counts. A text that is more than these fields can say is left alone, and has no sliders.

const field = (name, label, most, fallback) => ({ name, label, most, fallback });
const COUNT = field("count", "Requests", 5, 20);

/** The algorithms, with the fields of each. */
export const ALGORITHMS = [
  { id: "token-bucket", name: "Token bucket", about: "a sustained rate, with bursts", fields: [COUNT, "period", field("burst", "Burst", 5, 50)] },
  { id: "gcra", name: "GCRA", about: "the token bucket, told by one timestamp", word: "gcra", fields: [COUNT, "period", field("burst", "Burst", 5, 50)] },
  { id: "meter", name: "Leaky bucket, meter", about: "refuses what would overflow", word: "meter", fields: [COUNT, "period", field("burst", "Burst", 5, 50)] },
  { id: "shaper", name: "Leaky bucket, shaper", about: "delays, so that they leave evenly", word: "shaper", fields: [COUNT, "period", field("queue", "Queue", 5, 50)] },
  { id: "fixed", name: "Fixed window", about: "one counter for each window", word: "fixed", fields: [COUNT, "period", "calendar"] },
  { id: "sliding", name: "Sliding window", about: "the window before, weighted by overlap", word: "sliding", fields: [COUNT, "period", field("parts", "Parts", 2, 1)] },
  { id: "log", name: "Sliding log", about: "exact: every admission is remembered", word: "log", fields: [COUNT, "period"] },
  { id: "concurrent", name: "Concurrency", about: "so many at the same time", word: "concurrent", fields: [field("slots", "Slots", 4, 3), "ttl"] },
];

const whole = (text) => Number(text.replaceAll("_", ""));

/** The fields of a limit's text; `null` if they cannot say it. */
export function readLimit(text) {
  const words = text.trim().toLowerCase().split(/\s+/);
  const named = ALGORITHMS.find((algorithm) => (algorithm.word ?? algorithm.id) === words[0]);
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
  const { word, fields } = ALGORITHMS.find((known) => known.id === algorithm);
  const has = (name) => fields.some((known) => known === name || known.name === name);
  const parts = word ? [word] : [];
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

/** The models of traffic: how each is written, with its fields in braces. */
export const MODELS = [
  { id: "steady", name: "Steady", about: "evenly apart", form: "steady {rate}", fields: [rate("rate", "Rate", "30/s")] },
  { id: "poisson", name: "Poisson", about: "by chance", form: "poisson {rate}", fields: [rate("rate", "Rate", "30/s")] },
  { id: "square", name: "Square wave", about: "one rate for half of each period, the other for the rest", form: "square {peak} {base} every {period}", fields: [rate("peak", "Peak", "100/s"), rate("base", "Base", "5/s"), time("period", "Period", "10s")] },
  { id: "ramp", name: "Ramp", about: "from one rate to the other", form: "ramp {from} {to} over {over}", fields: [rate("from", "From", "0/s"), rate("to", "To", "100/s"), time("over", "Over", "30s")] },
  { id: "on-off", name: "On and off", about: "bursts with silence between", form: "on-off {rate} on {on} off {off}", fields: [rate("rate", "Rate", "50/s"), time("on", "On", "2s"), time("off", "Off", "8s")] },
  { id: "spike", name: "Spike", about: "so many at once", form: "spike {count} at {at} within {within}", fields: [number("count", "Requests", 500), time("at", "At", "5s"), time("within", "Within", "1s")] },
  { id: "boundary", name: "Window-boundary attack", about: "just before a window ends, and just after", form: "boundary {count} every {window}", fields: [number("count", "On each side", 20), time("window", "Window", "1s")] },
  { id: "text", name: "As text", about: "parts joined by `then` and `+`", form: null, fields: [] },
];

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
    const rest = "(?<random> random)?(?: clients (?<clients>\\d[\\d_]*)(?: zipf (?<zipf>[\\d.]+))?)?(?: cost (?<cost>\\d[\\d_]*))?";
    const found = new RegExp(`^${own}${rest}$`).exec(trimmed)?.groups;
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
