/**
 * Client of `/api/events` (server-sent events, https://html.spec.whatwg.org/multipage/server-sent-events.html). It uses
 * fetch, because EventSource cannot send a token. After an interruption the page loads again what it shows.
 */

import { open } from "./api.js";

const FIRST_S = 0.5;
const LONGEST_S = 15;
/** Silence after which the connection is dead; the gateway sends something every 15 s. */
const SILENT_MS = 40_000;

/**
 * Return the events `{event, data}` of a text, and its rest, which continues. The gateway ends lines with LF, and
 * writes the data of an event on one line.
 */
export function parse(text) {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const fields = (block) => Object.fromEntries(block.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
  return { events: blocks.map(fields).filter((one) => one.data), rest };
}

/** Connection to the event stream; reconnects while the page is open. */
export class Events {
  /**
   * `heard(type, body)`: called for each event. `state(name)`: called with `connecting`, `live`, `reconnecting`, `resting`
   * (the tab is hidden), or `refused` and the error (no further try).
   */
  constructor(heard, state) {
    Object.assign(this, { heard, state, tries: 0, running: null });
  }

  /** Connect, or connect again. */
  start() {
    this.stop();
    this.running = new AbortController();
    this.loop(this.running.signal);
  }

  stop(state = null) {
    this.running?.abort();
    this.running = null;
    if (state) this.state(state);
  }

  async loop(stopped) {
    while (!stopped.aborted) {
      this.state("connecting");
      try {
        await this.read(stopped);
      } catch (error) {
        if (stopped.aborted) return;
        if (error.status === 401 || error.status === 403) {
          this.stop();
          return this.state("refused", error);
        }
      }
      if (stopped.aborted) return;
      const wait_s = Math.min(LONGEST_S, FIRST_S * 2 ** this.tries) * (0.8 + 0.4 * Math.random());
      this.tries += 1;
      this.state("reconnecting");
      await new Promise((done) => setTimeout(done, wait_s * 1000));
    }
  }

  async read(stopped) {
    const silent = new AbortController();
    let timer = null;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENT_MS);
    };
    alive();
    try {
      const response = await open("/api/events", { signal: AbortSignal.any([stopped, silent.signal]) });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      this.state("live");
      for (let text = ""; ; ) {
        const { done, value } = await reader.read();
        if (done) return;
        this.tries = 0;
        alive();
        const { events, rest } = parse(text + value);
        text = rest;
        for (const { event, data } of events) this.heard(event, JSON.parse(data));
      }
    } finally {
      clearTimeout(timer);
    }
  }
}
