// @ts-check
/** Microphones and loudspeakers to choose from, and how loud a microphone is. */

const LEVEL_MS = 60;

/** @typedef {{id: string, name: string}} Device */

/** What every request for a microphone asks of it. @param {string} id empty: the system's choice */
export function microphoneOf(id) {
  const usual = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
  return id ? { ...usual, deviceId: { exact: id } } : usual;
}

/**
 * The microphone that was chosen; where it has gone, the system's.
 * @param {string} id
 * @returns {Promise<{stream: MediaStream, isOther: boolean}>}
 */
export async function openMicrophone(id) {
  const ask = (/** @type {string} */ name) =>
    navigator.mediaDevices.getUserMedia({ audio: microphoneOf(name) });
  try {
    return { stream: await ask(id), isOther: false };
  } catch (error) {
    const { name } = /** @type {DOMException} */ (error);
    if (!id || (name !== 'OverconstrainedError' && name !== 'NotFoundError')) throw error;
    return { stream: await ask(''), isOther: true };
  }
}

/** @returns {boolean} whether the browser lets pages choose the loudspeaker */
export function canChooseSpeaker() {
  return typeof AudioContext !== 'undefined' && 'setSinkId' in AudioContext.prototype;
}

/**
 * What there is. Browsers keep names, and most devices, to themselves until the microphone was allowed once.
 * @returns {Promise<{microphones: Device[], speakers: Device[]}>}
 */
export async function listDevices() {
  const all = (await navigator.mediaDevices?.enumerateDevices?.()) ?? [];
  const named = (/** @type {string} */ kind, /** @type {string} */ word) =>
    all
      .filter((device) => device.kind === kind && device.deviceId && device.deviceId !== 'default')
      .map(({ deviceId, label }, i) => ({ id: deviceId, name: label || `${word} ${i + 1}` }));
  return {
    microphones: named('audioinput', 'Microphone'),
    speakers: canChooseSpeaker() ? named('audiooutput', 'Loudspeaker') : [],
  };
}

/** Listens to a microphone, and tells how loud it is. */
export class Level {
  /** @param {(level: number) => void} onLevel 0-1, several times a second */
  constructor(onLevel) {
    this._onLevel = onLevel;
    /** @type {MediaStream | null} */
    this._stream = null;
    /** @type {AudioContext | null} */
    this._context = null;
    this._timer = 0;
    this._attempt = 0;
  }

  /**
   * A microphone that comes, or fails, when it was closed or another one was opened meanwhile counts no more.
   * @param {string} id of the microphone; empty: the system's choice
   */
  async open(id) {
    this.close();
    const attempt = this._attempt;
    let stream;
    try {
      ({ stream } = await openMicrophone(id));
    } catch (error) {
      if (attempt !== this._attempt) return;
      throw error;
    }
    if (attempt !== this._attempt) {
      stopTracks(stream);
      return;
    }
    this._stream = stream;
    this._context = new AudioContext();
    const analyser = this._context.createAnalyser();
    analyser.fftSize = 2048;
    this._context.createMediaStreamSource(stream).connect(analyser);
    const samples = new Float32Array(analyser.fftSize);
    this._timer = setInterval(() => {
      analyser.getFloatTimeDomainData(samples);
      this._onLevel(Math.min(1, Math.sqrt(Math.max(...samples.map(Math.abs)))));
    }, LEVEL_MS);
  }

  close() {
    this._attempt += 1;
    clearInterval(this._timer);
    if (this._stream) stopTracks(this._stream);
    void this._context?.close();
    this._stream = this._context = null;
    this._onLevel(0);
  }
}

/** @param {MediaStream} stream */
export function stopTracks(stream) {
  for (const track of stream.getTracks()) {
    track.onended = null;
    track.stop();
  }
}
