// @ts-check
/** The microphone's way to the server: one channel, 16 kHz, frames of equal length. */
import { mixDown, peak, toInt16 } from './pcm.js';
import { Resampler } from './resampler.js';

export const RATE = 16000;
/** 32 ms: what the server's voice activity detection looks at in one step. */
export const FRAME = 512;

/** @typedef {{samples: Int16Array, peak: number, rest: number}} Frame
 *  `rest`: samples at 16 kHz that came after the frame and belong to the next. */

export class Framer {
  /** @param {number} rate of the input, hertz */
  constructor(rate) {
    this._resampler = new Resampler(rate, RATE);
    this._frame = new Float32Array(FRAME);
    this._filled = 0;
    this._mono = new Float32Array(0);
  }

  /**
   * @param {readonly Float32Array[]} channels none: silence
   * @param {number} length of each channel
   * @param {(frame: Frame) => void} give
   */
  process(channels, length, give) {
    if (this._mono.length !== length) this._mono = new Float32Array(length);
    mixDown(channels, this._mono);
    this._resampler.process(this._mono, (output) => {
      for (let i = 0; i < output.length; i += 1) {
        this._frame[this._filled] = output[i];
        this._filled += 1;
        if (this._filled < FRAME) continue;
        give({ samples: toInt16(this._frame), peak: peak(this._frame), rest: output.length - i - 1 });
        this._filled = 0;
      }
    });
  }
}
