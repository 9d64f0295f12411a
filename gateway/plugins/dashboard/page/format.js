/** Numbers and times for people. Times are local; the tooltip has them in UTC. */

import { h } from "./dom.js";

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const SHORT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** Milliseconds that the gateway's clock is ahead of this machine's. */
let ahead_ms = 0;

/** Set the clock from an answer of the gateway. */
export function setClock(iso) {
  const ahead = new Date(iso).getTime() - Date.now();
  ahead_ms = Math.abs(ahead) > 3_000 ? ahead : 0; // smaller differences are the time of transport
}

/** Return the gateway's time in ms. */
export const now = () => Date.now() + ahead_ms;

const midnight = () => new Date(now()).setHours(0, 0, 0, 0);

/** Format as `14:03:59`, with the date if it is not today. */
export function moment(iso) {
  const at = new Date(iso);
  const words = CLOCK.format(at);
  return at.getTime() >= midnight() && at.getTime() < midnight() + 86_400_000 ? words : `${DAY.format(at)} ${words}`;
}

/** Format a time for an axis. */
export const hour = (at) => SHORT.format(at);
export const day = (at) => DAY.format(at);

export const utc = (iso) => `${new Date(iso).toISOString().replace("T", " ").slice(0, 19)} UTC`;

/** Return a `<time>` element. */
export const time = (iso, words = moment(iso)) => h("time", { datetime: iso, title: utc(iso) }, words);

/** Format as `3 min`: the largest unit that is not 0. */
export function span(seconds) {
  const s = Math.max(0, seconds);
  for (const [size, unit] of [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
  ])
    if (s >= size) return `${Math.floor(s / size)} ${unit}`;
  return `${Math.floor(s)} s`;
}

export const since = (iso) => span((now() - new Date(iso).getTime()) / 1000);

/** Format as `12.3k`. */
export function tokens(count) {
  if (count === null || count === undefined) return "–";
  if (count < 1_000) return String(count);
  const [size, unit] = count < 999_500 ? [1_000, "k"] : [1_000_000, "M"];
  const value = count / size;
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value)}${unit}`;
}

/** Format as `12.3 MB`. */
export function bytes(count) {
  const [size, unit] = count < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  const value = count / size;
  return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

/** Format dollars; null: the price is not known. */
export function dollars(usd) {
  if (usd === null || usd === undefined) return "–";
  if (usd === 0) return "$0";
  return usd >= 1 ? `$${usd.toFixed(2)}` : usd >= 0.0995 ? `$${usd.toFixed(3)}` : `$${usd.toFixed(4)}`;
}

/** Format a share of 1 as percent. */
export const share = (one) => (one === null || one === undefined ? "–" : `${Math.round(one * 100)} %`);

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** Sum of all input tokens: the three kinds do not overlap. */
export const input = (one) => one.input_tokens + one.read_tokens + one.written_tokens;

/** Return the account of a notification type (dotted: the account first, then the kind). */
export const channelOf = ({ conversation, type, kind }) =>
  conversation ? conversation.split("/", 1)[0] : type.split(`.${kind}`, 1)[0];
