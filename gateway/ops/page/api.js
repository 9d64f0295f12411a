/**
 * Asks the gateway. The token is kept for this tab alone (sessionStorage), goes out in a header only, and is taken out of
 * the address as soon as it was read.
 */

import { learn } from "./dom.js";

const KEY = "reverie.token";

export class ApiError extends Error {
  /** `status`: of HTTP; 0: nobody answered. `asker`: the token that it was asked with. */
  constructor(status, message, asker = null) {
    super(message);
    this.status = status;
    this.asker = asker;
  }
}

/** From `#token=...`, if it is there. */
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

/** A header's value is bytes: what is no ASCII could not be sent. */
export const sendable = (said) => /^[\x21-\x7e]+$/.test(said);

/** An answer, still to be read. Raises ApiError for everything but success. */
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

/** What is wrong, in the gateway's words. */
async function problem(response) {
  const text = (await response.text().catch(() => "")).slice(0, 500);
  try {
    return String(JSON.parse(text).detail ?? text);
  } catch {
    return text;
  }
}

/** An answer, read as JSON. `query`: values; null and "" are left out. */
export async function get(path, query = {}) {
  const asked = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  const response = await open(asked.size ? `${path}?${asked}` : path, { signal: AbortSignal.timeout(20_000) });
  try {
    return learn(await response.json());
  } catch {
    throw new ApiError(0, "the gateway was cut off while it answered");
  }
}
