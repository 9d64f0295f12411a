/** Scheduling of loads. */

import { token } from "./api.js";

const RETRY_MS = 5_000;

/**
 * Loads on demand, at most once in `gap_ms`, never twice at the same time, and by itself after `idle_ms`, or sooner
 * after a load that failed. What is loaded for views that are not shown waits until one is.
 */
export class Refresh {
  /** `failed`: called with the errors of `read`. `views`: names of the views that show it; null: all. */
  constructor(read, failed, gap_ms, views = null, idle_ms = 60_000) {
    Object.assign(this, { read, failed, gap_ms, idle_ms, views, timer: null, busy: false, again: false, broken: false, last: 0 });
  }

  /** Name of the view that is shown. */
  static view = "";

  get idle() {
    return this.views !== null && !this.views.includes(Refresh.view);
  }

  soon() {
    if (this.busy) this.again = true;
    else if (this.idle) this.last = 0;
    else this.timer ??= setTimeout(() => this.now(), Math.max(200, this.last + this.gap_ms - Date.now()));
  }

  async now() {
    clearTimeout(this.timer);
    this.timer = null;
    if (!token() || this.busy || this.idle) return;
    Object.assign(this, { busy: true, again: false, broken: false });
    try {
      await this.read();
    } catch (error) {
      this.broken = true;
      this.failed(error);
    }
    this.busy = false;
    this.last = Date.now();
    if (this.again) this.soon();
  }

  /** Check once a second whether a load is due. */
  tick(now = Date.now()) {
    if (!this.busy && now - this.last > (this.broken ? RETRY_MS : this.idle_ms)) this.soon();
  }
}
