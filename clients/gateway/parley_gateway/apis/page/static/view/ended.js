// @ts-check
/** What can be done with a call that is over. */
import { clock, transcriptJson, transcriptText } from '../talk/summary.js';
import { byId, copy, download, make } from './dom.js';

export class EndedView {
  /**
   * @param {{entries: () => import('../talk/conversation.js').Entry[],
   *   figures: () => import('../talk/summary.js').Figures,
   *   recorder: import('../audio/recorder.js').Recorder}} call
   */
  constructor({ entries, figures, recorder }) {
    this._entries = entries;
    this._figures = figures;
    this._recorder = recorder;
    this._card = byId('ended');
    const text = () => transcriptText(entries());
    byId('copy-text').onclick = () => void copy(text(), byId('copy-text'));
    byId('save-text').onclick = () => download(this._name('txt'), [text()], 'text/plain');
    byId('save-json').onclick = () => download(this._name('json'), [this._json()], 'application/json');
    byId('save-audio').onclick = () => download(this._name('wav'), recorder.wav(), 'audio/wav');
  }

  show() {
    const { durationMs, turns, medianMs } = this._figures();
    const rows = [
      ['Duration', clock(durationMs)],
      ['Your turns', String(turns)],
      ['Median time to answer', medianMs === null ? 'none measured' : `${Math.round(medianMs)} ms`],
    ];
    byId('ended-figures').replaceChildren(
      ...rows.map(([name, value]) => make('div', '', [make('dt', '', name), make('dd', '', value)])),
    );
    const { seconds, lostSeconds } = this._recorder;
    byId('save-audio').disabled = seconds < 0.1;
    const lost = lostSeconds >= 1 ? ` The first ${clock(1000 * lostSeconds)} of it were dropped.` : '';
    byId('ended-audio').textContent =
      `The recording (${clock(1000 * seconds)}: you on the left, the agent on the right) is in this page’s memory only.${lost}`;
    this._card.hidden = false;
  }

  hide() {
    this._card.hidden = true;
  }

  _json() {
    return JSON.stringify(transcriptJson(this._entries(), this._figures()), null, 2);
  }

  /** @param {string} kind @returns {string} */
  _name(kind) {
    const began = new Date(this._entries()[0]?.at ?? Date.now());
    return `parley-${began.toISOString().slice(0, 19).replaceAll(':', '-')}.${kind}`;
  }
}
