/**
 * Requests to the gateway's API. The token is kept for this tab only (sessionStorage), is sent in a header only, and is
 * removed from the address as soon as it was read.
 */

import { learn } from "./dom.js";

const KEY = "reverie.token";

export class ApiError extends Error {
  /** `status`: HTTP status; 0: no answer. `asker`: the token that the request was sent with. */
  constructor(status, message, asker = null) {
    super(message);
    this.status = status;
    this.asker = asker;
  }
}

/** Read the token from `#token=...`, if it is there. */
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem(KEY, found);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

export const token = () => sessionStorage.getItem(KEY);
export const setToken = (said) => sessionStorage.setItem(KEY, said);
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** Return whether a header can carry the text: ASCII only. */
export const sendable = (said) => /^[\x21-\x7e]+$/.test(said);

/** Send a request and return the response. Throws ApiError unless it succeeded. */
export async function open(path, { signal, headers = {} } = {}) {
  const asker = token() ?? "";
  let response;
  try {
    response = await fetch(path, {
      signal,
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

/** Send a request and return its JSON. `query`: values; null and "" are left out. */
export async function get(path, query = {}) {
  const asked = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  const response = await open(asked.size ? `${path}?${asked}` : path, { signal: AbortSignal.timeout(20_000) });
  try {
    return learn(await response.json());
  } catch {
    throw new ApiError(0, "the connection broke while the gateway answered");
  }
}
