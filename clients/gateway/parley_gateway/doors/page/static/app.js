// @ts-check
/** Puts the page together. */
import { Player } from './audio/player.js';
import { Sound } from './audio/sound.js';
import { Line } from './session/line.js';
import { Conversation } from './talk/conversation.js';
import { Latency } from './talk/latency.js';
import { loadSettings, saveSettings, sessionOptions, updateOf } from './talk/settings.js';
import { runTool } from './talk/tools.js';
import { SettingsDialog, askForKey } from './view/dialogs.js';
import { byId } from './view/dom.js';
import { Scope } from './view/scope.js';
import { StateView } from './view/state.js';
import { Times } from './view/times.js';
import { Transcript } from './view/transcript.js';

/** @typedef {import('./session/stream.js').Message} Message */

class Page {
  constructor() {
    this._settings = loadSettings();
    this._muted = false;
    this._agent = 'listening';
    const transcript = new Transcript();
    const times = new Times();
    this._scope = new Scope(byId('scope'));
    this._conversation = new Conversation(
      (entry) => transcript.show(entry),
      (entry) => transcript.remove(entry),
    );
    this._latency = new Latency((turn) => times.add(turn));
    this._state = new StateView({
      onRetry: () => this._line.retryNow(),
      onMicrophone: () => void this._sound.listen(),
    });
    this._line = new Line({
      onState: (state) => this._takeState(state),
      onMessage: (message, samples) => this._take(message, samples),
    });
    this._sound = new Sound({
      onFrame: (frame) => this._takeFrame(frame),
      onHeard: (heard) => this._takeHeard(heard),
      onTrouble: (trouble) => this._state.setTrouble(trouble),
    });
    this._player = new Player(this._sound, (message) => this._line.send(message));
    this._dialog = new SettingsDialog(this._settings, (settings) => this._change(settings));
    this._listenToControls();
    if (!globalThis.isSecureContext) {
      byId('start').disabled = true;
      this._state.setTrouble('insecure');
    }
  }

  // --- what the user does -----------------------------------------------------------------

  _listenToControls() {
    byId('start').onclick = () => void this._start();
    byId('hang-up').onclick = () => this._line.hangUp();
    byId('mute').onclick = () => this._mute(!this._muted);
    byId('stop').onclick = () => this._line.send({ type: 'interrupt' });
    byId('settings-open').onclick = () => void this._dialog.open(this._line.key);
    byId('typing').onsubmit = (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      this._type();
    };
    byId('times-open').onclick = () => this._showTimes(byId('times-open').ariaExpanded !== 'true');
    document.addEventListener('keydown', ({ key, isComposing }) => {
      if (key === 'Escape' && !isComposing && !document.querySelector('dialog[open]'))
        this._line.send({ type: 'interrupt' });
    });
    for (const sign of ['pointerdown', 'keydown', 'visibilitychange']) {
      document.addEventListener(sign, () => this._sound.wake());
    }
    addEventListener('pagehide', () => this._line.hangUp());
  }

  async _start() {
    if (this._line.isWanted) return;
    byId('start').disabled = true;
    try {
      await this._sound.open();
      this._mute(false);
      void this._sound.listen();
      await this._line.hold(() => sessionOptions(this._settings));
    } catch (error) {
      this._line.fail(/** @type {Error} */ (error).message);
      throw error;
    } finally {
      byId('start').disabled = false;
      this._player.begin();
      await this._sound.close();
      this._scope.clear();
      this._state.setTrouble(null);
      byId('start').focus({ preventScroll: true });
    }
  }

  /** @param {boolean} muted */
  _mute(muted) {
    this._muted = muted;
    byId('mute').ariaPressed = String(muted);
    this._sound.mute(muted);
    this._line.send({ type: 'control', action: muted ? 'mute' : 'unmute' });
    this._showAgent();
  }

  _type() {
    const field = byId('typed');
    const text = field.value.trim();
    if (!text || document.body.dataset.phase !== 'live') return;
    field.value = '';
    this._line.send({ type: 'text', text });
    this._conversation.typed(text);
  }

  /** @param {boolean} shown */
  _showTimes(shown) {
    byId('times-open').ariaExpanded = String(shown);
    document.body.toggleAttribute('data-times', shown);
  }

  /** @param {import('./talk/settings.js').Settings} settings */
  _change(settings) {
    const isNewLanguage = settings.language !== this._settings.language;
    this._settings = settings;
    saveSettings(settings);
    if (document.body.dataset.phase !== 'live') return;
    this._line.send(updateOf(settings));
    if (isNewLanguage) this._conversation.note('The language counts from the next call on.');
  }

  // --- what the server says -----------------------------------------------------------------

  /** @param {import('./session/line.js').LineState} state */
  _takeState(state) {
    this._state.setLine(state);
    if (state.phase === 'live') {
      this._conversation.begin();
      this._latency.begin();
      this._player.begin();
      this._agent = 'listening';
      // The start button has gone; a text field would open a phone's keyboard.
      if (document.activeElement === document.body) byId('mute').focus({ preventScroll: true });
      if (state.again)
        this._conversation.note('Connected again. The agent has forgotten what was said before.');
      if (this._muted) this._mute(true);
    } else if (state.phase === 'lost' || state.phase === 'away') {
      this._player.begin();
    } else if (state.phase === 'locked') {
      askForKey(this._line.key ? state.detail : '', (key) => {
        this._line.key = key;
        void this._start();
      });
    }
  }

  /** @param {Message} message @param {Int16Array | null} samples */
  _take(message, samples) {
    this._latency.apply(message, samples);
    this._player.apply(message, samples);
    this._conversation.apply(message);
    if (message.type === 'state') this._agent = message.state;
    else if (message.type === 'paused') this._agent = 'held';
    else if (message.type === 'resumed') this._agent = 'speaking';
    else if (message.type === 'tool_request') void this._answer(message);
    this._showAgent();
  }

  _showAgent() {
    this._state.setAgent(this._muted && this._agent === 'listening' ? 'muted' : this._agent);
  }

  /** @param {Message} request */
  async _answer({ call_id: callId, name, arguments: given }) {
    const answer = await runTool(name, given);
    this._line.send({ type: 'tool_response', call_id: callId, ...answer });
    this._conversation.toolAnswered(callId, answer.output, answer.is_error);
  }

  // --- sound ----------------------------------------------------------------------------------

  /** @param {import('./audio/sound.js').MicrophoneFrame} frame */
  _takeFrame({ samples, peak, end }) {
    this._scope.note('user', peak);
    if (this._line.sendAudio(samples)) this._latency.sent(samples.length, end);
  }

  /** @param {import('./audio/sound.js').Heard} heard */
  _takeHeard(heard) {
    this._scope.note('agent', heard.peak);
    this._player.note(heard);
    if (heard.id === null) return;
    this._latency.heard(heard, performance.now());
    this._conversation.heard(heard.id, heard.playedMs);
  }
}

new Page();
