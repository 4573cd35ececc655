// @ts-check
/** Calls that were recorded: a list, one of them with its words and sound, and how to delete it. */
import { askCalls } from '../session/api.js';
import { clock } from '../talk/summary.js';
import { byId, make, setText } from './dom.js';

export class CallsDialog {
  constructor() {
    /** @type {string | null} */
    this._key = null;
    this._next = '';
    this._id = '';
    this._audio = byId('call-audio');
    byId('calls-more').onclick = () => void this._list(this._next);
    byId('call-back').onclick = () => void this._list();
    byId('call-sound').onclick = () => void this._do(() => this._play());
    byId('call-delete').onclick = () => void this._do(() => this._delete());
    byId('calls').onclose = () => this._show('');
  }

  /** @param {string | null} key of the gateway */
  open(key) {
    this._key = key;
    byId('calls-list').replaceChildren();
    byId('calls').showModal();
    void this._list();
  }

  /** @param {string} [before] where the calls that are shown end */
  _list(before = '') {
    return this._do(async () => {
      const { calls, next } = await askCalls(`?before=${encodeURIComponent(before)}`, this._key);
      this._show('');
      if (!before) byId('calls-list').replaceChildren();
      byId('calls-list').append(...calls.map((/** @type {any} */ call) => this._entry(call)));
      this._next = next ?? '';
      byId('calls-more').hidden = !next;
      setText(byId('calls-problem'), byId('calls-list').children.length ? '' : 'There are no recorded calls.');
    });
  }

  /** @param {any} call */
  _entry(call) {
    const length = call.ended ? clock(call.duration_ms ?? 0) : 'not ended';
    const text = `${new Date(call.started).toLocaleString()} · ${call.agent} · ${length}`;
    const button = /** @type {HTMLButtonElement} */ (make('button', 'quiet', text));
    button.type = 'button';
    button.onclick = () => void this._do(() => this._open(call.id));
    return make('li', '', button);
  }

  /** @param {string} id */
  async _open(id) {
    const { call, lines, median_answer_ms: median, is_cut: isCut } = await askCalls(`/${id}`, this._key);
    this._show(id);
    const rows = [
      ['Duration', clock(call.duration_ms ?? 0)],
      ['Turns', String(call.turns ?? 0)],
      ['Median time to answer', median === null ? 'none measured' : `${median} ms`],
      ...Object.entries(call.collected ?? {}),
      ...Object.entries(call.decisions ?? {}).map(([name, decided]) => [name, /** @type {any} */ (decided).value]),
    ];
    byId('call-figures').replaceChildren(
      ...rows.map(([name, value]) => make('div', '', [make('dt', '', name), make('dd', '', value)])),
    );
    byId('call-lines').replaceChildren(...lines.map(lineOf));
    setText(byId('calls-problem'), isCut ? 'The end of this call is left out: it is too long to show.' : '');
  }

  async _play() {
    const id = this._id;
    const file = await askCalls(`/${id}/audio`, this._key, { isFile: true });
    if (id !== this._id) return; // the user has gone on meanwhile
    this._audio.src = URL.createObjectURL(file);
    this._audio.hidden = false;
    byId('call-sound').hidden = true;
    await this._audio.play();
  }

  async _delete() {
    if (!confirm('Delete this call, with its recording?')) return;
    await askCalls(`/${this._id}`, this._key, { method: 'DELETE' });
    void this._list();
  }

  /** @param {string} id of the call that is shown; empty: the list is */
  _show(id) {
    this._id = id;
    for (const name of ['calls-list', 'calls-more']) byId(name).hidden = Boolean(id);
    for (const name of ['call', 'call-back', 'call-sound', 'call-delete']) byId(name).hidden = !id;
    this._audio.pause();
    URL.revokeObjectURL(this._audio.src);
    this._audio.removeAttribute('src');
    this._audio.hidden = true;
  }

  /** @param {() => Promise<void>} action whose failure is shown */
  async _do(action) {
    try {
      await action();
    } catch (error) {
      setText(byId('calls-problem'), /** @type {Error} */ (error).message);
    }
  }
}

/** @param {any} line */
function lineOf({ at_ms: atMs, kind, text, words = '', is_interrupted: isCut = false }) {
  const isSaid = kind === 'user' || kind === 'agent';
  const note = `${clock(atMs)}${isCut ? ', interrupted' : ''}`;
  const who = { user: 'User', agent: 'Agent' }[kind] ?? '';
  const said = make('p', isSaid ? 'said' : 'explain', [isSaid ? words : text, make('small', '', note)]);
  return make('li', `entry ${kind}`, [make('span', 'who', who), said]);
}
