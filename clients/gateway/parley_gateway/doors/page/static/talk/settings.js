// @ts-check
/** What the user may choose, kept in this browser; never a key. */
import { TOOLS } from './tools.js';

const STORED = 'parley-settings';

/** @typedef {{voice: string, language: string, eagerness: string, bargeIn: boolean}} Settings */

/** @type {Settings} */
export const DEFAULTS = { voice: '', language: 'en', eagerness: '', bargeIn: true };

/** @returns {Settings} */
export function loadSettings() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORED) ?? '{}');
    const known = Object.keys(DEFAULTS).filter(
      (name) => typeof stored[name] === typeof DEFAULTS[/** @type {keyof Settings} */ (name)],
    );
    return { ...DEFAULTS, ...Object.fromEntries(known.map((name) => [name, stored[name]])) };
  } catch {
    return { ...DEFAULTS }; // storage is switched off, or holds something else
  }
}

/** @param {Settings} settings */
export function saveSettings(settings) {
  try {
    localStorage.setItem(STORED, JSON.stringify(settings));
  } catch {
    // They count until the page is closed.
  }
}

/** @param {Settings} settings @returns {object} how a session is held */
export function sessionOptions({ voice, language, eagerness, bargeIn }) {
  return {
    language,
    tools: TOOLS,
    ...(voice && { voice }),
    ...(eagerness && { turn: { eagerness } }),
    barge_in: { enabled: bargeIn },
  };
}

/** @param {Settings} settings @returns {import('../session/stream.js').Message} for a session that is open */
export function updateOf({ voice, eagerness, bargeIn }) {
  return {
    type: 'update',
    voice: voice || null,
    turn: eagerness ? { eagerness } : {},
    barge_in: { enabled: bargeIn },
  };
}
