import assert from 'node:assert/strict';
import test from 'node:test';

import { Recorder } from '../../../clients/gateway/parley_gateway/apis/page/static/audio/recorder.js';

const RATE = 16000;
const frame = (value, length = 512) => new Int16Array(length).fill(value);

/** The samples of a recording, each a pair. */
function heard(recorder) {
  const parts = recorder.wav().map((part) => new Uint8Array(part));
  const bytes = Buffer.concat(parts);
  assert.equal(bytes.toString('latin1', 0, 4), 'RIFF');
  assert.equal(bytes.readUInt32LE(4), bytes.length - 8);
  assert.deepEqual([bytes.readUInt16LE(22), bytes.readUInt32LE(24)], [2, RATE]);
  assert.equal(bytes.readUInt32LE(40), bytes.length - 44);
  const samples = new Int16Array(bytes.buffer.slice(bytes.byteOffset + 44, bytes.byteOffset + bytes.length));
  return { left: samples.filter((_, i) => i % 2 === 0), right: samples.filter((_, i) => i % 2 === 1) };
}

test('both sides lie where they were heard', () => {
  const recorder = new Recorder();
  for (let i = 1; i <= 4; i += 1) recorder.add('user', frame(i), 10 + (i * 512) / RATE);
  recorder.add('agent', frame(-7), 10 + (3 * 512) / RATE);
  const { left, right } = heard(recorder);
  assert.equal(left.length, 4 * 512);
  assert.deepEqual([left[0], left[511], left[512], left[2047]], [1, 1, 2, 4]);
  assert.deepEqual([right[1023], right[1024], right[1535], right[1536]], [0, -7, -7, 0]);
});

test('frames whose clocks differ by a little are neighbours', () => {
  const recorder = new Recorder();
  recorder.add('user', frame(1), 1);
  recorder.add('user', frame(2), 1 + 515 / RATE);
  const { left } = heard(recorder);
  assert.equal(left.length, 1024);
  assert.ok(left.every((sample) => sample !== 0));
});

test('silence takes no room, and is there all the same', () => {
  const recorder = new Recorder();
  for (let i = 1; i <= 1000; i += 1) recorder.add('agent', frame(0), (i * 512) / RATE);
  recorder.add('agent', frame(9), (1001 * 512) / RATE);
  assert.equal(recorder._pieces.agent.length, 1);
  const { right } = heard(recorder);
  assert.equal(right.length, 1001 * 512);
  assert.equal(right.at(-1), 9);
});

test('the oldest gives way, and how much is said', () => {
  const recorder = new Recorder(1);
  for (let i = 1; i <= 62; i += 1) recorder.add('user', frame(i), (i * 512) / RATE);
  assert.equal(recorder.seconds, 1);
  assert.ok(Math.abs(recorder.lostSeconds - (62 * 512 - RATE) / RATE) < 1e-9);
  assert.ok(recorder._pieces.user.length <= 32);
  const { left } = heard(recorder);
  assert.equal(left.length, RATE);
  assert.equal(left.at(-1), 62);
  recorder.begin();
  assert.deepEqual([recorder.seconds, recorder.lostSeconds], [0, 0]);
});
