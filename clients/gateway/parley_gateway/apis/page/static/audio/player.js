// @ts-check
/** What the agent's messages mean for the loudspeaker, and what the loudspeaker tells the agent. */
import { PlaybackMarks } from './heard.js';

export class Player {
  /**
   * @param {import('./sound.js').Sound} sound
   * @param {(message: import('../session/stream.js').Message) => void} send
   */
  constructor(sound, send) {
    this._sound = sound;
    this._send = send;
    this._marks = this._newMarks();
  }

  /** Another call begins. */
  begin() {
    this._sound.clear();
    this._marks = this._newMarks();
  }

  /** @param {import('../session/stream.js').Message} message @param {Int16Array | null} samples */
  apply(message, samples) {
    const id = message.response_id;
    if (samples) this._sound.push(id, samples, message.sample_rate);
    else if (message.type === 'paused') this._sound.order('pause', id);
    else if (message.type === 'resumed') this._sound.order('resume', id);
    else if (message.type === 'interrupted') this._sound.order('interrupt', id);
    else if (message.type === 'response_done') this._sound.order('finish', id);
  }

  /** @param {import('./sound.js').Heard} heard */
  note(heard) {
    this._marks.update(heard, performance.now());
  }

  _newMarks() {
    return new PlaybackMarks((id, playedMs) => {
      this._send({ type: 'playback', response_id: id, played_ms: playedMs });
    });
  }
}
