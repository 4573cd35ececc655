// @ts-check
/** The waveform of both sides: the user above the line, the agent below, the present on the right. */

const SECONDS = 8;
const SLOT_MS = 40;
const SLOTS = (SECONDS * 1000) / SLOT_MS;

/** @typedef {{user: number, agent: number}} Slot */

export class Scope {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this._canvas = canvas;
    this._still = matchMedia('(prefers-reduced-motion: reduce)');
    /** @type {Slot[]} the oldest first */
    this._slots = [];
    this._began = 0;
    this._drawing = false;
    new ResizeObserver(() => this._draw()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this._draw());
  }

  /** @param {'user' | 'agent'} side @param {number} level 0-1 */
  note(side, level) {
    const now = performance.now();
    if (!this._slots.length || now - this._began >= SLOT_MS) {
      this._slots.push({ user: 0, agent: 0 });
      this._began = now;
      if (this._slots.length > SLOTS) this._slots.shift();
    }
    const slot = this._slots[this._slots.length - 1];
    slot[side] = Math.max(slot[side], level);
    if (this._drawing) return;
    this._drawing = true;
    requestAnimationFrame(() => {
      this._drawing = false;
      this._draw();
    });
  }

  clear() {
    this._slots = [];
    this._draw();
  }

  _draw() {
    const { clientWidth: width, clientHeight: height } = this._canvas;
    const scale = globalThis.devicePixelRatio || 1;
    if (this._canvas.width !== Math.round(width * scale)) this._canvas.width = Math.round(width * scale);
    if (this._canvas.height !== Math.round(height * scale)) this._canvas.height = Math.round(height * scale);
    const context = this._canvas.getContext('2d');
    if (!context) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const colours = getComputedStyle(this._canvas);
    context.fillStyle = colours.getPropertyValue('--line');
    context.fillRect(0, height / 2 - 0.5, width, 1);
    for (const side of /** @type {const} */ (['user', 'agent'])) {
      context.fillStyle = colours.getPropertyValue(side === 'user' ? '--you' : '--agent');
      if (this._still.matches) this._drawLevel(context, side, width, height);
      else this._drawWave(context, side, width, height);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {'user' | 'agent'} side
   * @param {number} width @param {number} height
   */
  _drawWave(context, side, width, height) {
    const step = width / SLOTS;
    const first = SLOTS - this._slots.length;
    this._slots.forEach((slot, i) => {
      const tall = shape(slot[side]) * (height / 2 - 2);
      const top = side === 'user' ? height / 2 - tall : height / 2;
      context.fillRect((first + i) * step, top, Math.max(1, step - 0.75), tall);
    });
  }

  /**
   * Without motion: one bar for each side, as long as it is loud.
   * @param {CanvasRenderingContext2D} context @param {'user' | 'agent'} side
   * @param {number} width @param {number} height
   */
  _drawLevel(context, side, width, height) {
    const recent = this._slots.slice(-12).map((slot) => slot[side]);
    const long = shape(Math.max(0, ...recent)) * width;
    context.fillRect(0, side === 'user' ? height / 4 - 4 : (3 * height) / 4 - 4, long, 8);
  }
}

/** @param {number} level @returns {number} so that quiet speech can be seen */
function shape(level) {
  return Math.min(1, Math.sqrt(level));
}
