// @ts-check
/** Keeps the sound of a call: the user on the left, the agent on the right. The oldest gives way. */
import { RATE } from './framer.js';

const LIMIT_S = 30 * 60;
/** Clocks of both sides are the audio context's: frames that seem to lie so near are neighbours. */
const NEAR = 16;
const BLOCK = 10 * RATE;

/** @typedef {{at: number, samples: Int16Array}} Piece `at`: index of its first sample since the beginning */

export class Recorder {
  /** @param {number} [limitS] seconds that are kept */
  constructor(limitS = LIMIT_S) {
    this._limit = Math.round(limitS * RATE);
    this.begin();
  }

  /** Forget everything: another call begins. */
  begin() {
    /** @type {{user: Piece[], agent: Piece[]}} */
    this._pieces = { user: [], agent: [] };
    this._next = { user: 0, agent: 0 };
    /** @type {number | null} the context's time of sample 0, in samples */
    this._origin = null;
    this._end = 0;
  }

  /**
   * @param {'user' | 'agent'} side
   * @param {Int16Array} samples 16 kHz
   * @param {number} endS when its last sample was, on the context's clock
   */
  add(side, samples, endS) {
    const at = Math.round(endS * RATE) - samples.length;
    this._origin ??= at;
    const expected = this._next[side];
    let index = at - this._origin;
    if (Math.abs(index - expected) <= NEAR) index = expected;
    if (index < expected) return; // it was said before the beginning, or is there already
    this._next[side] = index + samples.length;
    this._end = Math.max(this._end, this._next[side]);
    // Silence takes no room.
    if (samples.some((sample) => sample !== 0)) this._pieces[side].push({ at: index, samples });
    const first = this._first;
    for (const pieces of Object.values(this._pieces)) {
      while (pieces.length && pieces[0].at < first) pieces.shift();
    }
  }

  get _first() {
    return Math.max(0, this._end - this._limit);
  }

  /** @returns {number} seconds that can be had */
  get seconds() {
    return (this._end - this._first) / RATE;
  }

  /** @returns {number} seconds at the beginning that are lost */
  get lostSeconds() {
    return this._first / RATE;
  }

  /** @returns {ArrayBuffer[]} a WAV file in parts: 16 kHz, two channels, PCM16 */
  wav() {
    const count = this._end - this._first;
    const parts = [headerOf(count)];
    const next = { user: 0, agent: 0 };
    for (let at = this._first; at < this._end; at += BLOCK) {
      const block = new Int16Array(2 * Math.min(BLOCK, this._end - at));
      this._fill(block, 0, 'user', at, next);
      this._fill(block, 1, 'agent', at, next);
      parts.push(block.buffer);
    }
    return parts;
  }

  /**
   * @param {Int16Array} block interleaved @param {number} channel @param {'user' | 'agent'} side
   * @param {number} from index of its first sample @param {{user: number, agent: number}} next pieces to look at
   */
  _fill(block, channel, side, from, next) {
    const pieces = this._pieces[side];
    const length = block.length / 2;
    for (let i = next[side]; i < pieces.length && pieces[i].at < from + length; i += 1) {
      const { at, samples } = pieces[i];
      const start = Math.max(0, from - at);
      const stop = Math.min(samples.length, from + length - at);
      for (let k = start; k < stop; k += 1) block[2 * (at + k - from) + channel] = samples[k];
      if (at + samples.length <= from + length) next[side] = i + 1;
    }
  }
}

/** @param {number} count samples of each channel @returns {ArrayBuffer} */
function headerOf(count) {
  const view = new DataView(new ArrayBuffer(44));
  const write = (/** @type {number} */ at, /** @type {string} */ text) => {
    for (let i = 0; i < text.length; i += 1) view.setUint8(at + i, text.charCodeAt(i));
  };
  write(0, 'RIFF');
  view.setUint32(4, 36 + 4 * count, true);
  write(8, 'WAVEfmt ');
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 2, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, 4 * RATE, true);
  view.setUint16(32, 4, true);
  view.setUint16(34, 16, true);
  write(36, 'data');
  view.setUint32(40, 4 * count, true);
  return /** @type {ArrayBuffer} */ (view.buffer);
}
