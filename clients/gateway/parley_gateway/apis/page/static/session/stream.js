// @ts-check
/** The WebSocket of one session: messages and audio, both ways. */
import { Refusal, address, sessionStatus } from './api.js';

const SUBPROTOCOL = 'parley.v1';
const OPEN_MS = 20000;
/** Four seconds of audio that do not leave: nobody is there any more. */
const STALLED_BYTES = 128 * 1024;
const STALLED = 4000;

/** @typedef {{code: number, reason: string}} Closure */
/** @typedef {{type: string, [field: string]: any}} Message */

export class Stream {
  /**
   * @param {WebSocket} socket open
   * @param {(message: Message, samples: Int16Array | null) => void} onMessage samples: of an `audio` message
   */
  constructor(socket, onMessage) {
    this._socket = socket;
    /** @type {Message | null} an `audio` message whose samples come next */
    this._announced = null;
    /** @type {(string | ArrayBuffer)[] | null} what has come while it was held */
    this._held = null;
    /** Bytes that were sent by repeatAudio, as far as they may still wait. */
    this._repeated = 0;
    /** @type {(closure: Closure) => void} */
    let closed;
    /** @type {Promise<Closure>} */
    this.closed = new Promise((resolve) => {
      closed = resolve;
    });
    this._tellClosed = (/** @type {Closure} */ closure) => closed(closure);
    socket.onclose = ({ code, reason }) => this._tellClosed({ code, reason });
    socket.onmessage = ({ data }) => {
      if (this._held) this._held.push(data);
      else this._take(data, onMessage);
    };
    this._give = onMessage;
  }

  /** Keep what comes, until it is released or closed. */
  hold() {
    this._held ??= [];
  }

  release() {
    const held = this._held ?? [];
    this._held = null;
    for (const data of held) this._take(data, this._give);
  }

  /**
   * Connect to a session.
   * @param {import('./api.js').Session} session
   * @param {(message: Message, samples: Int16Array | null) => void} onMessage
   * @param {AbortSignal} signal gives up
   * @returns {Promise<Stream>}
   */
  static async open(session, onMessage, signal) {
    const url = address(`v1/sessions/${encodeURIComponent(session.session_id)}/stream`);
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
    const protocols = session.token ? ['bearer', session.token, SUBPROTOCOL] : [SUBPROTOCOL];
    const socket = new WebSocket(url, protocols);
    socket.binaryType = 'arraybuffer';
    const limit = AbortSignal.any([signal, AbortSignal.timeout(OPEN_MS)]);
    const isOpen = await new Promise((resolve) => {
      socket.onopen = () => resolve(true);
      socket.onclose = () => resolve(false);
      limit.addEventListener('abort', () => resolve(false), { once: true });
    });
    if (isOpen) return new Stream(socket, onMessage);
    socket.close();
    signal.throwIfAborted();
    throw await refusalOf(session);
  }

  /** @param {Int16Array} samples 16 kHz, mono @returns {boolean} false: the connection has stalled */
  sendAudio(samples) {
    if (this._socket.readyState !== WebSocket.OPEN) return false;
    this._repeated = Math.min(this._repeated, this._socket.bufferedAmount);
    if (this._socket.bufferedAmount > STALLED_BYTES + this._repeated) {
      this.close(STALLED, 'stalled');
      return false;
    }
    this._socket.send(samples);
    return true;
  }

  /**
   * Send the audio that an earlier connection has lost. It is more than may wait usually, and no sign of a
   * connection that has stalled.
   * @param {Int16Array[]} pieces 16 kHz, mono
   */
  repeatAudio(pieces) {
    if (this._socket.readyState !== WebSocket.OPEN) return;
    for (const samples of pieces) {
      this._repeated += samples.byteLength;
      this._socket.send(samples);
    }
  }

  /** @param {Message} message */
  send(message) {
    if (this._socket.readyState === WebSocket.OPEN) this._socket.send(JSON.stringify(message));
  }

  /**
   * It is over at once: a peer that is not there any more would be waited for a minute.
   * @param {number} [code] @param {string} [reason]
   */
  close(code = 1000, reason = 'hangup') {
    this._socket.onclose = this._socket.onmessage = null;
    this._socket.close(code, reason);
    this._tellClosed({ code, reason });
  }

  /**
   * @param {string | ArrayBuffer} data
   * @param {(message: Message, samples: Int16Array | null) => void} give
   */
  _take(data, give) {
    if (typeof data !== 'string') {
      if (this._announced) give(this._announced, new Int16Array(data));
      this._announced = null;
      return;
    }
    /** @type {Message} */
    const message = JSON.parse(data);
    if (message.type === 'audio' && message.samples > 0) this._announced = message;
    else give(message, null);
  }
}

/**
 * Browsers do not say why a WebSocket was refused; the session does.
 * @param {import('./api.js').Session} session @returns {Promise<Refusal>}
 */
async function refusalOf(session) {
  try {
    const { state, reason, message } = await sessionStatus(session);
    const isBusy = reason === 'too_many_sessions' || reason === 'too_many_calls';
    // A session that nothing can help is over; others wait for another attempt.
    const facts = { status: isBusy ? 429 : 0, code: reason, retryable: state !== 'over' };
    if (reason) return new Refusal(message || reason, facts);
  } catch (error) {
    if (error instanceof Refusal && error.status !== 404) return error;
  }
  return new Refusal('The connection could not be made.', { retryable: true });
}
