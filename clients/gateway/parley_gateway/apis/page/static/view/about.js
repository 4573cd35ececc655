// @ts-check
/** What is known of the server, while there is no call. */
import { byId, make, setText } from './dom.js';

const names = new Intl.DisplayNames('en', { type: 'language' });

/** @param {string} tag such as en-GB @returns {string} */
export function languageName(tag) {
  try {
    return names.of(tag) ?? tag;
  } catch {
    return tag; // no tag of a language
  }
}

/** @type {Record<import('../session/presence.js').Known['state'], string>} */
const TEXTS = {
  asking: 'It is being asked what it has …',
  down: 'There is none. In a checkout, “make serve” starts one, which answers when its models are loaded; this page then goes on by itself.',
  loading: 'It is not ready: its models are loading, or are started again. This page then goes on by itself.',
  gone: 'Its gateway does not answer. “parley gateway” starts one; this page then goes on by itself.',
  locked: 'It tells those who have a key. Whoever runs this gateway makes one with “parley gateway keys new”.',
  limited: 'Its gateway takes no more requests for now.',
  ready: '',
};
const DEMO =
  'This page adds demo tools for weather, time and timers. Their weather is made up, and their timers do not run.';
const NO_DEMO = 'The demo tools of this page are switched off.';

/**
 * @param {import('../session/presence.js').Known['state']} state
 * @param {import('../session/presence.js').Offered | null} offer @param {boolean} demoTools
 */
export function showAbout(state, offer, demoTools) {
  const isKnown = state === 'ready' && offer !== null;
  setText(byId('about-text'), isKnown ? (demoTools ? DEMO : NO_DEMO) : TEXTS[state]);
  byId('about-facts').hidden = !isKnown;
  if (!isKnown) return;
  const rows = [
    ['Hears with', offer.recognizers.join(', ')],
    ['Answers with', offer.language_model],
    ['Speaks with', offer.synthesizers.join(', ')],
    [offer.languages.length > 1 ? 'Languages' : 'Language', offer.languages.map(languageName).join(', ')],
    ['Voices', offer.voices?.length ? String(offer.voices.length) : 'not told'],
    ['Its own tools', offer.tools.join(', ') || 'none'],
  ];
  byId('about-facts').replaceChildren(
    ...rows.flatMap(([name, value]) => [make('dt', '', name), make('dd', '', value)]),
  );
}
