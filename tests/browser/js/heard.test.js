import assert from 'node:assert/strict';
import test from 'node:test';

import {
  HeardTracker,
  PlaybackMarks,
} from '../../../clients/gateway/parley_gateway/apis/page/static/audio/heard.js';

function reported(...reports) {
  const tracker = new HeardTracker();
  for (const [end, id, playedMs, playing = true] of reports) tracker.note({ end, id, playing, playedMs });
  return tracker;
}

test('what was handed out is heard later, and between two reports it is in between', () => {
  const tracker = reported([1.0, 'a', 100], [1.02, 'a', 120], [1.04, 'a', 140]);
  assert.equal(Math.round(tracker.at(1.01).playedMs), 110);
  assert.equal(Math.round(tracker.at(1.5).playedMs), 140);
});

test('the last of a response is still heard when the next was handed out', () => {
  const tracker = reported([1.0, 'a', 100], [1.02, 'b', 20], [1.04, 'b', 40]);
  assert.equal(tracker.at(1.0).id, 'a');
  assert.equal(tracker.at(1.03).id, 'b');
});

test('nothing is heard before the first report', () => {
  assert.deepEqual(reported([1.0, 'a', 100]).at(0.9), { id: null, playing: false, playedMs: 0 });
});

test('it remembers two seconds', () => {
  const tracker = reported(...Array.from({ length: 1000 }, (_, i) => [i / 50, 'a', i * 20]));
  assert.ok(tracker._reports.length < 110);
});

test('a mark now and then, and one at once when it falls silent', () => {
  const sent = [];
  const marks = new PlaybackMarks((id, ms) => sent.push([id, ms]));
  const heard = (playedMs, playing = true, id = 'a') => ({ id, playing, playedMs });
  marks.update(heard(0), 0);
  assert.deepEqual(sent, [], 'it is still to begin');
  marks.update(heard(10), 10);
  marks.update(heard(100), 100);
  marks.update(heard(220), 220);
  marks.update(heard(250, false), 250);
  marks.update(heard(250, false), 300);
  assert.deepEqual(sent, [
    ['a', 10],
    ['a', 220],
    ['a', 250],
  ]);
});

test('the next response does not take the place of the last mark', () => {
  const sent = [];
  const marks = new PlaybackMarks((id, ms) => sent.push([id, ms]));
  marks.update({ id: 'a', playing: true, playedMs: 10 }, 0);
  marks.update({ id: 'a', playing: true, playedMs: 90 }, 80);
  marks.update({ id: 'b', playing: true, playedMs: 5 }, 90);
  marks.update({ id: 'b', playing: true, playedMs: 150 }, 250);
  assert.deepEqual(sent, [
    ['a', 10],
    ['a', 90],
    ['b', 150],
  ]);
});
