// @ts-check
/** What has been said, as a list of entries that the transcript shows; made of the stream's messages. */
import { SpokenWords } from './words.js';

const LONGEST = 400;

/**
 * @typedef {{kind: 'user', id: string, parts: Map<number, string>, text: string, partial: boolean,
 *   open: boolean, aside: boolean, typed: boolean, at: number}} UserEntry
 * @typedef {{kind: 'agent', id: string, speaker: string, words: SpokenWords, heardMs: number, audioMs: number | null,
 *   held: boolean, done: boolean, cut: number | null, reason: string, at: number}} AgentEntry
 * @typedef {{kind: 'tool', id: string, name: string, given: object, output: unknown,
 *   state: 'running' | 'done' | 'failed' | 'cancelled', byServer: boolean, asks: boolean, remark: string,
 *   at: number}} ToolEntry
 * @typedef {{kind: 'note', id: string, text: string, tone: 'plain' | 'warning', at: number}} NoteEntry
 * @typedef {UserEntry | AgentEntry | ToolEntry | NoteEntry} Entry
 *  `at`: when it began, milliseconds of Date.now().
 */

export class Conversation {
  /**
   * @param {(entry: Entry) => void} onChange an entry is new or has changed
   * @param {(entry: Entry) => void} onRemove
   * @param {() => number} [now] milliseconds
   */
  constructor(onChange, onRemove, now = Date.now) {
    this._onChange = onChange;
    this._onRemove = onRemove;
    this._now = now;
    /** @type {Map<string, Entry>} in their order */
    this._entries = new Map();
    /** @type {UserEntry | null} what the user is saying */
    this._open = null;
    /** Name of the agent. */
    this.speaker = 'Parley';
    this._call = 0;
    this._count = 0;
  }

  /** @returns {Entry[]} */
  get entries() {
    return [...this._entries.values()];
  }

  /** Another call begins: its names are its own. */
  begin() {
    this._close();
    for (const entry of this._entries.values()) {
      if (entry.kind === 'agent' && !entry.done) this._finish(entry, entry.audioMs ?? 0);
    }
    this._call += 1;
  }

  /** Forget everything: another conversation begins. */
  clear() {
    for (const entry of this.entries) this._remove(entry);
  }

  /** The call is over: what was not heard of the last answer never will be. */
  end() {
    this._close();
    for (const entry of this._entries.values()) {
      if (entry.kind === 'tool' && entry.state === 'running') this._toolCancelled({ call_id: bareId(entry.id) });
      if (entry.kind !== 'agent' || entry.cut !== null || isHeard(entry)) continue;
      entry.held = false;
      entry.done = true;
      entry.cut = entry.words.heardAt(entry.heardMs);
      entry.reason = 'over';
      this._onChange(entry);
    }
  }

  /** @param {import('../session/stream.js').Message} message */
  apply(message) {
    const handler = HANDLERS[message.type];
    if (handler) handler.call(this, message);
  }

  /** @param {string} text that the user has typed */
  typed(text) {
    this._close();
    this._put({ ...this._newUser(), text, open: false, partial: false, typed: true });
  }

  /** @param {string} text @param {'plain' | 'warning'} [tone] */
  note(text, tone = 'plain') {
    this._put({ kind: 'note', id: this._name('note'), text, tone, at: this._now() });
  }

  /** @param {string} responseId @param {number} ms of its audio that were heard */
  heard(responseId, ms) {
    const entry = this._entries.get(this._id(responseId));
    if (entry?.kind !== 'agent' || ms <= entry.heardMs || entry.cut !== null) return;
    entry.heardMs = ms;
    this._onChange(entry);
  }

  /** The user is to say what a tool returns. @param {string} callId */
  toolAsks(callId) {
    const entry = this._entries.get(this._id(callId));
    if (entry?.kind !== 'tool' || entry.state !== 'running') return;
    entry.asks = true;
    this._onChange(entry);
  }

  /**
   * @param {string} callId @param {unknown} output @param {boolean} isError
   * @param {string} [remark] to be shown with it
   */
  toolAnswered(callId, output, isError, remark = '') {
    const entry = this._entries.get(this._id(callId));
    if (entry?.kind !== 'tool' || entry.state !== 'running') return;
    entry.output = output;
    entry.state = isError ? 'failed' : 'done';
    entry.asks = false;
    entry.remark = isError ? '' : remark;
    this._onChange(entry);
  }

  // --- the user ---------------------------------------------------------------------------

  /** @param {any} message */
  _transcript({ utterance, text, is_final: isFinal, first = 0, before = '' }) {
    const entry = this._entryOf(utterance) ?? (this._open ??= text || before ? this._newUser() : null);
    if (!entry) return;
    if (first) {
      // The utterances from the first one on were recognised together: `before` replaces their texts.
      for (const number of entry.parts.keys()) if (number >= first && number < utterance) entry.parts.delete(number);
      entry.parts.set(first, before);
    }
    entry.parts.set(utterance, text);
    const parts = [...entry.parts].sort(([one], [other]) => one - other);
    entry.text = parts.map(([, part]) => part).filter(Boolean).join(' ');
    entry.partial = !isFinal;
    if (entry.text || !isFinal) this._put(entry);
    else this._remove(entry);
  }

  /** @param {number} utterance @returns {UserEntry | null} */
  _entryOf(utterance) {
    const users = this.entries.filter(
      (entry) => entry.kind === 'user' && entry.id.startsWith(`${this._call}/`),
    );
    const found = users.findLast((entry) => /** @type {UserEntry} */ (entry).parts.has(utterance));
    return /** @type {UserEntry | undefined} */ (found) ?? null;
  }

  /** @param {any} message */
  _decision({ decision }) {
    if (decision === 'commit') this._close();
  }

  /** The user's turn is over. @param {boolean} [aside] it was no turn, but an "mhm" or the like */
  _close(aside = false) {
    const entry = this._open;
    this._open = null;
    if (!entry || !this._entries.has(entry.id)) return;
    entry.open = false;
    entry.partial = false;
    entry.aside = aside;
    if (entry.text) this._onChange(entry);
    else this._remove(entry);
  }

  /** @returns {UserEntry} */
  _newUser() {
    const id = this._name('user');
    const parts = new Map();
    const at = this._now();
    return { kind: 'user', id, parts, text: '', partial: true, open: true, aside: false, typed: false, at };
  }

  // --- the agent --------------------------------------------------------------------------

  /** @param {any} message */
  _response({ response_id: id, text }) {
    const entry = this._agent(id);
    entry.words.write(text);
    this._onChange(entry);
  }

  /** @param {any} message */
  _audio({ response_id: id, offset_ms: at, sample_rate: rate, samples, text }) {
    const entry = this._agent(id);
    entry.words.speak(text, at, (1000 * samples) / rate);
  }

  /** @param {string} responseId @returns {AgentEntry} */
  _agent(responseId) {
    const id = this._id(responseId);
    const known = this._entries.get(id);
    if (known) return /** @type {AgentEntry} */ (known);
    this._close();
    /** @type {AgentEntry} */
    const entry = {
      kind: 'agent',
      id,
      speaker: this.speaker,
      words: new SpokenWords(),
      heardMs: 0,
      audioMs: null,
      held: false,
      done: false,
      cut: null,
      reason: '',
      at: this._now(),
    };
    this._put(entry);
    return entry;
  }

  /** @param {any} message */
  _held({ response_id: id, type }) {
    const entry = this._entries.get(this._id(id));
    if (entry?.kind !== 'agent') return;
    entry.held = type === 'paused';
    this._onChange(entry);
    if (type === 'resumed') this._close(true);
  }

  /** @param {any} message */
  _interrupted({ response_id: id, spoken_text: spoken, reason }) {
    const entry = this._entries.get(this._id(id));
    if (entry?.kind !== 'agent') return;
    entry.held = false;
    entry.done = true;
    entry.cut = entry.words.lengthOf(spoken);
    entry.reason = reason;
    this._onChange(entry);
  }

  /** @param {any} message */
  _done({ response_id: id, audio_ms: audioMs }) {
    const entry = this._entries.get(this._id(id));
    if (entry?.kind === 'agent') this._finish(entry, audioMs);
  }

  /** @param {AgentEntry} entry @param {number} audioMs */
  _finish(entry, audioMs) {
    entry.done = true;
    entry.audioMs = audioMs;
    if (entry.words.text.trim()) this._onChange(entry);
    else this._remove(entry);
  }

  _ignored() {
    this._close(true);
  }

  // --- tools and errors ---------------------------------------------------------------------

  /** @param {any} message */
  _tool({ type, call_id: callId, name, arguments: given, is_error: isError }) {
    const byServer = type === 'tool_run';
    const state = byServer ? (isError ? 'failed' : 'done') : 'running';
    this._close();
    this._put({
      kind: 'tool',
      id: this._id(callId),
      name,
      given,
      output: undefined,
      state,
      byServer,
      asks: false,
      remark: '',
      at: this._now(),
    });
  }

  /** @param {any} message */
  _toolCancelled({ call_id: callId }) {
    const entry = this._entries.get(this._id(callId));
    if (entry?.kind !== 'tool') return;
    entry.state = 'cancelled';
    entry.asks = false;
    this._onChange(entry);
  }

  /** @param {any} message */
  _step({ step }) {
    this.note(`Step: ${step}`);
  }

  /** @param {any} message */
  _error({ message }) {
    this.note(message, 'warning');
  }

  // --- the list -----------------------------------------------------------------------------

  /** @param {string} id of this call @returns {string} */
  _id(id) {
    return `${this._call}/${id}`;
  }

  /** @param {string} kind @returns {string} */
  _name(kind) {
    this._count += 1;
    return this._id(`${kind}-${this._count}`);
  }

  /** @param {Entry} entry */
  _put(entry) {
    this._entries.set(entry.id, entry);
    this._onChange(entry);
    if (this._entries.size > LONGEST)
      this._remove(/** @type {Entry} */ (this._entries.values().next().value));
  }

  /** @param {Entry} entry */
  _remove(entry) {
    if (this._open === entry) this._open = null;
    if (this._entries.delete(entry.id)) this._onRemove(entry);
  }
}

/** @param {string} id of an entry @returns {string} as the server has it */
export function bareId(id) {
  return id.slice(id.indexOf('/') + 1);
}

/** @param {AgentEntry} entry @returns {boolean} whether all of it was heard, as far as that can be told */
export function isHeard({ done, audioMs, heardMs }) {
  return done && (audioMs === null || heardMs >= audioMs - 40);
}

/** @type {Record<string, (this: Conversation, message: any) => void>} */
const HANDLERS = {
  transcript: Conversation.prototype._transcript,
  turn_decision: Conversation.prototype._decision,
  response: Conversation.prototype._response,
  audio: Conversation.prototype._audio,
  paused: Conversation.prototype._held,
  resumed: Conversation.prototype._held,
  speech_ignored: Conversation.prototype._ignored,
  interrupted: Conversation.prototype._interrupted,
  response_done: Conversation.prototype._done,
  tool_request: Conversation.prototype._tool,
  tool_run: Conversation.prototype._tool,
  tool_cancelled: Conversation.prototype._toolCancelled,
  step: Conversation.prototype._step,
  error: Conversation.prototype._error,
};
