// @ts-check
/**
 * Keeps a call up: connects, connects again when the connection is lost, and stops when somebody says so.
 *
 * States: `idle`, `connecting`, `live`, `busy` (429: tries again), `away` (the gateway shuts down or is not
 * ready: tries again), `lost` (tries again), `locked` (a key is needed), `failed`, `ended`.
 */
import { Refusal, createSession } from './api.js';
import { Backoff } from './backoff.js';
import { KeptSession } from './kept.js';
import { Stream } from './stream.js';

/** A call that lasted this long was a good one. */
const GOOD_MS = 5000;
/** A conversation that has lost its connection looks for another one for so long. */
const GO_ON_MS = 30000;
const FIRST_WAIT_MS = 100;
const LEAVE_AGAIN_MS = 1000;
const MOVED = 4001;

/**
 * @typedef {'idle' | 'connecting' | 'live' | 'busy' | 'away' | 'lost' | 'locked' | 'failed' | 'ended'} Phase
 */
/** @typedef {{phase: Phase, detail: string, code: string, retry: boolean, retryAfterMs: number}} Outcome */
/** @typedef {{phase: Phase, detail: string, code: string, retryAt: number, again: boolean, goesOn: boolean}}
 *  LineState
 *  `detail`: for people, `code`: a stable word. `retryAt`: on the clock of performance.now(), 0: not at all.
 *  `again`: there was a connection before. `goesOn`: the conversation of that goes on, or may. */

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
    this._kept = new KeptSession();
    /** When the connection of a conversation was lost that may go on; 0: there is none. */
    this._lostAt = 0;
    /** What to do once the gateway goes on with the conversation. @type {(() => void) | null} */
    this._onResumed = null;
    /** @type {import('./api.js').Session | null} made for a conversation that leaves its gateway */
    this._next = null;
    /** When the conversation has to leave its gateway; 0: it has not. */
    this._leaveBy = 0;
    this._isLeaving = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._leaveTimer = undefined;
    globalThis.addEventListener?.('online', () => this.retryNow());
  }

  /** @returns {boolean} whether the conversation has no connection, and may go on over another one */
  get goesOn() {
    return this._lostAt > 0;
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
    let quick = new Backoff(Math.random, FIRST_WAIT_MS);
    let again = false;
    try {
      for (;;) {
        this._tell({ phase: 'connecting', again });
        const outcome = await this._once(options(), call.signal, backoff, () => {
          const { goesOn } = this;
          const ends = this._endOutage();
          this._tell({ phase: 'live', again, goesOn });
          for (const end of ends) this._onMessage(end, null);
          quick = new Backoff(Math.random, FIRST_WAIT_MS);
          again = true;
        });
        if (!outcome.retry) {
          this._tell({ ...outcome, again });
          return;
        }
        const { goesOn } = this;
        const waitMs = this._next ? 0 : (goesOn ? quick : backoff).next(outcome.retryAfterMs);
        this._tell({ ...outcome, retryAt: performance.now() + waitMs, again, goesOn });
        await this._wait(waitMs, call.signal);
      }
    } catch (error) {
      if (!call.signal.aborted) throw error;
      this._tell({ phase: 'ended', detail: 'hangup', code: 'hangup', again });
    } finally {
      this._call = null;
      this._kept = new KeptSession();
      this._lostAt = 0;
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

  /** @param {Int16Array} samples @returns {boolean} whether they were sent, or will be */
  sendAudio(samples) {
    const isSent = this._stream?.sendAudio(samples) ?? false;
    if (!isSent && !this.goesOn && !(this._stream && this._kept.canGoOn)) return false;
    this._kept.onAudio(samples);
    return true;
  }

  /** @param {import('./stream.js').Message} message */
  send(message) {
    if (!this._stream && !this.goesOn) return;
    this._kept.onMessage(message);
    this._stream?.send(message);
  }

  /**
   * One session, from its creation to its end.
   * @param {object} options @param {AbortSignal} signal @param {Backoff} backoff @param {() => void} onLive
   * @returns {Promise<Outcome>}
   */
  async _once(options, signal, backoff, onLive) {
    this._closedReason = '';
    this._leaveBy = 0;
    if (performance.now() - this._lostAt > GO_ON_MS) this._lostAt = 0;
    const resumes = this.goesOn;
    if (!resumes) this._kept = new KeptSession();
    /** @type {Stream} */
    let stream;
    try {
      const body = resumes ? this._kept.options() : { checkpoints: true, ...options };
      const session = this._next ?? (await createSession(body, this.key, signal));
      this._next = null;
      stream = await Stream.open(session, (message, samples) => this._take(message, samples), signal);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      if (resumes && error.code === 'not_resumable') {
        this._lostAt = 0;
        return { phase: 'lost', detail: error.message, code: error.code, retry: true, retryAfterMs: 0 };
      }
      return outcomeOf(error);
    }
    const stop = () => stream.close();
    signal.addEventListener('abort', stop);
    if (signal.aborted) stop();
    const began = performance.now();
    const go = () => {
      this._stream = stream;
      this._onResumed = null;
      onLive();
    };
    if (resumes) this._onResumed = go;
    else go();
    const closure = await stream.closed;
    clearTimeout(this._leaveTimer);
    this._stream = null;
    this._onResumed = null;
    signal.removeEventListener('abort', stop);
    signal.throwIfAborted();
    if (performance.now() - began > GOOD_MS) backoff.reset();
    const outcome = outcomeOfClosure(closure, this._closedReason);
    if (outcome.retry && this._kept.canGoOn && !this.goesOn) this._lostAt = performance.now();
    return outcome;
  }

  /**
   * There is a connection again.
   * @returns {import('./stream.js').Message[]} what the page lost with the one before
   */
  _endOutage() {
    const { goesOn } = this;
    this._lostAt = 0;
    if (!goesOn) return [];
    const ends = this._kept.ends();
    const { messages, audio } = this._kept.missing();
    for (const message of messages) this._stream?.send(message);
    this._stream?.repeatAudio(audio);
    return ends;
  }

  /** @param {import('./stream.js').Message} message @param {Int16Array | null} samples */
  _take(message, samples) {
    if (message.type === 'closed') this._closedReason = message.reason;
    const isNews = this._kept.onEvent(message);
    if (message.type === 'connected') this._onResumed?.();
    if (message.type === 'go_away') {
      this._leaveBy = performance.now() + message.time_left_ms;
      this._leaveIn(message.time_left_ms);
    }
    if (this._leaveBy && this._kept.isSettled) void this._leave();
    if (isNews) this._onMessage(message, samples);
  }

  /** @param {number} ms */
  _leaveIn(ms) {
    clearTimeout(this._leaveTimer);
    this._leaveTimer = setTimeout(() => void this._leave(), ms);
  }

  /** The gateway will stop: go on elsewhere, or stay and try again. */
  async _leave() {
    const stream = this._stream;
    const call = this._call;
    if (!stream || !call || !this._leaveBy || this._isLeaving || !this._kept.canGoOn) return;
    this._isLeaving = true;
    stream.hold();
    try {
      this._next = await createSession(this._kept.options(), this.key, call.signal);
      stream.close(MOVED, 'moved');
    } catch (error) {
      stream.release();
      if (!(error instanceof Refusal)) return;
      this._leaveIn(LEAVE_AGAIN_MS);
    } finally {
      this._isLeaving = false;
    }
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

  /**
   * @param {{phase: Phase, detail?: string, code?: string, retryAt?: number, again?: boolean, goesOn?: boolean}}
   *   state
   */
  _tell({ phase, detail = '', code = '', retryAt = 0, again = false, goesOn = false }) {
    this._onState({ phase, detail, code, retryAt, again, goesOn });
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
