/**
 * Requests to the gateway's API. The token is kept for this tab only (sessionStorage), is sent in a header only, and is
 * removed from the address as soon as it was read.
 */

import { learn } from "./dom.js";

const KEY = "reverie.token";
const RANKS = ["read", "operate", "own"];

export class ApiError extends Error {
  /** `status`: HTTP status; 0: no answer. `asker`: the token that the request was sent with. */
  constructor(status, message, asker = null) {
    super(message);
    Object.assign(this, { status, asker });
  }
}

/** Read the token from `#token=...`, if it is there. */
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!found) return;
  sessionStorage.setItem(KEY, found);
  history.replaceState(null, "", location.pathname + location.search);
}

export const token = () => sessionStorage.getItem(KEY);
export const setToken = (said) => sessionStorage.setItem(KEY, said);
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** Return whether a header can carry the text: ASCII only. */
export const sendable = (said) => /^[\x21-\x7e]+$/.test(said);

let me = { name: "", role: "read" };

/** Load who the token stands for. */
export async function loadMe() {
  me = await get("/api/me");
}

/** Return whether the token may do what needs a role. */
export const may = (role) => RANKS.indexOf(me.role) >= RANKS.indexOf(role);

/** Send a request and return the response. Throws ApiError unless it succeeded. */
export async function open(path, { headers = {}, ...options } = {}) {
  const asker = token() ?? "";
  let response;
  try {
    response = await fetch(path, {
      ...options,
      headers: { ...headers, Authorization: `Bearer ${asker}` },
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the gateway does not answer");
  }
  if (!response.ok) throw new ApiError(response.status, await problem(response), asker);
  return response;
}

/** Return the error message of the gateway. */
async function problem(response) {
  const text = (await response.text().catch(() => "")).slice(0, 500);
  try {
    return String(JSON.parse(text).detail ?? text);
  } catch {
    return text;
  }
}

async function read(path, options, seconds) {
  const response = await open(path, { ...options, signal: AbortSignal.timeout(seconds * 1000) });
  try {
    return learn(await response.json());
  } catch {
    throw new ApiError(0, "the connection broke while the gateway answered");
  }
}

/** Send a request and return its JSON. `query`: values; null and "" are left out. */
export function get(path, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => (value ?? "") !== ""));
  return read(asked.size ? `${path}?${asked}` : path, {}, 20);
}

/** As `get`. Null: this gateway does not have the path, or the role may not read it. */
export async function maybe(path, query = {}) {
  try {
    return await get(path, query);
  } catch (error) {
    if (error.status === 404 || error.status === 403) return null;
    throw error;
  }
}

/** Post a JSON body and return the answer's JSON. */
export const post = (path, body) =>
  read(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }, 60);
