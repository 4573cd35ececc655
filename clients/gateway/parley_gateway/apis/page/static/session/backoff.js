// @ts-check
/** How long to wait before trying again: longer each time, and never in step with other pages. */

const FIRST_MS = 500;
const LONGEST_MS = 5000;

export class Backoff {
  /** @param {() => number} [random] 0-1 @param {number} [firstMs] the longest first wait */
  constructor(random = Math.random, firstMs = FIRST_MS) {
    this._random = random;
    this._firstMs = firstMs;
    this._tries = 0;
  }

  /** @param {number} [atLeastMs] what the server asked for @returns {number} milliseconds */
  next(atLeastMs = 0) {
    const full = Math.min(LONGEST_MS, this._firstMs * 2 ** this._tries);
    this._tries += 1;
    return Math.max(full * (0.5 + this._random() / 2), atLeastMs * (1 + this._random() / 4));
  }

  /** It worked: begin with the shortest wait again. */
  reset() {
    this._tries = 0;
  }
}
