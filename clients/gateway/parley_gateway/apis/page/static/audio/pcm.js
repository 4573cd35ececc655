// @ts-check
/** Samples as integers and as fractions of full scale. */

/** @param {Float32Array} samples @returns {Int16Array} */
export function toInt16(samples) {
  const out = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; i += 1) {
    out[i] = Math.max(-32768, Math.min(32767, Math.round(samples[i] * 32767)));
  }
  return out;
}

/** @param {Int16Array} samples @returns {Float32Array} */
export function toFloat(samples) {
  const out = new Float32Array(samples.length);
  for (let i = 0; i < samples.length; i += 1) out[i] = samples[i] / 32768;
  return out;
}

/** @param {Float32Array} samples @returns {number} the largest magnitude */
export function peak(samples) {
  let top = 0;
  for (let i = 0; i < samples.length; i += 1) top = Math.max(top, Math.abs(samples[i]));
  return top;
}

/**
 * The mean of all channels.
 * @param {readonly Float32Array[]} channels of the same length
 * @param {Float32Array} out as long as each of them
 */
export function mixDown(channels, out) {
  out.fill(0);
  for (const channel of channels) {
    for (let i = 0; i < out.length; i += 1) out[i] += channel[i] / channels.length;
  }
}
