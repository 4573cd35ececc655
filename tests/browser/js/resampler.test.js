import assert from 'node:assert/strict';
import test from 'node:test';

import { Resampler } from '../../../clients/gateway/parley_gateway/apis/page/static/audio/resampler.js';
import { joined, levelAt, sine } from './helpers.js';

function convert(samples, from, to, block = 128) {
  const resampler = new Resampler(from, to);
  const pieces = [];
  const keep = (output) => pieces.push(output.slice());
  for (let at = 0; at < samples.length; at += block)
    resampler.process(samples.subarray(at, at + block), keep);
  resampler.flush(keep);
  return joined(pieces);
}

for (const [from, to] of [
  [48000, 16000],
  [44100, 16000],
  [96000, 16000],
  [22050, 48000],
  [24000, 44100],
]) {
  test(`${from} to ${to} keeps a tone, its place and its length`, () => {
    const output = convert(sine(440, from, 0.5), from, to);
    assert.equal(output.length, to / 2);
    const expected = sine(440, to, 0.5);
    const margin = Math.round(to / 100);
    for (let i = margin; i < output.length - margin; i += 1) {
      assert.ok(Math.abs(output[i] - expected[i]) < 2e-4, `sample ${i}: ${output[i]}, not ${expected[i]}`);
    }
  });
}

test('what lies above half of the lower rate is gone, and not folded back', () => {
  const output = convert(sine(9000, 48000, 0.5, 1), 48000, 16000);
  const middle = output.subarray(800, 7200);
  assert.ok(levelAt(7000, middle, 16000) < 3e-4);
  assert.ok(Math.max(...middle.map(Math.abs)) < 1e-3);
});

test('going up makes no mirror images', () => {
  const output = convert(sine(3000, 22050, 0.5, 1), 22050, 48000);
  assert.ok(levelAt(19050, output.subarray(4800, 19200), 48000) < 3e-4);
});

test('speech passes up to 7 kHz', () => {
  const output = convert(sine(7000, 48000, 0.5, 1), 48000, 16000);
  assert.ok(levelAt(7000, output.subarray(800, 7200), 16000) > 0.95);
});

test('the size of the blocks does not matter', () => {
  const input = sine(1234, 44100, 0.3);
  const small = convert(input, 44100, 16000, 7);
  assert.deepEqual(small, convert(input, 44100, 16000, 5000));
});

test('equal rates pass samples through', () => {
  const input = sine(440, 16000, 0.1);
  assert.deepEqual(convert(input, 16000, 16000), input);
});

test('a stream can begin anew after the end of another', () => {
  const resampler = new Resampler(22050, 48000);
  const run = () => {
    const pieces = [];
    resampler.process(sine(300, 22050, 0.1), (output) => pieces.push(output.slice()));
    resampler.flush((output) => pieces.push(output.slice()));
    return joined(pieces);
  };
  assert.deepEqual(run(), run());
});
