import assert from 'node:assert/strict';
import test from 'node:test';

import { Conversation } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/conversation.js';
import {
  Summary,
  clock,
  median,
  transcriptJson,
  transcriptText,
} from '../../../clients/gateway/parley_gateway/apis/page/static/talk/summary.js';

const ignore = () => {};

/** A call in which a typed question is answered by way of a tool, and the answer is cut by the end. */
function held() {
  let now = Date.UTC(2026, 0, 1);
  const conversation = new Conversation(ignore, ignore, () => (now += 1000));
  conversation.begin();
  conversation.typed('weather?');
  conversation.apply({ type: 'tool_request', call_id: 't', name: 'get_weather', arguments: { city: 'Paris' } });
  conversation.toolAnswered('t', { sky: 'foggy' }, false, 'made up');
  conversation.apply({ type: 'response', response_id: 'r', text: 'It is foggy today.' });
  const piece = { type: 'audio', response_id: 'r', sample_rate: 1000 };
  conversation.apply({ ...piece, offset_ms: 0, samples: 1000, text: 'It is' });
  conversation.apply({ ...piece, offset_ms: 1000, samples: 1000, text: 'foggy today.' });
  conversation.heard('r', 1000);
  return conversation;
}

test('what was not heard when the call ended is cut', () => {
  const conversation = held();
  conversation.end();
  const [answer] = conversation.entries.filter(({ kind }) => kind === 'agent');
  assert.deepEqual([answer.done, answer.cut, answer.reason], [true, 'It is'.length, 'over']);
});

test('the words of a call, as a text and for programs', () => {
  const conversation = held();
  conversation.end();
  const { entries } = conversation;
  assert.equal(
    transcriptText(entries),
    [
      '[0:00] You: weather? (typed)\n',
      '[0:01] Tool get_weather {"city":"Paris"}: {"sky":"foggy"} (made up)\n',
      '[0:02] Parley: It is (not heard: foggy today.)\n',
    ].join(''),
  );
  const json = transcriptJson(entries, { durationMs: 1234.5, turns: 1, medianMs: null });
  assert.deepEqual([json.duration_ms, json.median_answer_ms], [1235, null]);
  assert.deepEqual(
    json.entries.map(({ kind, at }) => [kind, at]),
    [
      ['user', '2026-01-01T00:00:01.000Z'],
      ['tool', '2026-01-01T00:00:02.000Z'],
      ['agent', '2026-01-01T00:00:03.000Z'],
    ],
  );
});

test('figures: asides are no turns, and answers without a time do not count', () => {
  const summary = new Summary();
  assert.equal(summary.hasBegun, false);
  summary.begin(1000);
  for (const totalMs of [500, null, 300]) summary.add({ totalMs });
  summary.end(61_000);
  const entries = [{ kind: 'user' }, { kind: 'user', aside: true }, { kind: 'agent' }];
  assert.deepEqual(summary.figures(entries), { durationMs: 60_000, turns: 1, medianMs: 400 });
  assert.equal(median([]), null);
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(clock(125_000), '2:05');
});
