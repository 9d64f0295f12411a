/**
 * Client of `/api/events` (server-sent events, https://html.spec.whatwg.org/multipage/server-sent-events.html). It uses
 * fetch, because EventSource cannot send a token, and continues behind the last id after an interruption.
 */

import { open } from "./api.js";

const FIRST_S = 0.5;
const LONGEST_S = 15;
/** Milliseconds of silence after which the connection is dead; the gateway sends something every 15 s. */
const SILENT_S = 40;

/** Parses bytes to events `{type, data, id}`. Lines may be split anywhere. */
export class Parser {
  constructor() {
    this.rest = "";
    this.clear();
  }

  clear() {
    this.type = "";
    this.data = [];
  }

  /** Yield the events that `text` completes. */
  *feed(text) {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.data.length) yield { type: this.type || "message", data: this.data.join("\n"), id: this.id };
        this.clear();
        continue;
      }
      const at = line.indexOf(":");
      const field = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
      if (field === "event") this.type = value;
      else if (field === "data") this.data.push(value);
      else if (field === "id") this.id = value;
    }
  }
}

/** Connection to the event stream; reconnects while the page is open. */
export class Events {
  /**
   * `heard(type, body)`: called for each event. `state(name, retry_s)`: called with `connecting`, `live`, `waiting`
   * (next try in `retry_s` seconds), `resting` (the tab is hidden) or `refused` (no further try). `refused(error)`:
   * called after 401 or 403.
   */
  constructor({ heard, state, refused }) {
    Object.assign(this, { heard, state, refused, after: null, tries: 0, running: null });
  }

  /** Connect, or connect again. `after`: a position in the log; null: continue behind the last one. */
  start(after = null) {
    this.stop();
    if (after !== null) this.after = String(after);
    const mine = new AbortController();
    this.running = mine;
    this.loop(mine);
  }

  stop(state = null) {
    this.running?.abort();
    this.running = null;
    if (state) this.state(state);
  }

  async loop(mine) {
    while (this.running === mine) {
      this.state("connecting");
      try {
        await this.read(mine);
      } catch (error) {
        if (this.running !== mine) return;
        if (error.status === 401 || error.status === 403) {
          this.stop("refused");
          this.refused(error);
          return;
        }
      }
      if (this.running !== mine) return;
      const wait_s = Math.min(LONGEST_S, FIRST_S * 2 ** this.tries) * (0.8 + 0.4 * Math.random());
      this.tries += 1;
      this.state("waiting", wait_s);
      await new Promise((done) => {
        const timer = setTimeout(done, wait_s * 1000);
        mine.signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
      });
    }
  }

  async read(mine) {
    const line = new AbortController();
    const end = () => line.abort();
    mine.signal.addEventListener("abort", end, { once: true });
    let timer = setTimeout(end, SILENT_S * 1000);
    try {
      const headers = this.after === null ? {} : { "Last-Event-ID": this.after };
      const response = await open("/api/events", { signal: line.signal, headers });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new Parser();
      this.state("live");
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        this.tries = 0;
        clearTimeout(timer);
        timer = setTimeout(end, SILENT_S * 1000);
        for (const event of parser.feed(value)) this.take(event);
      }
    } finally {
      clearTimeout(timer);
      mine.signal.removeEventListener("abort", end);
      line.abort();
    }
  }

  take({ type, data, id }) {
    if (id) this.after = id;
    let body;
    try {
      body = JSON.parse(data);
    } catch {
      return; // not an event of ours
    }
    this.heard(type, body);
  }
}
