// @ts-check
/**
 * What has been heard, as opposed to what has been handed to the sound device: that is later by the
 * output latency, on some headphones by a quarter of a second.
 */

const HISTORY_S = 2;

/** @typedef {{end: number, id: string | null, playing: boolean, playedMs: number}} Report
 *  The state of the queue when the sample at context time `end` (seconds) had been handed out. */

export class HeardTracker {
  constructor() {
    /** @type {Report[]} the oldest first */
    this._reports = [];
  }

  /** @param {Report} report */
  note(report) {
    this._reports.push(report);
    const { _reports: reports } = this;
    while (reports.length > 2 && reports[1].end < report.end - HISTORY_S) reports.shift();
  }

  /**
   * What is being heard at a time.
   * @param {number} time on the audio context's clock, seconds
   * @returns {{id: string | null, playing: boolean, playedMs: number}}
   */
  at(time) {
    const index = this._reports.findLastIndex((report) => report.end <= time);
    const before = this._reports[index];
    const after = this._reports[index + 1];
    if (!before) return { id: null, playing: false, playedMs: 0 };
    if (!after || after.playedMs === 0)
      return { id: before.id, playing: before.playing, playedMs: before.playedMs };
    // Between two responses: the second began as long ago as it has been played.
    const began = after.id === before.id ? before.end : after.end - after.playedMs / 1000;
    if (time <= began) return { id: before.id, playing: before.playing, playedMs: before.playedMs };
    const from = after.id === before.id ? before.playedMs : 0;
    const part = (time - began) / (after.end - began);
    return { id: after.id, playing: true, playedMs: from + part * (after.playedMs - from) };
  }

  clear() {
    this._reports = [];
  }
}

const INTERVAL_MS = 200;

/**
 * Tells the server how much of each response was heard: now and then while it is played, and at once when
 * it falls silent, so that the last mark of a response that was played to its end says so.
 */
export class PlaybackMarks {
  /** @param {(id: string, playedMs: number) => void} send */
  constructor(send) {
    this._send = send;
    /** @type {string | null} */
    this._playing = null;
    this._playedMs = 0;
    this._next = 0;
  }

  /**
   * Call this often.
   * @param {{id: string | null, playing: boolean, playedMs: number}} heard
   * @param {number} now milliseconds
   */
  update(heard, now) {
    const playing = heard.playing && heard.playedMs > 0 ? heard.id : null;
    if (this._playing !== null && playing !== this._playing) {
      const last = heard.id === this._playing ? heard.playedMs : this._playedMs;
      this._send(this._playing, Math.round(last));
    } else if (playing !== null && now >= this._next) {
      this._send(playing, Math.round(heard.playedMs));
      this._next = now + INTERVAL_MS;
    }
    this._playing = playing;
    this._playedMs = heard.playedMs;
  }
}
