// @ts-check
/** Which of an answer's words have been heard. */

/** How far ahead in the text a spoken word is looked for, where both differ. */
const LOOK_AHEAD = 8;

/** @param {string} word @returns {string} without what is not said */
function bare(word) {
  return word.toLowerCase().replace(/[^\p{L}\p{N}]/gu, '');
}

export class SpokenWords {
  constructor() {
    this.text = '';
    /** @type {{at: number, word: string}[]} words of the audio, and when each begins (milliseconds) */
    this._spoken = [];
  }

  /** @param {string} piece of the text, as it was written */
  write(piece) {
    this.text += piece;
  }

  /**
   * A piece of audio arrives.
   * @param {string} words that begin in it
   * @param {number} at where it begins, milliseconds @param {number} duration milliseconds
   */
  speak(words, at, duration) {
    const list = words.split(/\s+/).filter(Boolean);
    list.forEach((word, i) => this._spoken.push({ at: at + (duration * i) / list.length, word }));
  }

  /** @param {number} ms of audio that were heard @returns {number} how many characters of the text that is */
  heardAt(ms) {
    return this._after(this._spoken.filter(({ at }) => at < ms).map(({ word }) => word));
  }

  /** @param {string} words the beginning of the text @returns {number} where it ends in the text */
  lengthOf(words) {
    return this._after(words.split(/\s+/).filter(Boolean));
  }

  /** @param {string[]} words @returns {number} */
  _after(words) {
    const tokens = [...this.text.matchAll(/\S+/g)];
    let next = 0;
    for (const word of words) {
      const ahead = tokens.slice(next, next + LOOK_AHEAD).findIndex(([token]) => bare(token) === bare(word));
      if (ahead >= 0) next += ahead + 1;
    }
    const last = tokens[next - 1];
    return last ? last.index + last[0].length : 0;
  }
}
