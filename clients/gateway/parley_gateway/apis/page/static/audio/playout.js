// @ts-check
/**
 * The loudspeaker's queue: evens out when audio arrives, and never clicks.
 *
 * Playing begins when a little audio has arrived (`startMs`), or all of a response. Where audio comes too
 * late the sound is faded out over the last samples there are, the next start waits for more
 * (up to `longestStartMs`), and each response without a gap makes that a little less again.
 */
import { Gate } from './gate.js';
import { Resampler } from './resampler.js';
import { toFloat } from './pcm.js';

const FADE_MS = 4;
const DEFAULTS = { startMs: 40, stepMs: 40, longestStartMs: 240, limitS: 60 };
const REMEMBERED = 32;

/** @typedef {{id: string, samples: Float32Array, read: number}} Piece */

export class Playout {
  /**
   * @param {number} rate of the output, hertz
   * @param {Partial<typeof DEFAULTS>} [options]
   */
  constructor(rate, options = {}) {
    this._rate = rate;
    this._options = { ...DEFAULTS, ...options };
    this._fade = Math.max(1, Math.round((FADE_MS / 1000) * rate));
    this._gate = new Gate();
    /** @type {Piece[]} */
    this._pieces = [];
    /** @type {Float32Array} what is left of something that was dropped while it sounded, already faded */
    this._tail = new Float32Array(0);
    /** @type {string | null} the response that was heard last */
    this._current = null;
    this._queued = 0;
    this._gain = 0;
    this._flowing = false;
    this._startMs = this._options.startMs;
    /** @type {Map<string, Resampler>} those of responses that are still arriving, by id and rate */
    this._resamplers = new Map();
    /** @type {Set<string>} responses that are complete */
    this._complete = new Set();
    /** @type {Map<string, number>} samples handed out */
    this._played = new Map();
    this.underruns = 0;
    this.overflowS = 0;
  }

  /**
   * A piece of a response arrives.
   * @param {string} id @param {Int16Array} samples @param {number} sampleRate hertz
   */
  push(id, samples, sampleRate) {
    if (!this._gate.takes(id) || !samples.length) return;
    if (this._queued > this._options.limitS * this._rate) {
      this.overflowS += samples.length / sampleRate;
      return;
    }
    const key = `${sampleRate} ${id}`;
    let resampler = this._resamplers.get(key);
    if (!resampler) {
      resampler = new Resampler(sampleRate, this._rate);
      this._resamplers.set(key, resampler);
      trim(this._resamplers);
    }
    resampler.process(toFloat(samples), (output) => this._queue(id, output));
  }

  /** No more audio of this response follows. @param {string} id */
  finish(id) {
    for (const [key, resampler] of this._resamplers) {
      if (!key.endsWith(` ${id}`)) continue;
      resampler.flush((output) => this._queue(id, output));
      this._resamplers.delete(key);
    }
    this._complete.add(id);
    trim(this._complete);
  }

  /** Fall silent and keep what has not been played. @param {string} id */
  pause(id) {
    this._gate.pause(id);
  }

  /** Go on where it was. @param {string} id */
  resume(id) {
    this._gate.resume(id);
  }

  /** Fall silent, and drop all of this response. @param {string} id */
  interrupt(id) {
    this._gate.interrupt(id);
    if (this._flowing && this._pieces[0]?.id === id) this._tail = this._fadedRest();
    this._pieces = this._pieces.filter((piece) => piece.id !== id);
    this._queued = this._pieces.reduce((sum, piece) => sum + piece.samples.length - piece.read, 0);
    for (const key of this._resamplers.keys()) {
      if (key.endsWith(` ${id}`)) this._resamplers.delete(key);
    }
  }

  /** Fall silent and forget everything: the next call may use the same names again. */
  clear() {
    if (this._flowing && this._pieces.length) this._tail = this._fadedRest();
    this._pieces = [];
    this._queued = 0;
    this._current = null;
    this._gate = new Gate();
    for (const entries of [this._resamplers, this._complete, this._played]) entries.clear();
  }

  /** Fill the next stretch of output. @param {Float32Array} out */
  render(out) {
    out.fill(0);
    let at = this._renderTail(out);
    while (at < out.length && this._mayPlay()) {
      const piece = this._pieces[0];
      const unfinished = !this._complete.has(this._pieces[this._pieces.length - 1].id);
      const count = Math.min(out.length - at, piece.samples.length - piece.read);
      let done = 0;
      while (done < count && this._step(unfinished)) {
        out[at + done] = piece.samples[piece.read + done] * this._gain;
        this._queued -= 1;
        done += 1;
      }
      this._advance(piece, done);
      at += done;
      if (done < count) break;
    }
  }

  /**
   * What is being played, and how far it is.
   * @returns {{id: string | null, playing: boolean, playedMs: number}}
   */
  position() {
    const id = this._current;
    const played = id === null ? 0 : (this._played.get(id) ?? 0);
    return { id, playing: this._flowing, playedMs: (1000 * played) / this._rate };
  }

  /** @returns {number} milliseconds that wait to be played */
  get queuedMs() {
    return (1000 * this._queued) / this._rate;
  }

  /** @param {string} id @param {Float32Array} output */
  _queue(id, output) {
    this._pieces.push({ id, samples: output.slice(), read: 0 });
    this._queued += output.length;
  }

  /** @returns {boolean} whether there is a sample to play now; decides when to begin */
  _mayPlay() {
    if (!this._pieces.length) {
      this._flowing = false;
      this._gain = 0;
      return false;
    }
    if (this._flowing) return true;
    if (!this._gate.isOpen) return false;
    const id = this._pieces[0].id;
    const enough = this.queuedMs >= this._startMs || this._complete.has(id) || id !== this._pieces.at(-1)?.id;
    this._flowing = enough;
    return enough;
  }

  /**
   * Move the gain by one sample; false: it has reached silence, and nothing is to be taken.
   * @param {boolean} unfinished more audio should follow what is queued
   */
  _step(unfinished) {
    const starved = unfinished && this._queued <= this._fade;
    const target = this._gate.isOpen && !starved ? 1 : 0;
    const step = 1 / this._fade;
    this._gain = target ? Math.min(1, this._gain + step) : Math.max(0, this._gain - step);
    if (this._gain > 0) return true;
    this._flowing = false;
    if (starved) this._noteUnderrun();
    return false;
  }

  /** @param {Piece} piece @param {number} count samples of it that were handed out */
  _advance(piece, count) {
    if (!count) return;
    this._current = piece.id;
    piece.read += count;
    this._played.set(piece.id, (this._played.get(piece.id) ?? 0) + count);
    trim(this._played);
    if (piece.read < piece.samples.length) return;
    this._pieces.shift();
    if (!this._complete.has(piece.id) || this._pieces[0]?.id === piece.id) return;
    const { startMs, stepMs } = this._options;
    this._startMs = Math.max(startMs, this._startMs - stepMs / 4);
  }

  _noteUnderrun() {
    const { stepMs, longestStartMs } = this._options;
    this.underruns += 1;
    this._startMs = Math.min(longestStartMs, this._startMs + stepMs);
  }

  /** @returns {Float32Array} the next samples, fading to nothing */
  _fadedRest() {
    const piece = this._pieces[0];
    const rest = piece.samples.slice(piece.read, piece.read + Math.ceil(this._gain * this._fade));
    for (let i = 0; i < rest.length; i += 1) rest[i] *= this._gain * (1 - (i + 1) / rest.length);
    this._flowing = false;
    this._gain = 0;
    return rest;
  }

  /** @param {Float32Array} out @returns {number} samples written */
  _renderTail(out) {
    const count = Math.min(out.length, this._tail.length);
    out.set(this._tail.subarray(0, count));
    this._tail = this._tail.subarray(count);
    return count;
  }
}

/** Forget the oldest entries. @param {Map<string, unknown> | Set<string>} entries */
function trim(entries) {
  while (entries.size > REMEMBERED) entries.delete(/** @type {string} */ (entries.keys().next().value));
}
