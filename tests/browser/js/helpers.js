/** Signals, and a loudspeaker that is only a number of rendered blocks. */

export function sine(hertz, rate, seconds, amplitude = 0.5) {
  const samples = new Float32Array(Math.round(rate * seconds));
  for (let i = 0; i < samples.length; i += 1)
    samples[i] = amplitude * Math.sin((2 * Math.PI * hertz * i) / rate);
  return samples;
}

export function integers(samples) {
  return Int16Array.from(samples, (sample) => Math.round(sample * 32767));
}

/** Level of the part of a signal at one frequency; 1 is a sine of full scale. */
export function levelAt(hertz, samples, rate) {
  let re = 0;
  let im = 0;
  for (let i = 0; i < samples.length; i += 1) {
    const window = 1 - Math.cos((2 * Math.PI * i) / samples.length);
    re += window * samples[i] * Math.cos((2 * Math.PI * hertz * i) / rate);
    im += window * samples[i] * Math.sin((2 * Math.PI * hertz * i) / rate);
  }
  return (2 * Math.hypot(re, im)) / samples.length;
}

export function largestStep(samples) {
  let top = 0;
  for (let i = 1; i < samples.length; i += 1) top = Math.max(top, Math.abs(samples[i] - samples[i - 1]));
  return top;
}

export function joined(pieces) {
  const all = new Float32Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** Renders `seconds` of a playout in blocks of 128, as the audio thread does. */
export function listen(playout, rate, seconds) {
  const blocks = [];
  for (let i = 0; i < Math.round((rate * seconds) / 128); i += 1) {
    const block = new Float32Array(128);
    playout.render(block);
    blocks.push(block);
  }
  return joined(blocks);
}
