// @ts-check
/** What is known of the server, while there is no call. */
import { byId, make } from './dom.js';

const names = new Intl.DisplayNames('en', { type: 'language' });

/** @param {string} tag such as en-GB @returns {string} */
export function languageName(tag) {
  try {
    return names.of(tag) ?? tag;
  } catch {
    return tag; // no tag of a language
  }
}

/**
 * @param {import('../session/presence.js').Offered | null} offer @param {boolean} demoTools
 */
export function showAbout(offer, demoTools) {
  byId('about').hidden = !offer;
  if (!offer) return;
  const rows = [
    ['Hears with', offer.recognizer],
    ['Answers with', offer.language_model],
    ['Speaks with', offer.synthesizer],
    [offer.languages.length > 1 ? 'Languages' : 'Language', offer.languages.map(languageName).join(', ')],
    ['Voices', offer.voices?.length ? String(offer.voices.length) : 'not told'],
    ['Its own tools', offer.tools.join(', ') || 'none'],
  ];
  byId('about-facts').replaceChildren(
    ...rows.flatMap(([name, value]) => [make('dt', '', name), make('dd', '', value)]),
  );
  byId('about-demo').textContent = demoTools
    ? 'This page adds demo tools for weather, time and timers. Their weather is made up, and their timers do not run.'
    : 'The demo tools of this page are switched off.';
}
