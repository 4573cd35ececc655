// @ts-check
/** Runs in the audio thread: plays the agent's audio, and says how far it is. */
import { Playout } from './playout.js';
import { peak } from './pcm.js';

const REPORT_S = 0.02;

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this._playout = new Playout(sampleRate);
    this._next = 0;
    this._peak = 0;
    this.port.onmessage = ({ data }) => this._obey(data);
  }

  /** @param {any} data */
  _obey({ what, id, samples, rate }) {
    if (what === 'push') this._playout.push(id, samples, rate);
    else if (what === 'finish') this._playout.finish(id);
    else if (what === 'pause') this._playout.pause(id);
    else if (what === 'resume') this._playout.resume(id);
    else if (what === 'interrupt') this._playout.interrupt(id);
    else this._playout.clear();
  }

  /** @param {Float32Array[][]} _inputs @param {Float32Array[][]} outputs @returns {boolean} */
  process(_inputs, outputs) {
    const [first, ...others] = outputs[0];
    this._playout.render(first);
    for (const channel of others) channel.set(first);
    this._peak = Math.max(this._peak, peak(first));
    const end = currentTime + first.length / sampleRate;
    if (end < this._next) return true;
    this._next = end + REPORT_S;
    const { underruns } = this._playout;
    this.port.postMessage({ ...this._playout.position(), end, peak: this._peak, underruns });
    this._peak = 0;
    return true;
  }
}

registerProcessor('parley-playback', Playback);
