// @ts-check
/** What is known of the server, while there is no call. */
import { offersDemo } from '../talk/settings.js';
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
  asking: 'Asking the server for its models and voices …',
  down: 'The gateway has no server. “make serve” in a checkout starts one. This page goes on when its models are loaded.',
  loading: 'The server is not ready: its models are loading or restarting. This page goes on when they are ready.',
  gone: 'The gateway does not answer. “parley gateway” starts one. This page goes on when it answers.',
  locked: 'The gateway requires a key. Its operator makes one with “parley gateway keys new”.',
  limited: 'The gateway accepts no more requests at the moment.',
  ready: '',
};
const DEMO =
  'This page adds demo tools for weather, time and timers. The weather is made up, and the timers do not run.';
const NO_DEMO = 'The demo tools of this page are switched off.';
const UNFIT =
  'The demo tools of this page are not used: the agent has another prompt than Parley’s own, or has its own tools.';

/**
 * @param {import('../session/presence.js').Known['state']} state
 * @param {import('../session/presence.js').Offered | null} offer
 * @param {import('../talk/settings.js').Settings} settings
 */
export function showAbout(state, offer, settings) {
  const isKnown = state === 'ready' && offer !== null;
  setText(byId('about-text'), isKnown ? demoText(settings, offer) : TEXTS[state]);
  byId('about-facts').hidden = !isKnown;
  if (!isKnown) return;
  const others = (offer.language_models ?? []).filter((name) => name !== offer.language_model);
  const rows = [
    ['Speech recognition', offer.recognizers.join(', ')],
    ['Language model', `${offer.language_model}${offer.demonstration ? ' (a demonstration: often wrong)' : ''}`],
    ...(others.length ? [['Where it fails', others.join(', ')]] : []),
    ['Speech synthesis', offer.synthesizers.join(', ')],
    [offer.languages.length > 1 ? 'Languages' : 'Language', offer.languages.map(languageName).join(', ')],
    ['Voices', offer.voices?.length ? String(offer.voices.length) : 'not listed'],
    ['Tools of the server', offer.tools.join(', ') || 'none'],
  ];
  byId('about-facts').replaceChildren(
    ...rows.flatMap(([name, value]) => [make('dt', '', name), make('dd', '', value)]),
  );
}

/**
 * @param {import('../talk/settings.js').Settings} settings
 * @param {import('../session/presence.js').Offered} offer @returns {string}
 */
function demoText(settings, offer) {
  if (!settings.demoTools) return NO_DEMO;
  return offersDemo(settings, offer) ? DEMO : UNFIT;
}
