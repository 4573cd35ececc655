// @ts-check
/** Draws the conversation, and reads it out for those who listen to the page. */
import { heardOf } from '../talk/summary.js';
import { byId, make } from './dom.js';

/** @typedef {import('../talk/conversation.js').Entry} Entry */

const NEAR_THE_END_PX = 120;
const REASONS = /** @type {Record<string, string>} */ ({
  command: 'you said stop',
  words: 'you spoke',
  speech: 'you spoke',
  input: 'you typed',
  client: 'you stopped it',
  over: 'the call ended',
});

export class Transcript {
  /** @param {(entry: Entry, answer: string) => void} onAnswer the user says what a tool returns */
  constructor(onAnswer) {
    this._onAnswer = onAnswer;
    this._list = byId('transcript');
    this._scroller = byId('talk');
    this._aloud = byId('aloud');
    /** @type {Map<string, HTMLElement>} */
    this._items = new Map();
    /** @type {Set<string>} */
    this._read = new Set();
  }

  /** @param {Entry} entry that is new or has changed */
  show(entry) {
    const follows = this._isNearEnd();
    let item = this._items.get(entry.id);
    if (!item) {
      item = make('li', `entry ${entry.kind}`);
      this._items.set(entry.id, item);
      this._list.append(item);
    }
    item.replaceChildren(...contentOf(entry, this._onAnswer));
    item.classList.toggle('partial', entry.kind === 'user' && entry.partial);
    item.classList.toggle('aside', entry.kind === 'user' && entry.aside);
    if (entry.kind === 'tool') item.dataset.state = entry.state;
    if (entry.kind === 'note') item.dataset.tone = entry.tone;
    this._readOut(entry);
    if (follows) this._scroller.scrollTop = this._scroller.scrollHeight;
  }

  /** Show the end of it. */
  follow() {
    this._scroller.scrollTop = this._scroller.scrollHeight;
  }

  /** @param {Entry} entry */
  remove(entry) {
    this._items.get(entry.id)?.remove();
    this._items.delete(entry.id);
    this._read.delete(entry.id);
  }

  _isNearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this._scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_THE_END_PX;
  }

  /** Each text once, when it is final: partial texts would never stop. @param {Entry} entry */
  _readOut(entry) {
    const text = finalText(entry);
    if (!text || this._read.has(entry.id)) return;
    this._read.add(entry.id);
    this._aloud.append(make('p', '', text));
    if (this._aloud.childElementCount > 20) this._aloud.firstElementChild.remove();
  }
}

/** @param {Entry} entry @returns {string} empty: it is not final yet, or is not to be read out */
function finalText(entry) {
  if (entry.kind === 'user') return entry.open || entry.aside ? '' : `You: ${entry.text}`;
  if (entry.kind === 'agent') return entry.done ? `${entry.speaker}: ${entry.words.text}` : '';
  return entry.kind === 'note' ? entry.text : '';
}

/** @param {Entry} entry @param {(entry: Entry, answer: string) => void} onAnswer @returns {Node[]} */
function contentOf(entry, onAnswer) {
  if (entry.kind === 'note') return [make('p', '', entry.text)];
  if (entry.kind === 'tool') return [make('span', 'who'), toolOf(entry, onAnswer)];
  if (entry.kind === 'user') {
    const label = entry.typed ? [make('small', '', 'typed')] : [];
    return [make('span', 'who', 'You'), make('p', 'said', [entry.text, ...label])];
  }
  return [make('span', 'who', entry.speaker.length > 7 ? 'Agent' : entry.speaker), make('p', 'said', wordsOf(entry))];
}

/** @param {import('../talk/conversation.js').AgentEntry} entry @returns {Node[]} */
function wordsOf(entry) {
  const { cut, held, reason } = entry;
  const { heard, unheard } = heardOf(entry);
  if (cut !== null) {
    const label = make('small', '', REASONS[reason] ? `cut: ${REASONS[reason]}` : 'cut');
    return [make('span', 'heard', heard), make('s', 'unheard', unheard), label];
  }
  const parts = [make('span', 'heard', heard), make('span', 'coming', unheard)];
  return held ? [...parts, make('small', '', 'paused')] : parts;
}

/**
 * @param {import('../talk/conversation.js').ToolEntry} entry
 * @param {(entry: Entry, answer: string) => void} onAnswer @returns {Node}
 */
function toolOf(entry, onAnswer) {
  const { name, given, output, state, byServer, asks, remark } = entry;
  const call = make('p', 'call', [make('code', '', name), make('span', '', written(given))]);
  const words = {
    running: 'running',
    cancelled: 'cancelled',
    failed: 'failed',
    done: byServer ? 'run by the server' : '',
  };
  const result = output === undefined ? words[state] : written(output);
  const below = asks ? questionOf(entry, onAnswer) : make('p', 'result', result);
  const label = remark ? [make('p', 'remark', remark)] : [];
  return make('div', 'tool-card', [call, below, ...label]);
}

/**
 * @param {import('../talk/conversation.js').ToolEntry} entry
 * @param {(entry: Entry, answer: string) => void} onAnswer @returns {Node}
 */
function questionOf(entry, onAnswer) {
  const field = /** @type {HTMLInputElement} */ (make('input'));
  field.type = 'text';
  field.autocomplete = 'off';
  field.placeholder = 'The result: JSON or text';
  field.ariaLabel = `Result of ${entry.name}`;
  const button = /** @type {HTMLButtonElement} */ (make('button', 'quiet', 'Answer'));
  button.type = 'submit';
  const form = /** @type {HTMLFormElement} */ (make('form', 'question', [field, button]));
  form.onsubmit = (event) => {
    event.preventDefault();
    onAnswer(entry, field.value);
  };
  return form;
}

/** @param {unknown} value @returns {string} JSON, but for people */
function written(value) {
  if (value === null || typeof value !== 'object') return String(value);
  return Object.entries(value)
    .filter(([, part]) => part !== null)
    .map(([name, part]) => `${name} ${typeof part === 'object' ? JSON.stringify(part) : part}`)
    .join(' · ');
}
