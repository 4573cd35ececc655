// @ts-check
/** Runs in the audio thread: posts the microphone's frames. */
import { Framer, RATE } from './framer.js';

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this._framer = new Framer(sampleRate);
    this._muted = false;
    this.port.onmessage = ({ data }) => {
      this._muted = data.muted;
    };
  }

  /**
   * Without an input, or muted, it sends silence: the server closes a call from which nothing comes.
   * @param {Float32Array[][]} inputs @param {Float32Array[][]} outputs @returns {boolean}
   */
  process(inputs, outputs) {
    const channels = this._muted ? [] : inputs[0];
    const length = outputs[0][0].length;
    const end = currentTime + length / sampleRate;
    this._framer.process(channels, length, ({ samples, peak, rest }) => {
      this.port.postMessage({ samples, peak, end: end - rest / RATE }, [samples.buffer]);
    });
    return true;
  }
}

registerProcessor('parley-capture', Capture);
