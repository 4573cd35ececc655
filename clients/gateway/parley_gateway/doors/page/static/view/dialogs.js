// @ts-check
/** The settings, and the question for a key. */
import { Refusal, listVoices } from '../session/api.js';
import { byId, make } from './dom.js';

/** @typedef {import('../talk/settings.js').Settings} Settings */

export class SettingsDialog {
  /**
   * @param {Settings} settings
   * @param {(settings: Settings) => void} onChange
   */
  constructor(settings, onChange) {
    this._dialog = byId('settings');
    this._form = byId('settings-form');
    this._settings = settings;
    this._form.onsubmit = () => {
      this._settings = this._read();
      onChange(this._settings);
    };
    byId('settings-cancel').onclick = () => this._dialog.close();
  }

  /** @param {string | null} key lets the page ask for the voices */
  async open(key) {
    const { elements } = this._form;
    const { voice, language, eagerness, bargeIn } = this._settings;
    elements.language.value = language;
    elements.eagerness.value = eagerness;
    elements.bargeIn.checked = bargeIn;
    this._offerVoices([]);
    elements.voice.value = voice;
    this._dialog.showModal();
    this._offerVoices(await namesOfVoices(key));
    elements.voice.value = voice;
  }

  /** @param {string[]} names */
  _offerVoices(names) {
    const { voice } = this._settings;
    const all = voice && !names.includes(voice) ? [voice, ...names] : names;
    const options = all.map((name) => {
      const option = /** @type {HTMLOptionElement} */ (make('option', '', name));
      option.value = name;
      return option;
    });
    const standard = /** @type {HTMLOptionElement} */ (make('option', '', 'The server’s choice'));
    standard.value = '';
    this._form.elements.voice.replaceChildren(standard, ...options);
  }

  /** @returns {Settings} */
  _read() {
    const { voice, language, eagerness, bargeIn } = this._form.elements;
    return { voice: voice.value, language: language.value, eagerness: eagerness.value, bargeIn: bargeIn.checked };
  }
}

/** @param {string | null} key @returns {Promise<string[]>} none where the gateway does not tell */
async function namesOfVoices(key) {
  try {
    const answer = await listVoices(key);
    const voices = Array.isArray(answer) ? answer : (answer?.voices ?? answer?.data ?? []);
    return voices.map((/** @type {any} */ voice) => voice?.id ?? voice?.voice_id ?? voice).filter((/** @type {unknown} */ id) => typeof id === 'string');
  } catch (error) {
    if (error instanceof Refusal) return [];
    throw error;
  }
}

/**
 * Ask for a key. It stays in the memory of this page.
 * @param {string} why @param {(key: string) => void} onKey
 */
export function askForKey(why, onKey) {
  const dialog = byId('key');
  const field = byId('key-field');
  byId('key-why').textContent = why;
  byId('key-cancel').onclick = () => dialog.close();
  byId('key-form').onsubmit = () => {
    const key = field.value.trim();
    field.value = '';
    if (key) onKey(key);
  };
  dialog.showModal();
}
