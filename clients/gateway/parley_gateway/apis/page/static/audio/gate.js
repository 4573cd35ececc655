// @ts-check
/**
 * Whether the loudspeaker may play: what the server has said about waiting, going on, and dropping.
 *
 * A response that may be interrupted holds up the whole loudspeaker, whatever is queued behind it,
 * until the server has decided about that response.
 */

const REMEMBERED = 32;

export class Gate {
  constructor() {
    /** @type {Set<string>} */
    this._paused = new Set();
    /** @type {Set<string>} in the order in which they were dropped */
    this._dropped = new Set();
  }

  /** @returns {boolean} */
  get isOpen() {
    return this._paused.size === 0;
  }

  /** @param {string} id @returns {boolean} whether audio of this response is still wanted */
  takes(id) {
    return !this._dropped.has(id);
  }

  /** @param {string} id */
  pause(id) {
    if (this.takes(id)) remember(this._paused, id);
  }

  /** @param {string} id */
  resume(id) {
    this._paused.delete(id);
  }

  /** @param {string} id nothing of this response is wanted any more */
  interrupt(id) {
    this._paused.delete(id);
    remember(this._dropped, id);
  }
}

/** @param {Set<string>} set @param {string} id */
function remember(set, id) {
  set.add(id);
  if (set.size > REMEMBERED) set.delete(/** @type {string} */ (set.values().next().value));
}
