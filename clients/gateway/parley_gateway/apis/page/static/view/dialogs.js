// @ts-check
/** The settings, and the question for a key. */
import { Level, canChooseSpeaker, listDevices } from '../audio/devices.js';
import { readFunctions } from '../talk/functions.js';
import { DEFAULTS, languageOf, voicesFor } from '../talk/settings.js';
import { languageName } from './about.js';
import { byId, setText } from './dom.js';

/** @typedef {import('../talk/settings.js').Settings} Settings */
/** @typedef {import('../talk/settings.js').Offer & {language_model?: string}} Offer */
/** @typedef {import('../audio/devices.js').Device} Device */

const OWN_CHOICE = 'The server’s default';

export class SettingsDialog {
  /**
   * @param {Settings} settings
   * @param {{onChange: (settings: Settings) => void}} handlers
   */
  constructor(settings, { onChange }) {
    this._dialog = byId('settings');
    this._form = byId('settings-form');
    this._settings = settings;
    this._onChange = onChange;
    /** @type {Offer | null} */
    this._offer = null;
    this._level = new Level((level) => {
      byId('level').value = level;
    });
    const { elements } = this._form;
    this._form.onsubmit = (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      this._apply();
    };
    elements.language.onchange = () => this._offerVoices(elements.voice.value);
    elements.functions.oninput = () => this._checkFunctions();
    elements.microphone.onchange = () => this._isChecking() && void this._checkMicrophone();
    byId('settings-cancel').onclick = () => this._dialog.close();
    byId('settings-reset').onclick = () => this._show({ ...DEFAULTS });
    byId('check-microphone').onclick = () =>
      this._isChecking() ? this._stopChecking() : void this._checkMicrophone();
    this._dialog.onclose = () => this._stopChecking();
    navigator.mediaDevices?.addEventListener?.('devicechange', () => void this._offerDevices());
  }

  /** @param {Settings} settings that were changed elsewhere */
  take(settings) {
    this._settings = settings;
  }

  /**
   * @param {Offer | null} offer of the chosen agent; null: it is not known
   * @param {boolean} [atSound] whether the microphone is what the user looks for
   */
  open(offer, atSound = false) {
    this._offer = offer;
    this._show(this._settings);
    this._dialog.showModal();
    byId('settings-parts').scrollTop = 0;
    if (!atSound) return;
    byId('sound-settings').scrollIntoView({ block: 'nearest' });
    byId('check-microphone').focus();
    void this._checkMicrophone();
  }

  /** @param {Settings} settings */
  _show(settings) {
    const { elements } = this._form;
    const agent = this._offer?.agent;
    byId('own-agent').hidden = Boolean(agent);
    setText(byId('agent-about'), agent ? aboutAgent(agent, this._offer?.language_model) : '');
    const languages = this._offer?.languages.length ? this._offer.languages : ['en'];
    elements.language.replaceChildren(...languages.map((tag) => new Option(languageName(tag), tag)));
    elements.language.value = languageOf(settings, this._offer ?? { ...NO_OFFER, languages });
    for (const name of ['eagerness', 'prompt', 'greeting', 'temperature', 'functions']) {
      elements[name].value = settings[/** @type {keyof Settings} */ (name)];
    }
    elements.bargeIn.checked = settings.bargeIn;
    elements.demoTools.checked = settings.demoTools;
    this._offerVoices(settings.voice);
    void this._offerDevices(settings.microphone, settings.speaker);
    this._checkFunctions();
    const tools = this._offer?.tools ?? [];
    setText(
      byId('server-tools'),
      tools.length ? `Tools of the server: ${tools.join(', ')}.` : '',
    );
  }

  /** Those that speak the language. @param {string} chosen */
  _offerVoices(chosen) {
    const { elements } = this._form;
    const voices = voicesFor(this._offer?.voices ?? [], elements.language.value);
    const offered = voices.map(({ id, name, description }) => {
      const option = new Option(name || id, id);
      if (description) option.title = description;
      return option;
    });
    elements.voice.replaceChildren(new Option(OWN_CHOICE, ''), ...offered);
    elements.voice.value = voices.some(({ id }) => id === chosen) ? chosen : '';
    const described = voices.find(({ id }) => id === elements.voice.value)?.description;
    setText(byId('voice-about'), this._offer?.voices ? (described ?? '') : 'The server does not list its voices.');
  }

  /** @param {string} [microphone] @param {string} [speaker] */
  async _offerDevices(microphone, speaker) {
    const { elements } = this._form;
    const { microphones, speakers } = await listDevices();
    offerDevices(elements.microphone, microphones, microphone ?? elements.microphone.value);
    offerDevices(elements.speaker, speakers, speaker ?? elements.speaker.value);
    byId('speaker-label').hidden = !canChooseSpeaker();
  }

  // --- the microphone, before a call --------------------------------------------------------

  _isChecking() {
    return byId('check-microphone').ariaPressed === 'true';
  }

  async _checkMicrophone() {
    byId('check-microphone').ariaPressed = 'true';
    setText(byId('check-result'), 'Say something: the bar shows how loud it is.');
    try {
      await this._level.open(this._form.elements.microphone.value);
    } catch (error) {
      this._stopChecking();
      const { name } = /** @type {DOMException} */ (error);
      const isRefused = name === 'NotAllowedError' || name === 'SecurityError';
      const why = isRefused ? 'The browser does not let this page use the microphone.' : 'This microphone cannot be used now.';
      setText(byId('check-result'), why);
    }
    // Their names are known only now.
    await this._offerDevices();
  }

  _stopChecking() {
    this._level.close();
    byId('check-microphone').ariaPressed = 'false';
    setText(byId('check-result'), '');
  }

  // --- what was chosen ------------------------------------------------------------------------

  /** @returns {boolean} whether the functions can be used; the field says what is wrong */
  _checkFunctions() {
    const field = this._form.elements.functions;
    let problem = '';
    let found = '';
    try {
      const functions = readFunctions(field.value, this._offer?.tools);
      const names = functions.map(({ tool, answer }) => `${tool.name}${answer === undefined ? ' (asks you)' : ''}`);
      found = names.length ? `Offered: ${names.join(', ')}.` : '';
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    field.setAttribute('aria-invalid', String(Boolean(problem)));
    setText(byId('functions-problem'), problem || found);
    byId('functions-problem').classList.toggle('problem', Boolean(problem));
    return !problem;
  }

  _apply() {
    const { elements } = this._form;
    if (!this._checkFunctions()) {
      elements.functions.focus();
      return;
    }
    this._settings = this._read();
    this._dialog.close();
    this._onChange(this._settings);
  }

  /** @returns {Settings} */
  _read() {
    const { elements } = this._form;
    const usual = languageOf(DEFAULTS, this._offer);
    // Of another agent than the server's own these are not shown.
    const isOwn = !this._offer?.agent;
    const language = elements.language.value === usual ? '' : elements.language.value;
    const text = (/** @type {string} */ name) => elements[name].value;
    return {
      agent: this._settings.agent,
      // What the server does not tell now may be there again.
      voice: this._offer?.voices && isOwn ? text('voice') : this._settings.voice,
      language: this._offer && isOwn ? language : this._settings.language,
      eagerness: text('eagerness'),
      bargeIn: elements.bargeIn.checked,
      prompt: text('prompt'),
      greeting: text('greeting'),
      temperature: text('temperature'),
      demoTools: elements.demoTools.checked,
      functions: text('functions'),
      microphone: text('microphone'),
      speaker: text('speaker'),
    };
  }
}

/** @param {import('../session/api.js').Summary} agent @param {string} [model] that answers @returns {string} */
function aboutAgent({ name, title, language, voice }, model = 'unknown') {
  const facts = [language && languageName(language), voice && `voice ${voice}`, `language model ${model}`];
  return `${title} is the agent “${name}” of this server: ${facts.filter(Boolean).join(', ')}. Its prompt, greeting, language, voice and temperature are those of its definition.`;
}

/** @type {Offer} */
const NO_OFFER = { languages: [], tools: [], examples: [], voices: null };

/** @param {HTMLSelectElement} select @param {Device[]} devices @param {string} chosen */
function offerDevices(select, devices, chosen) {
  const isKnown = !chosen || devices.some(({ id }) => id === chosen);
  const kept = isKnown ? [] : [new Option('Not connected now', chosen)];
  const offered = devices.map(({ id, name }) => new Option(name, id));
  select.replaceChildren(new Option('The system’s default', ''), ...kept, ...offered);
  select.value = chosen;
}

/**
 * Ask for a key. It stays in the memory of this page.
 * @param {string} why the last one was refused; empty: there was none @param {(key: string) => void} onKey
 */
export function askForKey(why, onKey) {
  const dialog = byId('key');
  const field = byId('key-field');
  setText(byId('key-why'), why || 'This gateway requires a key.');
  byId('key-why').classList.toggle('problem', Boolean(why));
  byId('key-cancel').onclick = () => dialog.close();
  byId('key-form').onsubmit = () => {
    const key = field.value.trim();
    field.value = '';
    if (key) onKey(key);
  };
  dialog.showModal();
}
