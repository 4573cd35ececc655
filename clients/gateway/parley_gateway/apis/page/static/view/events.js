// @ts-check
/** Draws the messages of a call for developers; only while they are looked at. */
import { matches } from '../talk/events.js';
import { byId, copy, make } from './dom.js';

/** @typedef {import('../talk/events.js').Event} Event */

const SHOWN = 300;
const BRIEF = 160;
const WAYS = { in: '←', out: '→', page: '·' };
const SPOKEN = { in: 'from the gateway', out: 'to the gateway', page: 'of the page' };

export class EventsView {
  /** @param {import('../talk/events.js').EventLog} log */
  constructor(log) {
    this._log = log;
    this._list = byId('events-list');
    this._count = byId('events-count');
    this._filter = byId('events-filter');
    this._frequent = byId('events-frequent');
    this._pause = byId('events-pause');
    this._isShown = false;
    this._isPaused = false;
    this._drawing = false;
    /** @type {Event[]} that came since the last drawing */
    this._waiting = [];
    log.onEvent = (event) => this._note(event);
    this._filter.oninput = this._frequent.onchange = () => this._drawAll();
    this._pause.onclick = () => this._setPaused(!this._isPaused);
    byId('events-copy').onclick = () => void copy(this._text(), byId('events-copy'));
    byId('events-clear').onclick = () => {
      log.clear();
      this._drawAll();
    };
  }

  /** @param {boolean} isShown */
  show(isShown) {
    this._isShown = isShown;
    if (isShown) this._drawAll();
  }

  /** @param {boolean} isPaused */
  _setPaused(isPaused) {
    this._isPaused = isPaused;
    this._pause.ariaPressed = String(isPaused);
    // What waits is drawn now: the next frame would change the list after the pause.
    if (isPaused) this._drawNew();
    else this._drawAll();
  }

  /** @param {Event} event */
  _note(event) {
    if (!this._isShown || this._isPaused) return;
    if (matches(event, this._filter.value, this._frequent.checked)) this._waiting.push(event);
    // Nothing is drawn while the page is hidden.
    if (this._waiting.length > 2 * SHOWN) this._waiting = this._waiting.slice(-SHOWN);
    if (this._drawing) return;
    this._drawing = true;
    requestAnimationFrame(() => {
      this._drawing = false;
      this._drawNew();
    });
  }

  _drawNew() {
    const { scrollHeight, scrollTop, clientHeight } = this._list;
    const follows = scrollHeight - scrollTop - clientHeight < 40;
    const events = this._waiting.slice(-SHOWN);
    this._waiting = [];
    this._list.append(...events.map(rowOf));
    while (this._list.childElementCount > SHOWN) this._list.firstElementChild.remove();
    this._drawCount();
    if (follows) this._list.scrollTop = this._list.scrollHeight;
  }

  _drawAll() {
    this._waiting = this._matching().slice(-SHOWN);
    this._list.replaceChildren();
    this._drawNew();
  }

  _drawCount() {
    const { events, dropped } = this._log;
    const kept = `${this._list.childElementCount} of ${events.length}`;
    this._count.textContent = dropped ? `${kept}; ${dropped} older ones were dropped` : kept;
  }

  /** @returns {Event[]} */
  _matching() {
    return this._log.matching(this._filter.value, this._frequent.checked);
  }

  /** @returns {string} JSON lines */
  _text() {
    return this._matching()
      .map(({ at, way, text }) => `{"at_ms": ${Math.round(at)}, "way": "${way}", "message": ${text}}\n`)
      .join('');
  }
}

/** @param {Event} event @returns {Node} */
function rowOf({ at, way, type, text }) {
  const mark = make('span', `way ${way}`, WAYS[way]);
  mark.title = SPOKEN[way];
  const head = make('summary', '', [
    make('span', 'at', (at / 1000).toFixed(3)),
    mark,
    make('code', '', type),
    make('span', 'brief', briefOf(text)),
  ]);
  const details = /** @type {HTMLDetailsElement} */ (make('details', '', head));
  details.ontoggle = () => {
    if (details.open && details.childElementCount === 1) {
      details.append(make('pre', '', JSON.stringify(JSON.parse(text), null, 2)));
    }
  };
  return make('li', '', details);
}

/** @param {string} text JSON of a message @returns {string} what it says besides its type */
function briefOf(text) {
  const { type: _, text: words, response_id: id, ...rest } = JSON.parse(text);
  const told = { ...(words !== undefined && { text: words }), ...rest, ...(id && { response_id: id }) };
  const brief = Object.entries(told)
    .map(([name, value]) => `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join('  ');
  return brief.length > BRIEF ? `${brief.slice(0, BRIEF)}…` : brief;
}
