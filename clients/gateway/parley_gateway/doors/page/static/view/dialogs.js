// @ts-check
/** The settings, and the question for a key. */
import { Refusal, listVoices } from '../session/api.js';
import { byId } from './dom.js';

/** @typedef {import('../talk/settings.js').Settings} Settings */
/** @typedef {import('../session/api.js').Voice} Voice */

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
    this._offerVoices([], voice);
    this._dialog.showModal();
    const voices = await knownVoices(key);
    const offer = () => this._offerVoices(voices, elements.voice.value);
    elements.language.onchange = offer;
    offer();
  }

  /** Those that speak the language. @param {Voice[]} voices @param {string} chosen */
  _offerVoices(voices, chosen) {
    const { elements } = this._form;
    const fitting = voices.filter(({ languages }) => {
      return !languages?.length || languages.some((name) => name.split('-')[0] === elements.language.value);
    });
    const offered = fitting.map(({ id, name }) => new Option(name || id, id));
    const isKnown = !chosen || fitting.some(({ id }) => id === chosen);
    const kept = isKnown ? [] : [new Option(chosen, chosen)];
    elements.voice.replaceChildren(new Option('The server’s choice', ''), ...kept, ...offered);
    elements.voice.value = chosen;
  }

  /** @returns {Settings} */
  _read() {
    const { voice, language, eagerness, bargeIn } = this._form.elements;
    return {
      voice: voice.value,
      language: language.value,
      eagerness: eagerness.value,
      bargeIn: bargeIn.checked,
    };
  }
}

/** @param {string | null} key @returns {Promise<Voice[]>} none where the gateway does not tell */
async function knownVoices(key) {
  try {
    return (await listVoices(key)).data;
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
