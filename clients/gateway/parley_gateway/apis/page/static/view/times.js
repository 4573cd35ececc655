// @ts-check
/** Draws how long the user waited for each answer. */
import { STAGES } from '../talk/stages.js';
import { byId, make } from './dom.js';

/** @typedef {import('../talk/latency.js').TurnTime} TurnTime */

const SHOWN = 12;
const SVG = 'http://www.w3.org/2000/svg';

export class Times {
  constructor() {
    this._list = byId('turns');
    this._empty = byId('no-turns');
    /** @type {TurnTime[]} */
    this._turns = [];
  }

  /** Another call begins. */
  clear() {
    this._turns = [];
    this._empty.hidden = false;
    this._list.replaceChildren();
  }

  /** @param {TurnTime} turn */
  add(turn) {
    this._turns.unshift(turn);
    this._turns.length = Math.min(this._turns.length, SHOWN);
    const longest = Math.max(...this._turns.map(lengthOf), 500);
    this._empty.hidden = true;
    this._list.replaceChildren(...this._turns.map((each) => rowOf(each, longest)));
  }
}

/** @param {TurnTime} turn @returns {number} */
function lengthOf({ parts }) {
  return parts.reduce((sum, { ms }) => sum + ms, 0);
}

/** @param {TurnTime} turn @param {number} longest milliseconds @returns {Node} */
function rowOf(turn, longest) {
  const total = make('span', 'total', [
    String(Math.round(turn.totalMs ?? lengthOf(turn))),
    make('small', '', ' ms'),
  ]);
  const labels = Object.entries({ typed: turn.typed, interrupted: turn.interrupted })
    .filter(([, isSo]) => isSo)
    .map(([label]) => make('small', '', label));
  const what = make('span', 'what', [...labels, turn.said || 'The agent spoke by itself']);
  const head = make('summary', '', [total, what, barOf(turn, longest)]);
  const parts = turn.parts.map((part) => ({ ...part, key: part.name }));
  const rows = [...parts, ...turn.details.map((detail) => ({ ...detail, key: '' }))];
  const facts = rows
    .filter(({ ms }) => ms >= 0.5)
    .flatMap(({ name, ms, key }) => {
      const term = make('dt', '', STAGES[name].title);
      term.title = STAGES[name].meaning;
      term.dataset.part = key;
      return [term, make('dd', '', `${Math.round(ms)} ms`)];
    });
  const details = make('details', '', [head, make('dl', '', facts)]);
  return make('li', '', details);
}

/** @param {TurnTime} turn @param {number} longest @returns {Node} */
function barOf(turn, longest) {
  const bar = document.createElementNS(SVG, 'svg');
  bar.setAttribute('class', 'bar-of-parts');
  bar.setAttribute('role', 'img');
  bar.setAttribute(
    'aria-label',
    turn.parts.map(({ name, ms }) => `${STAGES[name].title} ${Math.round(ms)} ms`).join(', '),
  );
  let x = 0;
  for (const { name, ms } of turn.parts) {
    const part = document.createElementNS(SVG, 'rect');
    part.setAttribute('class', name);
    part.setAttribute('x', `${(100 * x) / longest}%`);
    part.setAttribute('width', `${(100 * ms) / longest}%`);
    part.setAttribute('height', '100%');
    bar.append(part);
    x += ms;
  }
  return bar;
}
