/**
 * Requests to the gateway's API, and when they are made again. The token is kept for this tab only (sessionStorage), is
 * sent in a header only, and is removed from the address as soon as it was read.
 */

const KEY = "reverie.token";
const RANKS = ["read", "operate", "own"];
const GAP_MS = 1_000;
const IDLE_MS = 60_000;
const RETRY_MS = 5_000;

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
  setToken(found);
  history.replaceState(null, "", location.pathname + location.search);
}

export const token = () => sessionStorage.getItem(KEY);
export const setToken = (text) => sessionStorage.setItem(KEY, text);

let role = "read";

/** Load what the token may do. */
export async function loadRole() {
  ({ role } = await get("/api/me"));
}

/** Return whether the token may do what needs a role. */
export const may = (needed) => RANKS.indexOf(role) >= RANKS.indexOf(needed);

/** Send a request and return the response. Throws ApiError unless it succeeded. */
export async function open(path, { headers = {}, ...options } = {}) {
  const asker = token() ?? "";
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, Authorization: `Bearer ${asker}` }, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the gateway does not answer");
  }
  if (response.ok) return response;
  const text = await response.text().catch(() => "");
  let told = text.slice(0, 500);
  try {
    told = JSON.parse(text).detail ?? told;
  } catch {
    // not from the gateway: perhaps from a proxy before it
  }
  throw new ApiError(response.status, String(told), asker);
}

async function read(path, options, seconds) {
  const response = await open(path, { ...options, signal: AbortSignal.timeout(seconds * 1000) });
  try {
    return await response.json();
  } catch {
    throw new ApiError(0, "the connection broke while the gateway answered");
  }
}

/** Send a request and return its JSON. `query`: values; null and "" are left out. */
export function get(path, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => (value ?? "") !== ""));
  return read(asked.size ? `${path}?${asked}` : path, {}, 20);
}

/** Post a JSON body and return the answer's JSON. */
export const post = (path, body) =>
  read(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }, 60);

/**
 * Loads on demand, at most once a second, never twice at the same time, and by itself once a minute, or sooner after a
 * load that failed. What is loaded for views that are not shown waits until one is.
 */
export class Refresh {
  /** Name of the view that is shown. */
  static view = "";

  /** `failed`: called with the errors of `load`. `views`: names of the views that show it; none: all. */
  constructor(load, failed, views) {
    Object.assign(this, { load, failed, views, timer: null, busy: false, again: false, last: 0, due_ms: 0 });
  }

  get idle() {
    return this.views.length > 0 && !this.views.includes(Refresh.view);
  }

  soon() {
    if (this.busy) this.again = true;
    else if (this.idle) this.last = 0;
    else this.timer ??= setTimeout(() => this.now(), Math.max(200, this.last + GAP_MS - Date.now()));
  }

  async now() {
    clearTimeout(this.timer);
    this.timer = null;
    if (!token() || this.busy || this.idle) return;
    Object.assign(this, { busy: true, again: false, due_ms: IDLE_MS });
    try {
      await this.load();
    } catch (error) {
      this.due_ms = RETRY_MS;
      this.failed(error);
    }
    Object.assign(this, { busy: false, last: Date.now() });
    if (this.again) this.soon();
  }

  /** Check once a second whether a load is due. */
  tick() {
    if (!this.busy && Date.now() - this.last > this.due_ms) this.soon();
  }
}
