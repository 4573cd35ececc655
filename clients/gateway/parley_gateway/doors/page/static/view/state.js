// @ts-check
/** Says what is going on: one word in the header, and a banner when something is in the way. */
import { byId } from './dom.js';

/** @typedef {import('../session/line.js').LineState} LineState */
/** @typedef {import('../audio/sound.js').Trouble} Trouble */

const AGENT = /** @type {Record<string, string>} */ ({
  listening: 'Listening',
  processing: 'Thinking',
  speaking: 'Speaking',
  held: 'Hearing you',
  muted: 'Muted',
});
const ENDED = /** @type {Record<string, string>} */ ({
  idle: 'The call ended: nothing came from this page for too long.',
  silence: 'The call ended: nobody said anything for too long.',
});
const FAILED = /** @type {Record<string, string>} */ ({
  unsupported_language: 'The server does not speak this language: choose another one in the settings.',
  unsupported_voice: 'The server does not have this voice: choose another one in the settings.',
});
const TROUBLE = /** @type {Record<Trouble, string>} */ ({
  insecure:
    'Browsers give microphone and sound only to secure pages. Open this one with https, or on localhost.',
  asking: 'The browser asks whether this page may use the microphone. You can type meanwhile.',
  refused:
    'The microphone is refused. Allow it beside the page’s address and try again. You can type meanwhile.',
  none: 'No microphone was found. Connect one and try again. You can type meanwhile.',
  taken: 'Another program uses the microphone. Close it and try again. You can type meanwhile.',
});

export class StateView {
  /** @param {{onRetry: () => void, onMicrophone: () => void}} handlers */
  constructor({ onRetry, onMicrophone }) {
    this._word = byId('status-word');
    this._banner = byId('banner');
    this._text = byId('banner-text');
    this._button = byId('banner-button');
    this._button.onclick = () => (this._isWaiting() ? onRetry() : onMicrophone());
    /** @type {LineState} */
    this._line = { phase: 'idle', detail: '', retryAt: 0, again: false };
    /** @type {Trouble | null} */
    this._trouble = null;
    this._agent = 'listening';
    this._timer = 0;
    this.draw();
  }

  /** @param {LineState} line */
  setLine(line) {
    this._line = line;
    if (line.phase !== 'live') this._agent = 'listening';
    this.draw();
  }

  /** @param {Trouble | null} trouble */
  setTrouble(trouble) {
    this._trouble = trouble;
    this.draw();
  }

  /** @param {string} agent one of `listening`, `processing`, `speaking`, `held`, `muted` */
  setAgent(agent) {
    this._agent = agent;
    this.draw();
  }

  draw() {
    const { phase } = this._line;
    document.body.dataset.phase = phase;
    document.body.dataset.agent = phase === 'live' ? this._agent : '';
    document.body.dataset.trouble = this._trouble ?? '';
    setText(this._word, this._state());
    const text = this._problem();
    setText(this._text, text);
    this._banner.hidden = !text;
    this._button.hidden = !text || !this._mayTry();
    this._button.textContent = this._isWaiting() ? 'Try now' : 'Try again';
    clearTimeout(this._timer);
    if (this._isWaiting()) this._timer = setTimeout(() => this.draw(), 1000);
  }

  /** @returns {boolean} whether the user can do something about it here */
  _mayTry() {
    const isFixable = this._trouble === 'refused' || this._trouble === 'none' || this._trouble === 'taken';
    return this._isWaiting() || (this._line.phase === 'live' && isFixable);
  }

  _isWaiting() {
    return this._line.retryAt > 0;
  }

  /** @returns {string} */
  _state() {
    const { phase, again } = this._line;
    if (phase === 'live') return AGENT[this._agent];
    if (phase === 'connecting') return again ? 'Connecting again' : 'Connecting';
    if (phase === 'busy') return 'Busy';
    if (phase === 'away' || phase === 'lost') return 'Not connected';
    if (phase === 'locked') return 'Key needed';
    return phase === 'failed' ? 'Failed' : 'Ready';
  }

  /** @returns {string} empty: there is none */
  _problem() {
    const { phase, detail, retryAt } = this._line;
    const seconds = Math.max(1, Math.ceil((retryAt - performance.now()) / 1000));
    const soon = `Trying again in ${seconds} s.`;
    if (phase === 'busy') return `All lines are busy. ${soon}`;
    if (phase === 'away') return `The server is not ready, or restarts. ${soon}`;
    if (phase === 'lost') return `The connection was lost. ${soon}`;
    if (phase === 'failed') return FAILED[detail] ?? `The call failed: ${detail || 'no reason was given'}`;
    if (phase === 'ended' && ENDED[detail]) return ENDED[detail];
    const isShown = this._trouble && (phase === 'live' || this._trouble === 'insecure');
    return isShown ? TROUBLE[/** @type {Trouble} */ (this._trouble)] : '';
  }
}

/** Screen readers repeat what is written again. @param {HTMLElement} element @param {string} text */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
