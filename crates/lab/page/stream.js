// Server-sent events over fetch: with request headers, error responses, and a reconnect that resumes where
// the connection was lost.

const WAITS = [300, 1_000, 2_000, 4_000];

/**
 * Follows a stream until it is stopped.
 *
 * Calls `opened()` when connected, `event(name, data)` for each event, `lost(wait)` when disconnected and about to retry after
 * `wait` milliseconds, and `refused(problem, status)` when the server refuses, which is final.
 */
export function follow(url, { headers = {}, silence = 15_000, opened, event, lost, refused }) {
  let stopped = false;
  let lastId = null;
  let attempt = 0;
  let control = null;
  let waking = null;

  async function listen() {
    control = new AbortController();
    const sent = lastId === null ? headers : { ...headers, "Last-Event-ID": lastId };
    let timer = setTimeout(() => control.abort(), silence);
    try {
      const response = await fetch(url, { headers: sent, signal: control.signal, cache: "no-store" });
      if (!response.ok) {
        const problem = await response.json().catch(() => ({ detail: `The server answers ${response.status}.` }));
        // Retry if the server is full or restarting; other errors are final.
        if (response.status >= 502 && lastId !== null) return;
        stopped = true;
        refused(problem, response.status);
        return;
      }
      attempt = 0;
      opened();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      while (!stopped) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => control.abort(), silence);
        text += value;
        let end;
        while ((end = text.indexOf("\n\n")) >= 0) {
          take(text.slice(0, end));
          text = text.slice(end + 2);
          if (stopped) return;
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  function take(block) {
    let name = "message";
    const data = [];
    for (const line of block.split("\n")) {
      const at = line.indexOf(":");
      if (at === 0) continue;
      const key = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
      if (key === "event") name = value;
      else if (key === "data") data.push(value);
      else if (key === "id") lastId = value;
    }
    if (data.length > 0) event(name, JSON.parse(data.join("\n")));
  }

  async function keepListening() {
    while (!stopped) {
      try {
        await listen();
      } catch (error) {
        // Errors other than the network's are bugs, and must not be hidden.
        if (!(error instanceof TypeError) && error.name !== "AbortError") {
          stopped = true;
          throw error;
        }
      }
      if (stopped) return;
      const wait = WAITS[Math.min(attempt, WAITS.length - 1)];
      attempt += 1;
      lost(wait);
      await new Promise((resolve) => {
        waking = resolve;
        setTimeout(resolve, wait);
      });
    }
  }

  keepListening();
  return {
    stop() {
      stopped = true;
      control?.abort();
      waking?.();
    },
  };
}
