// @ts-check
/** Microphone and loudspeaker: the audio context, its two worklets, and what has really been heard. */
import { openMicrophone, stopTracks } from './devices.js';
import { HeardTracker } from './heard.js';

/** Frames over which the clock of the microphone is compared with the page's. */
const COMPARED = 200;

/** How long the browser may take to give the microphone before the user is told that it asks. */
const PATIENCE_MS = 700;

/** How long the browser may take to make the sound run. */
const OPEN_MS = 10_000;

/** @typedef {'insecure' | 'asking' | 'refused' | 'none' | 'taken'} Trouble why there is no microphone */
/** @typedef {{samples: Int16Array, peak: number, end: number, at: number}} MicrophoneFrame
 *  `end`: when its last sample was heard, milliseconds on the clock of performance.now(). `at`: the same in
 *  seconds of the audio context. */
/** @typedef {{id: string | null, playing: boolean, playedMs: number, peak: number}} Heard */

export class Sound {
  /**
   * @param {{onFrame: (frame: MicrophoneFrame) => void, onHeard: (heard: Heard) => void,
   *   onTrouble: (trouble: Trouble | null) => void, onPlayed: (samples: Int16Array, at: number) => void,
   *   onOther: () => void}} handlers
   *   `onPlayed`: what went to the loudspeaker, at 16 kHz, and when its last sample did, in seconds of the
   *   audio context. `onOther`: the microphone that was chosen has gone, and the system's is heard.
   */
  constructor({ onFrame, onHeard, onTrouble, onPlayed, onOther }) {
    this._onFrame = onFrame;
    this._onHeard = onHeard;
    this._onTrouble = onTrouble;
    this._onPlayed = onPlayed;
    this._onOther = onOther;
    this._microphone = '';
    this._speaker = '';
    this._missing = false;
    /** Whether a microphone was asked for, and not given up since. */
    this._wanted = false;
    /** Counts the requests for a microphone: only the newest one may keep what it gets, or report. */
    this._attempt = 0;
    this._heard = new HeardTracker();
    /** @type {AudioContext | null} */
    this._context = null;
    /** @type {AudioWorkletNode | null} */
    this._capture = null;
    /** @type {AudioWorkletNode | null} */
    this._playback = null;
    /** @type {MediaStream | null} */
    this._stream = null;
    /** @type {MediaStreamAudioSourceNode | null} of the stream */
    this._source = null;
    this._muted = false;
    /** @type {number[]} */
    this._offsets = [];
  }

  /**
   * Make ready to play. Call it while a click is being handled: browsers want that, and otherwise let the
   * sound wait for ever, which is a failure here.
   */
  async open() {
    if (this._context) return;
    const context = new AudioContext({ latencyHint: 'interactive' });
    this._context = context;
    const module = (/** @type {string} */ name) => new URL(name, import.meta.url);
    await soon(
      Promise.all([
        context.resume(),
        context.audioWorklet.addModule(module('capture.worklet.js')),
        context.audioWorklet.addModule(module('playback.worklet.js')),
      ]),
    );
    if (this._context !== context) return; // closed meanwhile
    this._capture = new AudioWorkletNode(context, 'parley-capture');
    this._capture.port.onmessage = ({ data }) => this._takeFrame(data);
    // Its output is silence, but what leads nowhere is not run.
    this._capture.connect(context.destination);
    this._playback = new AudioWorkletNode(context, 'parley-playback', { numberOfInputs: 0 });
    this._playback.port.onmessage = ({ data }) => this._takeReport(data);
    this._playback.connect(context.destination);
    const played = new AudioWorkletNode(context, 'parley-capture');
    played.port.onmessage = ({ data }) => this._onPlayed(data.samples, data.end);
    this._playback.connect(played);
    played.connect(context.destination);
    await this._useSpeaker();
  }

  /**
   * Use these devices from now on.
   * @param {string} microphone @param {string} speaker ids; empty: the system's choice
   */
  async choose(microphone, speaker) {
    const isOther = microphone !== this._microphone;
    this._microphone = microphone;
    this._speaker = speaker;
    await this._useSpeaker();
    if (isOther && this._wanted) await this.listen();
  }

  /** Something was plugged in: it may be the microphone that is missing. */
  async look() {
    if (this._missing) await this.listen();
  }

  async _useSpeaker() {
    const context = /** @type {any} */ (this._context);
    if (!context?.setSinkId || (context.sinkId ?? '') === this._speaker) return;
    try {
      await context.setSinkId(this._speaker);
    } catch {
      // It has gone: what plays now goes on.
    }
  }

  /**
   * Ask for the microphone; the one before, and a request for it, are given up. Without one, silence is sent,
   * and the user may type.
   */
  async listen() {
    this._stop();
    const { _context: context, _capture: capture, _attempt: attempt } = this;
    if (!context || !capture) return;
    const isCurrent = () => attempt === this._attempt;
    this._wanted = true;
    this._missing = false;
    const slow = setTimeout(() => isCurrent() && this._onTrouble('asking'), PATIENCE_MS);
    try {
      const { stream, isOther } = await openMicrophone(this._microphone);
      if (!isCurrent()) {
        stopTracks(stream); // the call is over, or there is a newer request
        return;
      }
      this._stream = stream;
      this._source = context.createMediaStreamSource(stream);
      this._source.connect(capture);
      const [track] = stream.getAudioTracks();
      // Unplugged: there may be another one.
      track.onended = () => void this.listen();
      track.enabled = !this._muted;
      this._onTrouble(null);
      if (isOther) this._onOther();
    } catch (error) {
      if (!isCurrent()) return;
      this._stop();
      const trouble = troubleOf(/** @type {DOMException} */ (error));
      this._missing = trouble === 'none';
      this._onTrouble(trouble);
    } finally {
      clearTimeout(slow);
    }
  }

  /** @param {boolean} muted */
  mute(muted) {
    this._muted = muted;
    this._capture?.port.postMessage({ muted });
    for (const track of this._stream?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  /** @param {string} id @param {Int16Array} samples @param {number} rate hertz */
  push(id, samples, rate) {
    this._playback?.port.postMessage({ what: 'push', id, samples, rate }, [samples.buffer]);
  }

  /** @param {'finish' | 'pause' | 'resume' | 'interrupt'} what @param {string} id of a response */
  order(what, id) {
    this._playback?.port.postMessage({ what, id });
  }

  /** Drop what is still to be played: another call begins. */
  clear() {
    this._playback?.port.postMessage({ what: 'clear' });
    this._heard.clear();
  }

  /** Go on after the system has stopped the sound, as on a phone during a call. */
  wake() {
    // The system may refuse, or the call end meanwhile: the next sign of life tries again.
    if (this._context && this._context.state !== 'running') this._context.resume().catch(() => {});
  }

  /** Let go of the microphone and the loudspeaker. */
  async close() {
    const context = this._context;
    this._stop();
    this._context = this._capture = this._playback = null;
    this._wanted = this._missing = false;
    this._offsets = [];
    this._heard.clear();
    await context?.close();
  }

  /** Let go of the microphone, and of what a request for one may still bring. */
  _stop() {
    this._attempt += 1;
    if (this._stream) stopTracks(this._stream);
    this._source?.disconnect();
    this._stream = this._source = null;
  }

  /** @param {{samples: Int16Array, peak: number, end: number}} data */
  _takeFrame({ samples, peak, end }) {
    // Messages arrive a little late, some more than others: the earliest is the truth.
    this._offsets.push(performance.now() - 1000 * end);
    if (this._offsets.length > COMPARED) this._offsets.shift();
    this._onFrame({ samples, peak, end: 1000 * end + Math.min(...this._offsets), at: end });
  }

  /** @param {any} report */
  _takeReport({ peak, ...report }) {
    this._heard.note(report);
    this._onHeard({ ...this._heard.at(this._heardTime()), peak });
  }

  /** @returns {number} the context time that leaves the loudspeaker now, seconds */
  _heardTime() {
    const context = this._context;
    if (!context) return 0;
    const { contextTime, performanceTime } = context.getOutputTimestamp?.() ?? {};
    if (!contextTime || !performanceTime) {
      return context.currentTime - (context.outputLatency || context.baseLatency || 0);
    }
    return Math.min(context.currentTime, contextTime + (performance.now() - performanceTime) / 1000);
  }
}

/** @param {Promise<unknown>} work @returns {Promise<void>} */
async function soon(work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('The browser does not start the sound.')), OPEN_MS);
  });
  try {
    await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** @param {DOMException} error @returns {Trouble} */
function troubleOf({ name }) {
  if (name === 'NotAllowedError' || name === 'SecurityError') return 'refused';
  return name === 'NotReadableError' || name === 'AbortError' ? 'taken' : 'none';
}
