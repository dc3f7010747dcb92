// A run as a URL query, for the page and for the stream.

/** What a page shows that was told nothing. */
export const DEFAULTS = {
  limits: ["20/s burst 50", "fixed 20/s"],
  traffic: "square 60/s 5/s every 10s",
  for: "30s",
  seed: "1",
  speed: "2",
  store: "memory",
  holding: "",
  server: "",
};

/** The query of some settings. The same settings make the same text. */
export function toQuery(settings) {
  const query = new URLSearchParams();
  for (const limit of settings.limits) query.append("limit", limit);
  query.append("traffic", settings.traffic);
  query.append("for", settings.for);
  query.append("seed", settings.seed);
  query.append("speed", settings.speed);
  if (settings.holding) query.append("holding", settings.holding);
  if (settings.server) query.append("server", settings.server);
  if (settings.store !== "memory") query.append("store", settings.store);
  return query.toString();
}

/** The settings of a query; `null` if it describes no run. */
export function fromQuery(text) {
  const query = new URLSearchParams(text);
  if (!query.has("limit") && !query.has("traffic")) return null;
  const of = (name, fallback) => query.get(name) ?? fallback;
  return {
    limits: query.getAll("limit"),
    traffic: of("traffic", ""),
    for: of("for", "1min"),
    seed: of("seed", "1"),
    speed: of("speed", "1"),
    store: of("store", "memory"),
    holding: of("holding", ""),
    server: of("server", ""),
  };
}
