// @ts-check
/**
 * What the page keeps of a session, so that another gateway can go on with it: the token, the audio and the
 * messages that the last checkpoint does not contain, answers of tools, and what came of each response.
 */

const RATE = 16000;
/** Audio that is kept, and so the longest that is sent again. */
const AUDIO_S = 10;
const CHUNK = RATE / 4;
const MOST = 64;

/** @typedef {import('./stream.js').Message} Message */
/**
 * @typedef {{turn: number, text: string, words: [number, string][], audioMs: number, playedMs: number,
 *   done: boolean, isOver: boolean, isPaused: boolean}} Progress
 *  `done`: its end came. `isOver`: it was interrupted.
 */

export class KeptSession {
  constructor() {
    /** @type {string | null} */
    this._token = null;
    /** @type {Message | null} the newest checkpoint */
    this._checkpoint = null;
    this._count = 0;
    /** @type {{number: number, message: Message}[]} those that the checkpoint does not contain */
    this._messages = [];
    /** @type {Message[]} answers of the newest checkpoint that have not come */
    this._answers = [];
    /** @type {Int16Array[]} the newest audio */
    this._audio = [];
    /** Samples of the session before those. */
    this._begin = 0;
    this._kept = 0;
    /** @type {Map<string, true>} calls of tools that the page has got */
    this._calls = new Map();
    /** @type {Map<string, Progress>} */
    this._responses = new Map();
    this._measured = 0;
  }

  /** @returns {boolean} whether another gateway could go on with the session */
  get canGoOn() {
    return this._token !== null && this._checkpoint !== null;
  }

  /** @returns {boolean} whether nobody speaks: the best moment to leave */
  get isSettled() {
    return this._checkpoint?.settled === true;
  }

  // --- what is sent -------------------------------------------------------------------------

  /** @param {Int16Array} samples 16 kHz, sent or not */
  onAudio(samples) {
    this._audio.push(samples);
    this._kept += samples.length;
    while (this._kept > AUDIO_S * RATE) this._dropOldest();
  }

  /**
   * @param {Message} message that is to be sent; all are counted but those on playing
   */
  onMessage(message) {
    if (message.type === 'playback') {
      const response = this._responses.get(message.response_id);
      if (response) response.playedMs = message.played_ms;
      return;
    }
    this._messages.push({ number: this._next(), message });
    if (this._messages.length > MOST) this._messages.shift();
  }

  // --- what comes ---------------------------------------------------------------------------

  /**
   * Take a message of the gateway into account.
   * @param {Message} message
   * @returns {boolean} whether the page gets it: nothing of checkpoints, and nothing twice
   */
  onEvent(message) {
    const id = message.response_id;
    if (this._answers.length && JSON.stringify(message) === JSON.stringify(this._answers[0]))
      this._answers.shift();
    switch (message.type) {
      case 'connected':
        this._token = message.resumption_token ?? null;
        return true;
      case 'checkpoint':
        this._onCheckpoint(message);
        return false;
      case 'response':
        this._response(id, message.turn).text += message.text;
        return true;
      case 'audio': {
        const response = this._response(id, message.turn);
        const ms = (1000 * message.samples) / message.sample_rate;
        response.audioMs = Math.max(response.audioMs, message.offset_ms + ms);
        if (message.text) response.words.push([message.offset_ms, message.text]);
        return true;
      }
      case 'response_done':
        this._response(id, message.turn).done = true;
        return true;
      case 'paused':
      case 'resumed':
        this._response(id, message.turn).isPaused = message.type === 'paused';
        return true;
      case 'interrupted':
        Object.assign(this._response(id, message.turn), { isOver: true, isPaused: false });
        return true;
      case 'metrics': {
        const isNew = message.turn > this._measured;
        this._measured = Math.max(this._measured, message.turn);
        return isNew;
      }
      case 'tool_request':
        this._calls.set(message.call_id, true);
        trim(this._calls);
        return true;
      default:
        return true;
    }
  }

  /** @param {Message} checkpoint */
  _onCheckpoint(checkpoint) {
    this._checkpoint = checkpoint;
    const { handled = 0, unfinished = [] } = checkpoint.state;
    this._messages = this._messages.filter(({ number }) => number > handled || unfinished.includes(number));
    this._answers = [...(checkpoint.answers ?? [])];
    const contained = (checkpoint.state.audio_ms * RATE) / 1000;
    while (this._audio.length && this._begin + this._audio[0].length <= contained) this._dropOldest();
  }

  // --- going on -----------------------------------------------------------------------------

  /** @returns {object} how the session is created at another gateway */
  options() {
    const agent = this._checkpoint?.state.agent;
    const response = agent && this._responses.get(agent.response_id);
    return {
      checkpoints: true,
      resume: {
        token: this._token,
        audio_ms: Math.round(Math.max((1000 * this._begin) / RATE, this._checkpoint?.state.audio_ms ?? 0)),
        ...(response && { progress: progressOf(agent.response_id, response) }),
      },
    };
  }

  /**
   * What the gateway before would have sent: answers and requests that were lost with it, and the ends of
   * what the session does not go on with.
   * @returns {Message[]}
   */
  ends() {
    const agent = this._checkpoint?.state.agent;
    const ends = [...this._answers, ...this._lostCalls(agent)];
    for (const [id, response] of this._responses) {
      const names = { turn: response.turn, response_id: id };
      if (!response.done && !response.isOver && id !== agent?.response_id) {
        const spoken = response.words.filter(([at]) => at < response.playedMs).map(([, text]) => text);
        ends.push({
          type: 'interrupted',
          ...names,
          played_ms: response.playedMs,
          spoken_text: spoken.join(' '),
          reason: 'client',
        });
      } else if (response.isPaused) {
        ends.push({ type: 'resumed', ...names, reason: 'noise' });
      }
    }
    for (const end of ends) this.onEvent(end);
    return ends;
  }

  /**
   * What the gateway that goes on gets again. The messages get new numbers.
   * @returns {{messages: Message[], audio: Int16Array[]}}
   */
  missing() {
    this._count = this._checkpoint?.state.handled ?? 0;
    this._messages = this._messages.map(({ message }) => ({ number: this._next(), message }));
    return { messages: this._messages.map(({ message }) => message), audio: this._chunks() };
  }

  /** @param {any} agent of the checkpoint @returns {Message[]} the requests that have not come */
  _lostCalls(agent) {
    return (agent?.rounds ?? []).flatMap((/** @type {any} */ { calls = [], results = {} }) =>
      calls
        .filter((/** @type {any} */ { id }) => !(id in results) && !this._calls.has(id))
        .map((/** @type {any} */ { id, name, arguments: given }) => ({
          type: 'tool_request',
          turn: agent.turn,
          call_id: id,
          name,
          arguments: given,
        })),
    );
  }

  /** @returns {Int16Array[]} the audio that the checkpoint does not contain, in a few pieces */
  _chunks() {
    const contained = ((this._checkpoint?.state.audio_ms ?? 0) * RATE) / 1000;
    const all = new Int16Array(this._kept);
    let at = 0;
    for (const samples of this._audio) {
      all.set(samples, at);
      at += samples.length;
    }
    const rest = all.subarray(Math.max(0, Math.round(contained - this._begin)));
    const count = Math.ceil(rest.length / CHUNK);
    return Array.from({ length: count }, (_, number) => rest.slice(number * CHUNK, (number + 1) * CHUNK));
  }

  _next() {
    this._count += 1;
    return this._count;
  }

  _dropOldest() {
    const dropped = /** @type {Int16Array} */ (this._audio.shift()).length;
    this._begin += dropped;
    this._kept -= dropped;
  }

  /** @param {string} id @param {number} turn @returns {Progress} */
  _response(id, turn) {
    let response = this._responses.get(id);
    if (!response) {
      response = {
        turn,
        text: '',
        words: [],
        audioMs: 0,
        playedMs: 0,
        done: false,
        isOver: false,
        isPaused: false,
      };
      this._responses.set(id, response);
      trim(this._responses, 8);
    }
    return response;
  }
}

/** @param {string} id @param {Progress} response @returns {object} as the gateway takes it */
function progressOf(id, { text, words, audioMs, playedMs, done }) {
  const audio = Math.round(audioMs);
  // What the sound device has played is rounded by itself; servers refuse more than there is.
  return { response_id: id, text, words, audio_ms: audio, played_ms: Math.min(Math.round(playedMs), audio), done };
}

/** Forget the oldest. @param {Map<string, unknown>} map @param {number} [most] */
function trim(map, most = MOST) {
  while (map.size > most) map.delete(/** @type {string} */ (map.keys().next().value));
}
