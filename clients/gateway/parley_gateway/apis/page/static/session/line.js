// @ts-check
/**
 * Keeps a call up: connects, connects again when the connection is lost, and stops when somebody says so.
 *
 * States: `idle`, `connecting`, `live`, `busy` (429: tries again), `away` (the gateway shuts down or is not
 * ready: tries again), `lost` (tries again), `locked` (a key is needed), `failed`, `ended`.
 */
import { Refusal, createSession } from './api.js';
import { Backoff } from './backoff.js';
import { Stream } from './stream.js';

/** A call that lasted this long was a good one. */
const GOOD_MS = 5000;

/**
 * @typedef {'idle' | 'connecting' | 'live' | 'busy' | 'away' | 'lost' | 'locked' | 'failed' | 'ended'} Phase
 */
/** @typedef {{phase: Phase, detail: string, code: string, retry: boolean, retryAfterMs: number}} Outcome */
/** @typedef {{phase: Phase, detail: string, code: string, retryAt: number, again: boolean}} LineState
 *  `detail`: for people, `code`: a stable word. `retryAt`: on the clock of performance.now(), 0: not at all.
 *  `again`: there was a connection before. */

export class Line {
  /**
   * @param {{
   *   onState: (state: LineState) => void,
   *   onMessage: (message: import('./stream.js').Message, samples: Int16Array | null) => void,
   * }} handlers
   */
  constructor({ onState, onMessage }) {
    this._onState = onState;
    this._onMessage = onMessage;
    /** @type {string | null} in memory only */
    this.key = null;
    /** @type {Stream | null} */
    this._stream = null;
    /** @type {AbortController | null} of the call as a whole */
    this._call = null;
    /** @type {(() => void) | null} */
    this._wake = null;
    this._closedReason = '';
    globalThis.addEventListener?.('online', () => this.retryNow());
  }

  /** @returns {boolean} whether a call is wanted */
  get isWanted() {
    return this._call !== null;
  }

  /**
   * Hold a call until it is over.
   * @param {() => object} options of each session, as they are when it begins
   */
  async hold(options) {
    if (this._call) return;
    const call = new AbortController();
    this._call = call;
    const backoff = new Backoff();
    let again = false;
    try {
      for (;;) {
        this._tell({ phase: 'connecting', again });
        const outcome = await this._once(options(), call.signal, backoff, () => {
          this._tell({ phase: 'live', again });
          again = true;
        });
        if (!outcome.retry) {
          this._tell({ ...outcome, again });
          return;
        }
        const waitMs = backoff.next(outcome.retryAfterMs);
        this._tell({ ...outcome, retryAt: performance.now() + waitMs, again });
        await this._wait(waitMs, call.signal);
      }
    } catch (error) {
      if (!call.signal.aborted) throw error;
      this._tell({ phase: 'ended', detail: 'hangup', code: 'hangup', again });
    } finally {
      this._call = null;
    }
  }

  hangUp() {
    this._stream?.send({ type: 'control', action: 'hangup' });
    this._call?.abort();
    this._wake?.();
  }

  /** The call cannot be held, for a reason of the page's own. @param {string} why */
  fail(why) {
    this._tell({ phase: 'failed', detail: why });
  }

  /** Do not wait any longer. */
  retryNow() {
    this._wake?.();
  }

  /** @param {Int16Array} samples @returns {boolean} whether they were sent */
  sendAudio(samples) {
    return this._stream?.sendAudio(samples) ?? false;
  }

  /** @param {import('./stream.js').Message} message */
  send(message) {
    this._stream?.send(message);
  }

  /**
   * One session, from its creation to its end.
   * @param {object} options @param {AbortSignal} signal @param {Backoff} backoff @param {() => void} onLive
   * @returns {Promise<Outcome>}
   */
  async _once(options, signal, backoff, onLive) {
    this._closedReason = '';
    /** @type {Stream} */
    let stream;
    try {
      const session = await createSession(options, this.key, signal);
      stream = await Stream.open(session, (message, samples) => this._take(message, samples), signal);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return outcomeOf(error);
    }
    const stop = () => stream.close();
    signal.addEventListener('abort', stop);
    if (signal.aborted) stop();
    this._stream = stream;
    const began = performance.now();
    onLive();
    const closure = await stream.closed;
    this._stream = null;
    signal.removeEventListener('abort', stop);
    signal.throwIfAborted();
    if (performance.now() - began > GOOD_MS) backoff.reset();
    return outcomeOfClosure(closure, this._closedReason);
  }

  /** @param {import('./stream.js').Message} message @param {Int16Array | null} samples */
  _take(message, samples) {
    if (message.type === 'closed') this._closedReason = message.reason;
    this._onMessage(message, samples);
  }

  /** @param {number} ms @param {AbortSignal} signal */
  async _wait(ms, signal) {
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this._wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
    this._wake = null;
    signal.throwIfAborted();
  }

  /** @param {{phase: Phase, detail?: string, code?: string, retryAt?: number, again?: boolean}} state */
  _tell({ phase, detail = '', code = '', retryAt = 0, again = false }) {
    this._onState({ phase, detail, code, retryAt, again });
  }
}

/** @param {Refusal} refusal @returns {Outcome} */
function outcomeOf(refusal) {
  const { status, retryAfterMs, message, code } = refusal;
  if (status === 401) {
    return { phase: 'locked', detail: message, code, retry: false, retryAfterMs };
  }
  /** @type {Phase} */
  const phase = status === 429 ? 'busy' : refusal.retryable ? 'away' : 'failed';
  return { phase, detail: message, code, retry: refusal.retryable, retryAfterMs };
}

/**
 * @param {import('./stream.js').Closure} closure @param {string} told by the agent's last message
 * @returns {Outcome}
 */
function outcomeOfClosure({ code, reason }, told) {
  const detail = told || reason;
  /** @type {Phase} */
  let phase = 'lost';
  if (code === 1001 || told === 'shutdown') phase = 'away';
  else if (code === 1000) phase = 'ended';
  else if (code === 1008 || code === 1009) phase = 'failed';
  return { phase, detail, code: detail, retry: phase === 'lost' || phase === 'away', retryAfterMs: 0 };
}
