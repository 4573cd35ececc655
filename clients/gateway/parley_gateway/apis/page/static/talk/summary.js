// @ts-check
/** What is left of a call when it is over: its figures, and its words to take away. */
import { isHeard } from './conversation.js';

/** @typedef {import('./conversation.js').Entry} Entry */
/** @typedef {{durationMs: number, turns: number, medianMs: number | null}} Figures
 *  `medianMs`: to the first sound of an answer; null: none was measured. */

export class Summary {
  constructor() {
    this._began = 0;
    this._ended = 0;
    /** @type {number[]} */
    this._times = [];
  }

  /** @param {number} now milliseconds */
  begin(now) {
    this._began = now;
    this._ended = 0;
    this._times = [];
  }

  /** @returns {boolean} whether there is a call to speak of */
  get hasBegun() {
    return this._began > 0;
  }

  /** @param {import('./latency.js').TurnTime} time */
  add({ totalMs }) {
    if (totalMs !== null) this._times.push(totalMs);
  }

  /** @param {number} now milliseconds */
  end(now) {
    this._ended = now;
  }

  /** @param {readonly Entry[]} entries @returns {Figures} */
  figures(entries) {
    return {
      durationMs: Math.max(0, this._ended - this._began),
      turns: entries.filter((entry) => entry.kind === 'user' && !entry.aside).length,
      medianMs: median(this._times),
    };
  }
}

/** @param {readonly number[]} values @returns {number | null} */
export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** @param {number} ms @returns {string} such as 2:05 */
export function clock(ms) {
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}

/** @param {readonly Entry[]} entries @returns {string} one line for each */
export function transcriptText(entries) {
  const first = entries[0]?.at ?? 0;
  return entries.map((entry) => `[${clock(entry.at - first)}] ${lineOf(entry)}\n`).join('');
}

/** @param {Entry} entry @returns {string} */
function lineOf(entry) {
  if (entry.kind === 'note') return `(${entry.text})`;
  if (entry.kind === 'user') return `You: ${entry.text}${entry.typed ? ' (typed)' : ''}`;
  if (entry.kind === 'tool') {
    const result = entry.output === undefined ? entry.state : JSON.stringify(entry.output);
    return `Tool ${entry.name} ${JSON.stringify(entry.given)}: ${result}${entry.remark && ` (${entry.remark})`}`;
  }
  const { heard, unheard } = heardOf(entry);
  return `${entry.speaker}: ${heard}${unheard && ` (not heard: ${unheard.trim()})`}`;
}

/** @param {import('./conversation.js').AgentEntry} entry @returns {{heard: string, unheard: string}} */
export function heardOf(entry) {
  const { text } = entry.words;
  const end = entry.cut ?? (isHeard(entry) ? text.length : entry.words.heardAt(entry.heardMs));
  return { heard: text.slice(0, end), unheard: text.slice(end) };
}

/** @param {readonly Entry[]} entries @param {Figures} figures @returns {object} for programs */
export function transcriptJson(entries, { durationMs, medianMs }) {
  return {
    duration_ms: Math.round(durationMs),
    median_answer_ms: medianMs === null ? null : Math.round(medianMs),
    entries: entries.map(recordOf),
  };
}

/** @param {Entry} entry @returns {object} */
function recordOf(entry) {
  const at = new Date(entry.at).toISOString();
  if (entry.kind === 'note') return { at, kind: 'note', text: entry.text };
  if (entry.kind === 'user') {
    return { at, kind: 'user', text: entry.text, typed: entry.typed, answered: !entry.aside };
  }
  if (entry.kind === 'tool') {
    const { name, given, output = null, state, byServer } = entry;
    return { at, kind: 'tool', name, arguments: given, output, state, run_by: byServer ? 'server' : 'page' };
  }
  const { heard, unheard } = heardOf(entry);
  return { at, kind: 'agent', text: entry.words.text, heard, unheard, cut: entry.cut !== null };
}
