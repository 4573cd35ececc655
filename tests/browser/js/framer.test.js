import assert from 'node:assert/strict';
import test from 'node:test';

import {
  FRAME,
  Framer,
  RATE,
} from '../../../clients/gateway/parley_gateway/apis/page/static/audio/framer.js';
import { levelAt, sine } from './helpers.js';

function frames(channels, rate) {
  const framer = new Framer(rate);
  const given = [];
  const length = channels[0]?.length ?? rate / 2;
  for (let at = 0; at + 128 <= length; at += 128) {
    framer.process(
      channels.map((channel) => channel.subarray(at, at + 128)),
      128,
      (frame) => given.push(frame),
    );
  }
  return given;
}

test('two channels become one, in frames of 32 ms at 16 kHz', () => {
  const left = sine(440, 48000, 1, 0.8);
  const given = frames([left, new Float32Array(left.length)], 48000);
  assert.equal(given.length, 31);
  assert.ok(given.every((frame) => frame.samples.length === FRAME && frame.rest >= 0 && frame.rest < 128));
  const all = given.slice(2).flatMap((frame) => [...frame.samples].map((sample) => sample / 32767));
  assert.ok(Math.abs(levelAt(440, all, RATE) - 0.4) < 0.01);
  assert.ok(Math.abs(given[5].peak - 0.4) < 0.01);
});

test('what is too loud is cut off, not wrapped around', () => {
  const given = frames([new Float32Array(48000).fill(1.7)], 48000);
  assert.ok(given.slice(1).every((frame) => frame.samples.every((sample) => sample === 32767)));
});

test('no microphone is silence', () => {
  const given = frames([], 48000);
  assert.ok(given.length > 14);
  assert.ok(given.every((frame) => frame.peak === 0));
});
