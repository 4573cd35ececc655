// @ts-check
/** Every message of a call, as developers want to see it; the oldest give way. */

const MOST = 1000;
const FREQUENT = new Set(['audio', 'playback']);

/** @typedef {{number: number, at: number, way: 'in' | 'out' | 'page', type: string, text: string}} Event
 *  `at`: milliseconds since the call began. `text`: JSON. */

export class EventLog {
  /** @param {{most?: number, now?: () => number}} [options] `now`: milliseconds */
  constructor({ most = MOST, now = () => performance.now() } = {}) {
    this._most = most;
    this._now = now;
    this._began = now();
    this._count = 0;
    /** @type {Event[]} */
    this.events = [];
    /** Events that were forgotten. */
    this.dropped = 0;
    /** @type {(event: Event) => void} */
    this.onEvent = () => {};
  }

  /** A call begins: its time counts from now. */
  begin() {
    this._began = this._now();
  }

  /** @param {'in' | 'out' | 'page'} way @param {{type: string, [field: string]: unknown}} message */
  add(way, message) {
    this._count += 1;
    const event = {
      number: this._count,
      at: this._now() - this._began,
      way,
      type: message.type,
      text: JSON.stringify(message),
    };
    this.events.push(event);
    if (this.events.length > this._most) {
      this.events.shift();
      this.dropped += 1;
    }
    this.onEvent(event);
  }

  clear() {
    this.events = [];
    this.dropped = 0;
  }

  /**
   * @param {string} filter words that all have to be in an event
   * @param {boolean} frequent whether `audio` and `playback` are wanted too
   * @returns {Event[]}
   */
  matching(filter, frequent) {
    return this.events.filter((event) => matches(event, filter, frequent));
  }
}

/** @param {Event} event @param {string} filter @param {boolean} frequent @returns {boolean} */
export function matches({ type, text }, filter, frequent) {
  if (!frequent && FREQUENT.has(type)) return false;
  const lower = text.toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => lower.includes(word));
}
