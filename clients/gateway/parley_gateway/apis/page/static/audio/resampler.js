// @ts-check
/**
 * Changes the sample rate of a stream: a polyphase filter with a windowed sinc, without any delay but
 * the look-ahead of its half length.
 *
 * Output sample n lies at n * inRate / outRate samples of the input. The filter's edge is below half of
 * the lower rate, so that going down does not fold high frequencies back into speech.
 */

/** Zero crossings of the sinc on each side, in samples of the lower rate. */
const CROSSINGS = 32;
/** The edge of the filter, as part of half the lower rate. */
const EDGE = 0.92;
/** Kaiser window: about 80 dB of attenuation. */
const BETA = 8;
/** Samples of input that are worked on at a time. */
const BLOCK = 1024;

/** @param {number} x @returns {number} the modified Bessel function of the first kind, order zero */
function bessel(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; term > sum * 1e-12; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/** @param {number} a @param {number} b @returns {number} */
function greatestCommonDivisor(a, b) {
  return b ? greatestCommonDivisor(b, a % b) : a;
}

/**
 * The filter of every phase, one after the other, each with a gain of one for a constant.
 * @param {number} phases
 * @param {number} half taps on each side
 * @param {number} scale the lower rate, as part of the input's
 * @returns {Float32Array} phases * 2 * half taps
 */
function design(phases, half, scale) {
  const taps = new Float32Array(phases * 2 * half);
  const top = bessel(BETA);
  for (let phase = 0; phase < phases; phase += 1) {
    const row = new Float64Array(2 * half);
    let sum = 0;
    for (let tap = 0; tap < 2 * half; tap += 1) {
      const distance = tap - (half - 1) - phase / phases;
      const edge = distance / half;
      const x = Math.PI * distance * scale * EDGE;
      const sinc = Math.abs(x) < 1e-9 ? 1 : Math.sin(x) / x;
      row[tap] = Math.abs(edge) < 1 ? (sinc * bessel(BETA * Math.sqrt(1 - edge * edge))) / top : 0;
      sum += row[tap];
    }
    for (let tap = 0; tap < 2 * half; tap += 1) taps[phase * 2 * half + tap] = row[tap] / sum;
  }
  return taps;
}

export class Resampler {
  /**
   * @param {number} inRate hertz, an integer
   * @param {number} outRate hertz, an integer
   */
  constructor(inRate, outRate) {
    const divisor = greatestCommonDivisor(inRate, outRate);
    this._up = outRate / divisor;
    this._down = inRate / divisor;
    const scale = Math.min(1, outRate / inRate);
    this._half = this._up === this._down ? 0 : Math.ceil(CROSSINGS / scale);
    this._taps = this._half ? design(this._up, this._half, scale) : new Float32Array(0);
    // What is kept of the past, a block, and what flush() adds.
    this._input = new Float32Array(4 * this._half + BLOCK);
    this._output = new Float32Array(Math.ceil(((BLOCK + this._half) * this._up) / this._down) + 2);
    /** Samples in the buffer; the zeros before the stream are among them. */
    this._filled = Math.max(0, this._half - 1);
    /** Where the next output sample lies: buffer index and phase. */
    this._at = this._filled;
    this._phase = 0;
    this._taken = 0;
    this._given = 0;
  }

  /** Forget the stream; the next sample is the first of another. */
  reset() {
    this._input.fill(0);
    this._filled = Math.max(0, this._half - 1);
    this._at = this._filled;
    this._phase = 0;
    this._taken = 0;
    this._given = 0;
  }

  /**
   * Take some input, and hand out what has become of the stream.
   * @param {Float32Array} input of any length
   * @param {(output: Float32Array) => void} give gets pieces that are valid until it returns
   */
  process(input, give) {
    if (!this._half) {
      if (input.length) give(input);
      return;
    }
    for (let start = 0; start < input.length; start += BLOCK) {
      const block = input.subarray(start, start + BLOCK);
      this._taken += block.length;
      this._feed(block, give, Infinity);
    }
  }

  /**
   * The stream is over: hand out the rest, which waits for input that will not come, and begin anew.
   * @param {(output: Float32Array) => void} give
   */
  flush(give) {
    if (this._half && this._taken) {
      const total = Math.ceil((this._taken * this._up) / this._down);
      this._feed(new Float32Array(this._half + 1), give, total - this._given);
    }
    this.reset();
  }

  /**
   * @param {Float32Array} block
   * @param {(output: Float32Array) => void} give
   * @param {number} limit output samples at most
   */
  _feed(block, give, limit) {
    this._input.set(block, this._filled);
    this._filled += block.length;
    const made = this._filter(limit);
    if (made) give(this._output.subarray(0, made));
    this._given += made;
    const first = this._at - (this._half - 1);
    this._input.copyWithin(0, first, this._filled);
    this._filled -= first;
    this._at -= first;
  }

  /** @param {number} limit @returns {number} how many samples were made */
  _filter(limit) {
    const { _input: input, _output: output, _taps: taps, _half: half } = this;
    const length = 2 * half;
    let made = 0;
    while (this._at + half < this._filled && made < limit) {
      const base = this._at - (half - 1);
      const row = this._phase * length;
      let sum = 0;
      for (let tap = 0; tap < length; tap += 1) sum += input[base + tap] * taps[row + tap];
      output[made] = sum;
      made += 1;
      this._phase += this._down;
      const steps = Math.floor(this._phase / this._up);
      this._at += steps;
      this._phase -= steps * this._up;
    }
    return made;
  }
}
