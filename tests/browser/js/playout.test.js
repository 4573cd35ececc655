import assert from 'node:assert/strict';
import test from 'node:test';

import { Playout } from '../../../clients/gateway/parley_gateway/apis/page/static/audio/playout.js';
import { integers, largestStep, listen, sine } from './helpers.js';

const RATE = 48000;
// A sine of 300 Hz changes by this much from one sample to the next; a click by far more.
const SMOOTH = 0.5 * 2 * Math.PI * (300 / RATE) * 1.6;

function playing(seconds, options) {
  const playout = new Playout(RATE, options);
  playout.push('a', integers(sine(300, 22050, seconds)), 22050);
  return playout;
}

const silent = (samples) => samples.every((sample) => sample === 0);

test('all of a response is played, at the rate of the device', () => {
  const playout = playing(0.5);
  playout.finish('a');
  const heard = listen(playout, RATE, 0.6);
  assert.ok(largestStep(heard) < SMOOTH);
  assert.ok(Math.abs(playout.position().playedMs - 500) < 1);
  assert.equal(playout.position().playing, false);
  assert.ok(silent(heard.subarray(RATE * 0.52)));
  assert.equal(playout.underruns, 0);
});

test('it waits for a little audio before it begins', () => {
  const playout = playing(0.02);
  assert.ok(silent(listen(playout, RATE, 0.1)));
  playout.push('a', integers(sine(300, 22050, 0.1)), 22050);
  assert.ok(!silent(listen(playout, RATE, 0.1)));
});

test('a short response need not wait', () => {
  const playout = playing(0.02);
  playout.finish('a');
  assert.ok(!silent(listen(playout, RATE, 0.01)));
});

test('what comes too late leaves a gap without clicks, and the next start waits longer', () => {
  const playout = playing(0.2);
  const first = listen(playout, RATE, 0.4);
  assert.equal(playout.underruns, 1);
  assert.ok(largestStep(first) < SMOOTH);
  assert.ok(silent(first.subarray(RATE * 0.25)));
  playout.push('a', integers(sine(300, 22050, 0.06)), 22050);
  assert.ok(silent(listen(playout, RATE, 0.05)), '60 ms would have been enough at first');
  playout.push('a', integers(sine(300, 22050, 0.1)), 22050);
  playout.finish('a');
  const rest = listen(playout, RATE, 0.3);
  assert.ok(!silent(rest));
  assert.ok(largestStep(rest) < SMOOTH);
  assert.ok(Math.abs(playout.position().playedMs - 360) < 2);
});

test('a pause is silent within 10 ms, and the rest is played afterwards', () => {
  const playout = playing(0.5);
  listen(playout, RATE, 0.1);
  playout.pause('a');
  const held = listen(playout, RATE, 0.2);
  assert.ok(largestStep(held) < SMOOTH);
  assert.ok(silent(held.subarray(RATE * 0.01)));
  const at = playout.position();
  assert.equal(at.playing, false);
  assert.ok(at.playedMs < 115);
  playout.resume('a');
  playout.finish('a');
  const rest = listen(playout, RATE, 0.6);
  assert.ok(largestStep(rest) < SMOOTH);
  assert.ok(Math.abs(playout.position().playedMs - 500) < 1);
});

test('an interruption is silent within 10 ms, and takes no more of that response', () => {
  const playout = playing(0.5);
  listen(playout, RATE, 0.1);
  playout.interrupt('a');
  const rest = listen(playout, RATE, 0.1);
  assert.ok(largestStep(rest) < SMOOTH);
  assert.ok(silent(rest.subarray(RATE * 0.01)));
  playout.push('a', integers(sine(300, 22050, 0.5)), 22050);
  assert.ok(silent(listen(playout, RATE, 0.2)));
  assert.equal(playout.queuedMs, 0);
});

test('what is queued behind an interrupted response is played', () => {
  const playout = playing(0.5);
  playout.push('b', integers(sine(300, 24000, 0.2)), 24000);
  playout.finish('b');
  listen(playout, RATE, 0.1);
  playout.pause('a');
  listen(playout, RATE, 0.1);
  playout.interrupt('a');
  listen(playout, RATE, 0.3);
  assert.equal(playout.position().id, 'b');
  assert.ok(Math.abs(playout.position().playedMs - 200) < 1);
});

test('a paused response holds up what is behind it', () => {
  const playout = playing(0.1);
  playout.finish('a');
  playout.push('b', integers(sine(300, 24000, 0.2)), 24000);
  playout.pause('a');
  assert.ok(silent(listen(playout, RATE, 0.2)));
});

test('there is a bound on what is queued', () => {
  const playout = playing(0.5, { limitS: 0.4 });
  playout.push('a', integers(sine(300, 22050, 0.5)), 22050);
  assert.equal(playout.overflowS, 0.5);
  assert.ok(playout.queuedMs < 510);
});

test('after a call nothing is left, and names may be used again', () => {
  const playout = playing(0.5);
  listen(playout, RATE, 0.1);
  playout.interrupt('a');
  playout.clear();
  assert.ok(silent(listen(playout, RATE, 0.1).subarray(RATE * 0.01)));
  playout.push('a', integers(sine(300, 22050, 0.2)), 22050);
  assert.ok(!silent(listen(playout, RATE, 0.1)));
});
