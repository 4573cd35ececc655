// @ts-check
/** Which agent the page talks to: the list to choose from, its name and its colour. */
import { readable } from '../talk/colours.js';
import { byId, setText } from './dom.js';

const OWN = 'Parley';
const PAPERS = { light: ['#faf8f4', '#ffffff'], dark: ['#171614', '#201e1b'] };

/**
 * @param {import('../session/presence.js').Presence} presence
 * @returns {string} the agent's name for users
 */
export function showAgent({ agents, hasOwn, offer }) {
  const chosen = offer?.agent ?? null;
  const title = chosen?.title ?? OWN;
  const select = byId('agent');
  const own = hasOwn ? [new Option(`${OWN}: own agent`, '')] : [];
  select.replaceChildren(...own, ...agents.map(({ name, title: shown }) => new Option(shown, name)));
  select.value = chosen?.name ?? '';
  byId('agents').hidden = !agents.length;
  setText(byId('agent-title'), title);
  setText(byId('agent-legend'), title);
  document.title = title;
  for (const [scheme, papers] of Object.entries(PAPERS)) {
    const colour = readable(chosen?.colour ?? '', papers);
    // An empty value removes the property, and the page's own colour counts.
    document.documentElement.style.setProperty(`--agent-${scheme}`, colour);
  }
  return title;
}
