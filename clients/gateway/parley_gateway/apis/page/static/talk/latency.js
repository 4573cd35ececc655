// @ts-check
/**
 * How long the user waited for each answer, from the end of speech to the first sound heard, and where
 * the time went.
 *
 * The ends of the interval are the page's own: when the last sample of speech came out of the microphone,
 * and when the first audible sample of the answer left the loudspeaker. What lies between is the server's.
 */

const AUDIBLE = 0.003 * 32768;
const RATE = 16000;
const REMEMBERED = 16;

/**
 * @typedef {{turn: number, said: string, totalMs: number | null, parts: {name: string, ms: number}[],
 *   details: {name: string, ms: number}[], interrupted: boolean, speculated: boolean, typed: boolean}} TurnTime
 *   the names of parts and details are those of `stages.js`
 * @typedef {{end: number, detectedMs: number, typed: boolean}} Pause
 *   the end of speech, and how long it took to notice; or when a text was sent
 * @typedef {{turn: number, pause: Pause | null, said: string, leadMs: number, isAudible: boolean}} Response
 * @typedef {{silenceMs: number, totalMs: number, said: string, typed: boolean}} Measured
 */

export class Latency {
  /** @param {(time: TurnTime) => void} onTurn */
  constructor(onTurn) {
    this._onTurn = onTurn;
    this._sentMs = 0;
    this._sentEnd = 0;
    this._said = '';
    /** @type {Pause | null} */
    this._pause = null;
    /** @type {Map<string, Response>} */
    this._responses = new Map();
    /** @type {Map<number, Measured>} */
    this._measured = new Map();
  }

  /** Another call begins: audio is counted anew. */
  begin() {
    this._sentMs = 0;
    this._sentEnd = 0;
    this._said = '';
    this._pause = null;
    this._responses.clear();
    this._measured.clear();
  }

  /**
   * A frame was sent.
   * @param {number} samples @param {number} end when its last sample was heard, milliseconds
   */
  sent(samples, end) {
    this._sentMs += (1000 * samples) / RATE;
    this._sentEnd = end;
  }

  /** A text was sent instead of speech. @param {string} text @param {number} now milliseconds */
  typed(text, now) {
    this._pause = { end: now, detectedMs: 0, typed: true };
    this._said = text;
  }

  /** @param {import('../session/stream.js').Message} message @param {Int16Array | null} samples */
  apply(message, samples) {
    if (message.type === 'speech_stopped') {
      const end = this._sentEnd - (this._sentMs - message.at_ms);
      this._pause = { end, detectedMs: message.detected_at_ms - message.at_ms, typed: false };
    } else if (message.type === 'transcript' && message.is_final && message.text) {
      this._said = message.text;
    } else if (message.type === 'turn_decision' && message.decision === 'commit') {
      this._said = message.text;
    } else if (message.type === 'audio' && samples) {
      this._noteAudio(message, samples);
    } else if (message.type === 'metrics') {
      this._noteMetrics(message);
    }
  }

  /** @param {import('../audio/sound.js').Heard} heard @param {number} now milliseconds */
  heard({ id, playedMs }, now) {
    const response = id === null ? undefined : this._responses.get(id);
    if (!response?.isAudible || playedMs <= response.leadMs) return;
    this._responses.delete(/** @type {string} */ (id));
    if (!response.pause || this._measured.has(response.turn)) return;
    const { end, detectedMs, typed } = response.pause;
    const totalMs = now - (playedMs - response.leadMs) - end;
    forget(this._measured);
    this._measured.set(response.turn, { silenceMs: detectedMs, totalMs, said: response.said, typed });
  }

  /** @param {any} message @param {Int16Array} samples */
  _noteAudio({ turn, response_id: id, sample_rate: rate, offset_ms: offset }, samples) {
    let response = this._responses.get(id);
    if (!response) {
      if (offset > 0) return; // its first sound was measured
      response = { turn, pause: this._pause, said: this._said, leadMs: 0, isAudible: false };
      forget(this._responses);
      this._responses.set(id, response);
      this._pause = null;
      this._said = '';
    }
    if (response.isAudible) return;
    const first = samples.findIndex((sample) => Math.abs(sample) > AUDIBLE);
    response.isAudible = first >= 0;
    response.leadMs += (1000 * (first >= 0 ? first : samples.length)) / rate;
  }

  /** @param {any} metrics */
  _noteMetrics(metrics) {
    const measured = this._measured.get(metrics.turn);
    this._measured.delete(metrics.turn);
    if (metrics.first_audio_ms === null) return;
    this._onTurn({
      turn: metrics.turn,
      said: measured?.said ?? '',
      totalMs: measured?.totalMs ?? null,
      parts: partsOf(metrics, measured),
      details: detailsOf(metrics),
      interrupted: metrics.interrupted,
      speculated: metrics.speculated,
      typed: measured?.typed ?? false,
    });
  }
}

/**
 * Stretches that follow each other. With an answer that was begun early, parts of the server's work overlap;
 * "first_audio" is what they took after the decision.
 * @param {any} metrics @param {Measured | undefined} measured
 */
function partsOf(metrics, measured) {
  const firstAudio = metrics.first_audio_ms ?? 0;
  const recognise = Math.min(metrics.asr_final_ms ?? 0, firstAudio);
  const decide = Math.min(metrics.end_of_turn_ms ?? 0, firstAudio - recognise);
  const parts = [
    { name: 'silence', ms: measured?.silenceMs ?? 0 },
    { name: 'asr_final', ms: recognise },
    { name: 'end_of_turn', ms: decide },
    { name: 'first_audio', ms: firstAudio - recognise - decide },
  ];
  const known = parts.reduce((sum, part) => sum + part.ms, 0);
  parts.push({ name: 'delivery', ms: Math.max(0, (measured?.totalMs ?? known) - known) });
  return parts;
}

/** @param {any} metrics */
function detailsOf(metrics) {
  const named = [
    ['llm_first_token', metrics.llm_first_token_ms],
    ['llm_total', metrics.llm_total_ms],
    ['tool', metrics.tool_ms || null],
    ['tts_first_audio', metrics.tts_first_audio_ms],
  ];
  return named.filter(([, ms]) => ms !== null && ms !== undefined).map(([name, ms]) => ({ name, ms }));
}

/** @param {Map<unknown, unknown>} map of which there is only so much to remember */
function forget(map) {
  if (map.size >= REMEMBERED) map.delete(map.keys().next().value);
}
