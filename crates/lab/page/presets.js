// The guide's examples as presets.

const run = (name, about, limits, traffic, length, speed, more = {}) => ({
  name,
  about,
  settings: { limits, traffic, for: length, speed, seed: "1", store: "memory", holding: "", server: "", ...more },
});

export const PRESETS = [
  run("A rate with bursts", "Waves of traffic against a token bucket and a fixed window of the same rate.",
    ["20/s burst 50", "fixed 20/s"], "square 60/s 5/s every 10s", "30s", "2"),
  run("Login attempts: 5 a minute, strictly", "A client guesses passwords around the end of a minute. A fixed window admits twice the limit.",
    ["log 5/min", "fixed 5/min"], "boundary 8 every 1min", "5min", "15"),
  run("Posts: 300 in 3 hours", "A plain bucket allows 300 at once; a small burst or the log is stricter.",
    ["300/3h", "300/3h burst 50", "log 300/3h"], "poisson 200/h + spike 250 at 1h within 10min", "6h", "1200"),
  run("Reads: 300 a minute", "The sliding counter's estimate, compared with the exact log.",
    ["sliding 300/min", "sliding 300/min parts 6", "300/min burst 30", "log 300/min"], "square 12/s 2/s every 2min random", "6min", "20"),
  run("Messages: 5 a day", "A reset at midnight, or each message back 24 hours after it was sent.",
    ["fixed 5/day", "log 5/day"], "poisson 8/day", "10day", "43200"),
  run("Model tokens", "Each call costs thousands: a bucket by the minute, a quota by the day.",
    ["100_000/min", "fixed 2_000_000/day"], "poisson 40/min cost 4000", "1h", "180"),
  run("Calls to a partner, paced", "A shaper sends them 100 ms apart, and denies when its queue is full.",
    ["shaper 10/s queue 50", "meter 10/s burst 50"], "on-off 40/s on 2s off 6s", "24s", "1"),
  run("At most 3 exports at once", "Each export takes 40 seconds, and then releases its slot.",
    ["concurrent 3 ttl 10min"], "poisson 6/min", "15min", "45", { holding: "40s" }),
  run("A monthly quota, by the calendar", "It resets on the first of the month, whether the month has 28 days or 31.",
    ["fixed 10_000/month calendar", "fixed 10_000/month"], "poisson 450/day", "90day", "400000"),
  run("The end of a window, attacked", "A full limit just before a window ends, and another just after.",
    ["fixed 20/s", "sliding 20/s", "log 20/s", "20/s burst 10"], "boundary 20 every 1s", "12s", "1"),
  run("A rate that follows the server", "20 workers serve 500 requests a second. Under a fixed limit of 1000 the queue grows for as long as the wave lasts; an adaptive one keeps it short.",
    ["1000/s burst 50 adapt 100/s on latency > 200ms", "1000/s burst 50"], "square 800/s 200/s every 40s random", "80s", "4", { server: "20 x 40ms" }),
  run("A limit that finds the workers", "20 workers serve 200 requests a second, and 600 come. Limits on requests in flight find by response times how many the server can take; behind a rate that is set too high, the queue grows without end.",
    ["gradient2 1..200", "vegas 1..200", "1000/s burst 50"], "poisson 600/s", "90s", "10", { server: "20 x 100ms" }),
  run("One limit, many nodes", "20 and 200 nodes lease a limit from one Redis, and decide by themselves. Beside one node they deny a little early, and admit no more in any interval.",
    ["2000/s burst 2000 fleet 20", "2000/s burst 2000 fleet 200", "2000/s burst 2000"], "square 4000/s 500/s every 6s random", "24s", "2"),
  run("A crowd", "A thousand clients, a few of them busy, each with its own state.",
    ["5/s burst 20", "sliding 5/s"], "poisson 800/s clients 1000 zipf 1.1", "30s", "2"),
];
