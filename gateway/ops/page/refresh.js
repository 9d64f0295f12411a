/** When a panel is read again. */

import { token } from "./api.js";

/** Reads when it is told to, at most once in `gap_ms`, never twice at the same time, and each `idle_ms` by itself. */
export class Refresh {
  /** `failed`: is told what `read` raises. */
  constructor(read, failed, gap_ms, idle_ms = 60_000) {
    Object.assign(this, { read, failed, gap_ms, idle_ms, timer: null, busy: false, again: false, last: 0 });
  }

  soon() {
    if (this.busy) this.again = true;
    else this.timer ??= setTimeout(() => this.now(), Math.max(200, this.last + this.gap_ms - Date.now()));
  }

  async now() {
    clearTimeout(this.timer);
    this.timer = null;
    if (!token() || this.busy) return;
    this.busy = true;
    this.again = false;
    try {
      await this.read();
    } catch (error) {
      this.failed(error);
    }
    this.busy = false;
    this.last = Date.now();
    if (this.again) this.soon();
  }

  /** Once a second: is it long ago? */
  tick(now = Date.now()) {
    if (!this.busy && now - this.last > this.idle_ms) this.soon();
  }
}
