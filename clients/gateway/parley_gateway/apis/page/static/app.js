// @ts-check
/** Puts the page together. */
import { Player } from './audio/player.js';
import { Recorder } from './audio/recorder.js';
import { Sound } from './audio/sound.js';
import { Line } from './session/line.js';
import { Presence } from './session/presence.js';
import { Conversation, bareId } from './talk/conversation.js';
import { EventLog } from './talk/events.js';
import { readAnswer } from './talk/functions.js';
import { Latency } from './talk/latency.js';
import { loadSettings, ownFunctions, saveSettings, sessionOptions, updateOf } from './talk/settings.js';
import { Summary } from './talk/summary.js';
import { MADE_UP, runTool } from './talk/tools.js';
import { showAbout } from './view/about.js';
import { showAgent } from './view/agents.js';
import { CallsDialog } from './view/calls.js';
import { SettingsDialog, askForKey } from './view/dialogs.js';
import { byId } from './view/dom.js';
import { EndedView } from './view/ended.js';
import { EventsView } from './view/events.js';
import { Hints } from './view/hints.js';
import { Scope } from './view/scope.js';
import { showSnippets } from './view/snippets.js';
import { StateView } from './view/state.js';
import { Times } from './view/times.js';
import { Transcript } from './view/transcript.js';

/** @typedef {import('./session/stream.js').Message} Message */

class Page {
  constructor() {
    this._settings = loadSettings();
    const linked = new URLSearchParams(location.search).get('agent');
    if (linked !== null) this._settings.agent = linked;
    this._muted = false;
    this._starting = false;
    this._agent = 'listening';
    /** What is to be said as soon as there is a call. */
    this._hint = '';
    this._transcript = new Transcript((entry, text) => this._respond(bareId(entry.id), readAnswer(text)));
    this._times = new Times();
    this._scope = new Scope(byId('scope'));
    this._events = new EventLog();
    this._eventsView = new EventsView(this._events);
    this._recorder = new Recorder();
    this._summary = new Summary();
    this._conversation = new Conversation(
      (entry) => {
        if (entry.kind === 'user') document.body.dataset.turns = 'some';
        this._transcript.show(entry);
      },
      (entry) => this._transcript.remove(entry),
    );
    this._ended = new EndedView({
      entries: () => this._conversation.entries,
      figures: () => this._summary.figures(this._conversation.entries),
      recorder: this._recorder,
    });
    this._latency = new Latency((turn) => {
      this._times.add(turn);
      this._summary.add(turn);
    });
    this._state = new StateView({
      onRetry: () => (this._line.isWanted ? this._line.retryNow() : this._presence.retryNow()),
      onMicrophone: () => void this._sound.listen(),
    });
    this._hints = new Hints((text) => this._say(text));
    this._presence = new Presence((known) => this._takeKnown(known));
    this._presence.wanted = this._settings.agent;
    this._line = new Line({
      onState: (state) => this._takeState(state),
      onMessage: (message, samples) => this._take(message, samples),
    });
    this._sound = new Sound({
      onFrame: (frame) => this._takeFrame(frame),
      onHeard: (heard) => this._takeHeard(heard),
      onTrouble: (trouble) => this._state.setTrouble(trouble),
      onPlayed: (samples, at) => this._recorder.add('agent', samples, at),
      onOther: () => this._conversation.note('The chosen microphone is not connected. The system’s default is used.', 'warning'),
    });
    this._player = new Player(this._sound, (message) => this._send(message));
    this._dialog = new SettingsDialog(this._settings, { onChange: (settings) => this._change(settings) });
    this._calls = new CallsDialog();
    this._listenToControls();
    if (!globalThis.isSecureContext) {
      byId('start').disabled = true;
      this._state.setTrouble('insecure');
    }
    this._showAbout();
    void this._presence.check();
  }

  // --- what the user does -----------------------------------------------------------------

  _listenToControls() {
    byId('start').onclick = () => void this._start();
    byId('hang-up').onclick = () => this._line.hangUp();
    byId('mute').onclick = () => this._mute(!this._muted);
    byId('stop').onclick = () => this._send({ type: 'interrupt' });
    byId('settings-open').onclick = () => this._dialog.open(this._presence.offer);
    byId('calls-open').onclick = () => this._calls.open(this._presence.key);
    byId('sound-open').onclick = () => this._dialog.open(this._presence.offer, true);
    byId('code-open').onclick = byId('code-too').onclick = () =>
      showSnippets(this._presence.keyed, this._presence.offer?.agent?.name ?? '');
    byId('agent').onchange = () => this._choose(byId('agent').value);
    byId('typing').onsubmit = (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      this._type();
    };
    for (const panel of ['times', 'events']) {
      byId(`${panel}-open`).onclick = () => this._showPanel(panel);
    }
    document.addEventListener('keydown', ({ key, isComposing }) => {
      if (key === 'Escape' && !isComposing && !document.querySelector('dialog[open]'))
        this._send({ type: 'interrupt' });
    });
    for (const sign of ['pointerdown', 'keydown', 'visibilitychange']) {
      document.addEventListener(sign, () => this._sound.wake());
    }
    document.addEventListener('visibilitychange', () => !document.hidden && this._presence.retryNow());
    navigator.mediaDevices?.addEventListener?.('devicechange', () => void this._sound.look());
    addEventListener('pagehide', () => this._line.hangUp());
  }

  async _start() {
    if (this._starting || byId('start').disabled) return;
    this._starting = true;
    byId('start').disabled = true;
    await this._sound.choose(this._settings.microphone, this._settings.speaker);
    // Browsers want the sound to be opened while a click is handled; the microphone comes later.
    const opened = this._sound.open();
    opened.catch(() => {}); // told below, if it still matters
    let isHeld = false;
    try {
      if (!(await this._presence.check())) return;
      this._presence.rest();
      await opened;
      isHeld = true;
      this._clear();
      this._mute(false);
      void this._sound.listen();
      await this._line.hold(() => sessionOptions(this._settings, this._presence.offer));
    } catch (error) {
      this._line.fail(/** @type {Error} */ (error).message);
      throw error;
    } finally {
      this._starting = false;
      byId('start').disabled = false;
      this._player.begin();
      await this._sound.close();
      this._scope.clear();
      this._state.setTrouble(null);
      if (isHeld) this._callOver();
      // The key was good a moment ago.
      if (document.body.dataset.phase === 'locked') await this._presence.check();
      if (this._presence.known.state === 'locked') {
        this._askForKey();
      } else {
        this._hint = '';
        byId('start').focus({ preventScroll: true });
      }
    }
  }

  /** Forget the call before. */
  _clear() {
    this._ended.hide();
    this._conversation.clear();
    this._times.clear();
    this._recorder.begin();
    this._summary = new Summary();
    this._events.begin();
    document.body.dataset.turns = 'none';
  }

  _callOver() {
    this._hints.draw(false);
    this._conversation.end();
    this._summary.end(performance.now());
    if (!this._summary.hasBegun) return;
    this._ended.show();
    this._transcript.follow();
    byId('start').textContent = 'Talk again';
  }

  _askForKey() {
    askForKey(this._presence.known.detail, (key) => {
      this._presence.key = this._line.key = key;
      void this._start();
    });
  }

  /** @param {boolean} muted */
  _mute(muted) {
    this._muted = muted;
    byId('mute').ariaPressed = String(muted);
    this._sound.mute(muted);
    this._send({ type: 'control', action: muted ? 'mute' : 'unmute' });
    this._showAgent();
  }

  _type() {
    const field = byId('typed');
    const text = field.value.trim();
    if (!text || !this._isLive) return;
    field.value = '';
    this._say(text);
  }

  /** @param {string} text to be said for the user: now, or when there is a call */
  _say(text) {
    if (!this._isLive) {
      this._hint = text;
      if (!this._starting) void this._start();
      return;
    }
    this._send({ type: 'text', text });
    this._latency.typed(text, performance.now());
    this._conversation.typed(text);
  }

  /** @param {string} panel */
  _showPanel(panel) {
    const isShown = document.body.dataset.panel !== panel;
    document.body.dataset.panel = isShown ? panel : '';
    for (const one of ['times', 'events']) {
      byId(`${one}-open`).ariaExpanded = String(isShown && one === panel);
    }
    this._eventsView.show(isShown && panel === 'events');
  }

  /** @param {string} agent its name; empty: the server's own */
  _choose(agent) {
    this._settings = { ...this._settings, agent };
    saveSettings(this._settings);
    this._dialog.take(this._settings);
    void this._presence.choose(agent);
  }

  /** @param {import('./talk/settings.js').Settings} settings */
  _change(settings) {
    const before = this._settings;
    this._settings = settings;
    saveSettings(settings);
    this._showAbout();
    void this._sound.choose(settings.microphone, settings.speaker);
    if (!this._isLive) return;
    this._send(updateOf(settings, this._presence.offer, before));
    if (this._presence.offer?.agent) return;
    if (settings.language !== before.language || settings.greeting !== before.greeting)
      this._conversation.note('Language and greeting apply from the next call on.');
  }

  get _isLive() {
    return document.body.dataset.phase === 'live';
  }

  /** @param {Message} message */
  _send(message) {
    if (!this._isLive && !this._line.goesOn) return;
    this._line.send(message);
    this._events.add('out', message);
  }

  // --- what the server says -----------------------------------------------------------------

  /** @param {import('./session/presence.js').Known} known */
  _takeKnown(known) {
    this._state.setKnown(known);
    byId('calls-open').hidden = !this._presence.hasCalls;
    if (known.state === 'ready') {
      const { offer } = this._presence;
      this._conversation.speaker = showAgent(this._presence);
      this._hints.offer(offer?.examples ?? [], offer?.agent?.title ?? '');
    }
    this._showAbout();
  }

  _showAbout() {
    showAbout(this._presence.known.state, this._presence.offer, this._settings);
  }

  /** @param {import('./session/line.js').LineState} state */
  _takeState(state) {
    this._state.setLine(state);
    const { phase, detail, goesOn } = state;
    this._events.add('page', { type: phase, ...(detail && { detail }) });
    if (phase === 'live') {
      if (goesOn) this._goOn();
      else this._begin(state.again);
    } else if ((phase === 'lost' || phase === 'away') && !goesOn) {
      this._player.begin();
    }
  }

  /** @param {boolean} again */
  _begin(again) {
    this._conversation.begin();
    this._latency.begin();
    this._player.begin();
    this._agent = 'listening';
    document.body.dataset.call = 'some';
    this._hints.draw(true);
    // The start button has gone; a text field would open a phone's keyboard.
    if (document.activeElement === document.body) byId('mute').focus({ preventScroll: true });
    if (again) this._conversation.note('Connected again. The agent has forgotten what was said before.');
    else this._summary.begin(performance.now());
    if (this._muted) this._mute(true);
    const hint = this._hint;
    this._hint = '';
    if (hint) this._say(hint);
  }

  /** The conversation goes on over another connection. */
  _goOn() {
    this._conversation.note('Connected again. The conversation goes on.');
    this._mute(this._muted);
  }

  /** @param {Message} message @param {Int16Array | null} samples */
  _take(message, samples) {
    this._events.add('in', message);
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
    const own = ownFunctions(this._settings, this._presence.offer).find(({ tool }) => tool.name === name);
    if (own && own.answer === undefined) {
      this._conversation.toolAsks(callId);
    } else if (own) {
      this._respond(callId, own.answer, false, 'answer of your settings');
    } else {
      const { output, is_error: isError } = await runTool(name, given);
      this._respond(callId, output, isError, MADE_UP[name]);
    }
  }

  /** @param {string} callId @param {unknown} output @param {boolean} [isError] @param {string} [remark] */
  _respond(callId, output, isError = false, remark = '') {
    this._send({ type: 'tool_response', call_id: callId, output, is_error: isError });
    this._conversation.toolAnswered(callId, output, isError, remark);
  }

  // --- sound ----------------------------------------------------------------------------------

  /** @param {import('./audio/sound.js').MicrophoneFrame} frame */
  _takeFrame({ samples, peak, end, at }) {
    this._scope.note('user', peak);
    this._recorder.add('user', samples, at);
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
