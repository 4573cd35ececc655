// @ts-check
/** How programs talk to this gateway: addresses, and snippets to copy. */
import { snippetsFor } from '../talk/snippets.js';
import { byId, copy, make } from './dom.js';

/** @param {boolean} keyed whether a key is needed @param {string} agent name of the chosen one, or empty */
export function showSnippets(keyed, agent) {
  const parts = snippetsFor(new URL('.', document.baseURI), keyed, agent).map(({ name, about, text }) => {
    const button = /** @type {HTMLButtonElement} */ (make('button', 'quiet small', 'Copy'));
    button.type = 'button';
    button.ariaLabel = `Copy ${name}`;
    button.onclick = () => void copy(text, button);
    const code = make('pre', '', text);
    code.tabIndex = 0;
    code.setAttribute('role', 'region');
    code.ariaLabel = name;
    return make('section', 'snippet', [
      make('div', 'snippet-head', [make('h3', '', name), button]),
      make('p', 'explain', about),
      code,
    ]);
  });
  byId('snippets').replaceChildren(...parts);
  byId('code').showModal();
}
