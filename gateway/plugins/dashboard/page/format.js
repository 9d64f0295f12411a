/** Numbers and times for people. Times are local; the tooltip has them in UTC. */

import { h } from "./dom.js";

const clock = (options) => new Intl.DateTimeFormat(undefined, { hourCycle: "h23", ...options }).format;
/** Format a time for an axis. */
export const hour = clock({ hour: "2-digit", minute: "2-digit" });
export const day = clock({ month: "short", day: "numeric" });
const second = clock({ hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Milliseconds that the gateway's clock is ahead of this machine's. */
let ahead_ms = 0;

/** Set the clock from an answer of the gateway. */
export function setClock(iso) {
  const ahead = Date.parse(iso) - Date.now();
  ahead_ms = Math.abs(ahead) > 3_000 ? ahead : 0; // smaller differences are the time of transport
}

/** Return the gateway's time in ms. */
export const now = () => Date.now() + ahead_ms;

/** Format as `14:03:59`, with the date if it is not today. */
function moment(iso) {
  const at = new Date(iso);
  return at.toDateString() === new Date(now()).toDateString() ? second(at) : `${day(at)} ${second(at)}`;
}

/** Return a `<time>` element. */
export const time = (iso, words = moment(iso)) =>
  h("time", { datetime: iso, title: `${new Date(iso).toISOString().replace("T", " ").slice(0, 19)} UTC` }, words);

/** Format as `3 min`: the largest unit that is not 0. */
export function span(seconds) {
  const s = Math.max(0, seconds);
  const [size, unit] = [[86_400, "d"], [3_600, "h"], [60, "min"]].find(([one]) => s >= one) ?? [1, "s"];
  return `${Math.floor(s / size)} ${unit}`;
}

export const since = (iso) => span((now() - Date.parse(iso)) / 1000);
/** Format a duration that may be short; null: not known. */
export const took = (seconds) => (seconds === null ? "–" : seconds < 10 ? `${seconds.toFixed(1)} s` : span(seconds));

const formatter = (options) => {
  const { format } = new Intl.NumberFormat("en", options);
  return (value) => (value === null || value === undefined ? "–" : format(value));
};
/** Format as `12.3K`. */
export const tokens = formatter({ notation: "compact", maximumSignificantDigits: 3 });
/** Format a share of 1 as percent. */
export const share = formatter({ style: "percent" });
const cents = formatter({ style: "currency", currency: "USD" });
const parts = formatter({ style: "currency", currency: "USD", maximumFractionDigits: 4 });
/** Format dollars; null: the price is not known. */
export const dollars = (usd) => (usd >= 1 ? cents : parts)(usd);
/** Format as `12.3 MB`. */
export const bytes = (count) => `${Number((count / 1e6).toPrecision(3))} MB`;

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
/** Return the sum of all input tokens: the three kinds do not overlap. */
export const input = (one) => one.input_tokens + one.read_tokens + one.written_tokens;
