// @ts-check
/** What the user may choose, kept in this browser; never a key. */
import { readFunctions } from './functions.js';
import { DEMO_TOOLS } from './tools.js';

const STORED = 'parley-settings';

/**
 * @typedef {{agent: string, voice: string, language: string, eagerness: string, bargeIn: boolean, prompt: string,
 *   greeting: string, temperature: string, demoTools: boolean, functions: string, microphone: string,
 *   speaker: string}} Settings empty texts: the server's, or the system's, choice
 */
/**
 * @typedef {{languages: string[], tools: string[], examples: string[], default_prompt?: boolean,
 *   agent?: import('../session/api.js').Summary | null, voices: import('../session/api.js').Voice[] | null}} Offer
 *  What the chosen agent has; `agent` null: it is the server's own. `voices` null: the server does not tell.
 */

/** @type {Settings} */
export const DEFAULTS = {
  agent: '',
  voice: '',
  language: '',
  eagerness: '',
  bargeIn: true,
  prompt: '',
  greeting: '',
  temperature: '',
  demoTools: true,
  functions: '',
  microphone: '',
  speaker: '',
};

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

/** @param {Settings} settings @param {Offer | null} offer @returns {string} that the server has, if it tells */
export function languageOf({ language }, offer) {
  if (offer?.agent) return offer.agent.language || 'en';
  const languages = offer?.languages ?? [];
  if (!languages.length) return language || 'en';
  if (languages.includes(language)) return language;
  return languages.includes('en') ? 'en' : languages[0];
}

/**
 * @param {import('../session/api.js').Voice[]} voices @param {string} language
 * @returns {import('../session/api.js').Voice[]} those that speak it
 */
export function voicesFor(voices, language) {
  const primary = (/** @type {string} */ name) => name.toLowerCase().split(/[-_]/)[0];
  return voices.filter(({ languages, language: one }) => {
    const spoken = languages ?? (one ? [one] : []);
    return !spoken.length || spoken.some((name) => primary(name) === primary(language));
  });
}

/** @param {Settings} settings @param {Offer | null} offer @returns {string} that the server has, if it tells */
function voiceOf(settings, offer) {
  if (!offer?.voices) return settings.voice;
  const fitting = voicesFor(offer.voices, languageOf(settings, offer));
  return fitting.some(({ id }) => id === settings.voice) ? settings.voice : '';
}

/**
 * The functions that the user has defined; none where the text is wrong, which the settings do not let through.
 * @param {Settings} settings @param {Offer | null} offer @returns {import('./functions.js').OwnFunction[]}
 */
export function ownFunctions({ functions }, offer) {
  try {
    const taken = offer?.tools ?? [];
    return readFunctions(functions).filter(({ tool }) => !taken.includes(tool.name));
  } catch {
    return [];
  }
}

/**
 * Whether the demo tools go with a session: they fit Parley's own prompt only, and an agent without tools of its own.
 * @param {Settings} settings @param {Offer | null} offer @returns {boolean}
 */
export function offersDemo({ demoTools, prompt }, offer) {
  return demoTools && !prompt.trim() && offer?.default_prompt === true && !offer.tools.length;
}

/**
 * The page's tools of a session: the user's own come before those of the demo.
 * @param {Settings} settings @param {Offer | null} offer @returns {import('./functions.js').Tool[]}
 */
export function toolsOf(settings, offer) {
  const own = ownFunctions(settings, offer).map(({ tool }) => tool);
  const taken = own.map(({ name }) => name);
  const demo = offersDemo(settings, offer) ? DEMO_TOOLS.filter(({ name }) => !taken.includes(name)) : [];
  return [...own, ...demo];
}

/** @param {Settings} settings @returns {object} */
function samplingOf({ temperature }) {
  return temperature === '' ? {} : { temperature: Number(temperature) };
}

/** @param {Settings} settings @param {Offer | null} offer @returns {object} how a session is held */
export function sessionOptions(settings, offer) {
  const { eagerness, bargeIn, prompt, greeting, temperature } = settings;
  const turns = { ...(eagerness && { turn: { eagerness } }), barge_in: { enabled: bargeIn } };
  // The rest is what the agent's definition says: these settings are for the server's own.
  if (offer?.agent) return { agent: offer.agent.name, tools: toolsOf(settings, offer), ...turns };
  const voice = voiceOf(settings, offer);
  return {
    language: languageOf(settings, offer),
    tools: toolsOf(settings, offer),
    ...(voice && { voice }),
    ...(prompt.trim() && { system_prompt: prompt }),
    ...(greeting.trim() && { greeting }),
    ...(temperature !== '' && { sampling: samplingOf(settings) }),
    ...turns,
  };
}

/**
 * For a session that is open.
 * @param {Settings} settings @param {Offer | null} offer @param {Settings} before
 * @returns {import('../session/stream.js').Message}
 */
export function updateOf(settings, offer, before) {
  const { eagerness, bargeIn, prompt } = settings;
  const turn = eagerness ? { eagerness } : {};
  if (offer?.agent) {
    // What is not changed stays as the agent's definition says.
    return {
      type: 'update',
      tools: toolsOf(settings, offer),
      ...(eagerness !== before.eagerness && { turn }),
      ...(bargeIn !== before.bargeIn && { barge_in: { enabled: bargeIn } }),
    };
  }
  return {
    type: 'update',
    system_prompt: prompt.trim() ? prompt : null,
    tools: toolsOf(settings, offer),
    voice: voiceOf(settings, offer) || null,
    sampling: samplingOf(settings),
    turn,
    barge_in: { enabled: bargeIn },
  };
}
