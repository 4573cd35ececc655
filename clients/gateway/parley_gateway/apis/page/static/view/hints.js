// @ts-check
/** Things to say for those who do not know what: each is sent as if it had been typed. */
import { byId, make, setText } from './dom.js';

/** For agents that can be asked anything. */
const ANYTHING = [
  'What can you do?',
  'How do rainbows form?',
  'Give me three ideas for dinner.',
  'Tell me a story.',
];

export class Hints {
  /** @param {(text: string) => void} onHint */
  constructor(onHint) {
    this._onHint = onHint;
    this._title = byId('welcome-title');
    this._list = byId('hints');
    this._name = '';
    this._isLive = false;
    this.offer([], '');
  }

  /**
   * @param {readonly string[]} examples that the server names; none: anything may be said
   * @param {string} name of the agent; empty: it is the server's own
   */
  offer(examples, name) {
    const texts = examples.length ? examples : name ? ANYTHING.slice(0, 1) : ANYTHING;
    this._name = name;
    this.draw(this._isLive);
    this._list.replaceChildren(
      ...texts.slice(0, 6).map((text) => {
        const button = /** @type {HTMLButtonElement} */ (make('button', 'hint', text));
        button.type = 'button';
        button.onclick = () => this._onHint(text);
        return make('li', '', button);
      }),
    );
  }

  /** @param {boolean} isLive */
  draw(isLive) {
    this._isLive = isLive;
    setText(this._title, isLive ? 'Say something.' : `Talk to ${this._name || 'the agent'}.`);
  }
}
