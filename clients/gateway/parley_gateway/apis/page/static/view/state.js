// @ts-check
/** Says what is going on: one word in the header, and a banner when something is in the way. */
import { byId, setText } from './dom.js';

/** @typedef {import('../session/line.js').LineState} LineState */
/** @typedef {import('../session/presence.js').Known} Known */
/** @typedef {import('../audio/sound.js').Trouble} Trouble */

const AGENT = /** @type {Record<string, string>} */ ({
  listening: 'Listening',
  processing: 'Thinking',
  speaking: 'Speaking',
  held: 'Hearing you',
  muted: 'Muted',
});
const ENDED = /** @type {Record<string, string>} */ ({
  agent_ended: 'The agent ended the call.',
  transferred: 'The agent ended its part of the call: it goes on with a person.',
  idle: 'The call ended: the page sent nothing for too long.',
  silence: 'The call ended: nothing was said for too long.',
});
const FAILED = /** @type {Record<string, string>} */ ({
  unsupported_language: 'The server does not support this language. Choose another one in the settings.',
  unsupported_voice: 'The server does not have this voice. Choose another one in the settings.',
});
const TROUBLE = /** @type {Record<Trouble, string>} */ ({
  insecure:
    'Browsers give microphone and sound only to secure pages. Open this page with https, or on localhost.',
  asking: 'The browser asks whether this page may use the microphone. You can type meanwhile.',
  refused:
    'The browser refuses the microphone. Allow it next to the page’s address and try again. You can type meanwhile.',
  none: 'No microphone was found. Connect one and try again. You can type meanwhile.',
  taken: 'Another program uses the microphone. Close that program and try again. You can type meanwhile.',
});
/** Trouble with which the agent hears nothing. */
const DEAF = ['refused', 'none', 'taken', 'asking'];

export class StateView {
  /** @param {{onRetry: () => void, onMicrophone: () => void}} handlers */
  constructor({ onRetry, onMicrophone }) {
    this._status = byId('status');
    this._word = byId('status-word');
    this._banner = byId('banner');
    this._text = byId('banner-text');
    this._soon = byId('banner-soon');
    this._button = byId('banner-button');
    this._button.onclick = () => (this._retryAt() ? onRetry() : onMicrophone());
    /** @type {LineState} */
    this._line = { phase: 'idle', detail: '', code: '', retryAt: 0, again: false };
    /** @type {Known} */
    this._known = { state: 'asking', detail: '', retryAt: 0 };
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

  /** @param {Known} known of the server, while there is no call */
  setKnown(known) {
    this._known = known;
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
    document.body.dataset.server = this._known.state;
    document.body.dataset.agent = phase === 'live' ? this._agent : '';
    document.body.dataset.trouble = this._trouble ?? '';
    // During a call the words follow each other faster than they could be read out.
    this._status.setAttribute('aria-live', phase === 'live' ? 'off' : 'polite');
    setText(this._word, this._state());
    const text = this._problem();
    const retryAt = this._retryAt();
    const seconds = Math.max(1, Math.ceil((retryAt - performance.now()) / 1000));
    setText(this._text, text);
    setText(this._soon, text && retryAt ? ` Trying again in ${seconds} s.` : '');
    this._banner.hidden = !text;
    this._button.hidden = !text || !this._mayTry();
    this._button.textContent = retryAt ? 'Try now' : 'Try again';
    clearTimeout(this._timer);
    if (retryAt) this._timer = setTimeout(() => this.draw(), 1000);
  }

  /** @returns {boolean} whether there is neither a call nor an attempt to have one */
  _isIdle() {
    return ['idle', 'ended', 'failed', 'locked'].includes(this._line.phase);
  }

  /** @returns {boolean} whether the user can do something about it here */
  _mayTry() {
    const isFixable = this._trouble === 'refused' || this._trouble === 'none' || this._trouble === 'taken';
    return this._retryAt() > 0 || (this._line.phase === 'live' && isFixable);
  }

  /** @returns {number} 0: nothing is tried again by itself */
  _retryAt() {
    return this._isIdle() ? this._known.retryAt : this._line.retryAt;
  }

  /** @returns {string} */
  _state() {
    const { phase, again } = this._line;
    const { state } = this._known;
    if (phase === 'live') {
      const isDeaf = this._agent === 'listening' && DEAF.includes(this._trouble ?? '');
      return isDeaf ? 'Cannot hear you' : AGENT[this._agent];
    }
    if (phase === 'connecting') return again ? 'Connecting again' : 'Connecting';
    if (phase === 'busy') return 'Busy';
    if (phase === 'away' || phase === 'lost') return 'Not connected';
    if (state === 'down') return 'No server';
    if (state === 'loading') return 'Server not ready';
    if (state === 'gone') return 'Not connected';
    if (state === 'limited') return 'Busy';
    if (phase === 'locked' || state === 'locked') return 'Key needed';
    if (phase === 'failed') return 'Failed';
    return phase === 'ended' ? 'Call ended' : 'Ready';
  }

  /** @returns {string} empty: there is none */
  _problem() {
    const { phase, detail, code } = this._line;
    if (this._trouble === 'insecure') return TROUBLE.insecure;
    if (phase === 'busy') return 'All lines are busy.';
    if (phase === 'away') return 'The server is not ready or is restarting.';
    if (phase === 'lost') return 'The connection was lost.';
    if (this._isIdle() && this._known.state === 'down') {
      const { detail } = this._known;
      return `This gateway has no server${detail && `: ${detail}`}. Start one with “make serve”.`;
    }
    if (this._isIdle() && this._known.state === 'loading')
      return 'The server is not ready: its models are loading or restarting.';
    if (this._isIdle() && this._known.state === 'gone')
      return 'The gateway does not answer: is “parley gateway” still running?';
    if (this._isIdle() && this._known.state === 'limited')
      return `The gateway accepts no more requests at the moment: ${this._known.detail}.`;
    if (phase === 'failed') return FAILED[code] ?? `The call failed: ${detail || 'no reason was given'}`;
    if (phase === 'ended' && ENDED[code]) return ENDED[code];
    return this._trouble && phase === 'live' ? TROUBLE[this._trouble] : '';
  }
}
