import assert from 'node:assert/strict';
import test from 'node:test';

import { STAGES } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/stages.js';
import { Latency } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/latency.js';

const METRICS = {
  type: 'metrics',
  turn: 1,
  asr_final_ms: 60,
  end_of_turn_ms: 40,
  llm_first_token_ms: 30,
  llm_total_ms: 90,
  tool_ms: 0,
  tts_first_audio_ms: 20,
  first_audio_ms: 200,
  interrupted: false,
  speculated: false,
};

function measured() {
  const turns = [];
  const latency = new Latency((turn) => turns.push(turn));
  // Two seconds of audio; the last sample came from the microphone at 12,000 ms.
  latency.sent(32000, 12000);
  return { latency, turns };
}

const partsOf = ({ parts }) => Object.fromEntries(parts.map(({ name, ms }) => [name, Math.round(ms)]));

test('from the last sample of speech to the first audible one of the answer', () => {
  const { latency, turns } = measured();
  latency.apply({ type: 'speech_stopped', at_ms: 1800, detected_at_ms: 2000 }, null);
  latency.apply({ type: 'transcript', text: 'what time is it', is_final: true }, null);
  const samples = new Int16Array(1000);
  samples.fill(5000, 50); // 50 ms of silence come first
  const audio = { type: 'audio', turn: 1, response_id: 'r1', sample_rate: 1000, offset_ms: 0 };
  latency.apply(audio, samples);
  latency.heard({ id: 'r1', playing: true, playedMs: 40 }, 12290);
  latency.heard({ id: 'r1', playing: true, playedMs: 60 }, 12310);
  latency.apply(METRICS, null);
  assert.equal(turns[0].totalMs, 500);
  assert.equal(turns[0].said, 'what time is it');
  assert.deepEqual(partsOf(turns[0]), { silence: 200, asr_final: 60, end_of_turn: 40, first_audio: 100, delivery: 100 });
});

test('a typed text counts from when it was sent', () => {
  const { latency, turns } = measured();
  latency.typed('tell me a story', 20_000);
  const audio = { type: 'audio', turn: 1, response_id: 'r1', sample_rate: 1000, offset_ms: 0 };
  latency.apply(audio, new Int16Array(1000).fill(5000));
  latency.heard({ id: 'r1', playing: true, playedMs: 50 }, 20_350);
  latency.apply({ ...METRICS, asr_final_ms: null, end_of_turn_ms: null }, null);
  assert.deepEqual([turns[0].said, turns[0].typed, turns[0].totalMs], ['tell me a story', true, 300]);
  assert.equal(partsOf(turns[0]).silence, 0);
});

test('an answer without speech before it has the server’s own time', () => {
  const { latency, turns } = measured();
  latency.apply({ ...METRICS, asr_final_ms: null }, null);
  assert.equal(turns[0].totalMs, null);
  assert.deepEqual(partsOf(turns[0]), { silence: 0, asr_final: 0, end_of_turn: 40, first_audio: 160, delivery: 0 });
});

test('a turn has every stage of the table, and no other', () => {
  const { latency, turns } = measured();
  latency.apply({ ...METRICS, tool_ms: 10 }, null);
  const names = [...turns[0].parts, ...turns[0].details].map(({ name }) => name);
  assert.deepEqual(names.toSorted(), Object.keys(STAGES).toSorted());
});

test('a turn without sound is no row', () => {
  const { latency, turns } = measured();
  latency.apply({ ...METRICS, first_audio_ms: null }, null);
  assert.deepEqual(turns, []);
});
