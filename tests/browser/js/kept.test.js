import assert from 'node:assert/strict';
import test from 'node:test';

import { KeptSession } from '../../../clients/gateway/parley_gateway/apis/page/static/session/kept.js';
import { Line } from '../../../clients/gateway/parley_gateway/apis/page/static/session/line.js';

const FRAME = 320;

/** 20 ms of one value. */
const frame = (value) => new Int16Array(FRAME).fill(value);

function checkpoint(audioMs, { agent, handled = 0, unfinished, ...fields } = {}) {
  return { type: 'checkpoint', state: { version: 1, audio_ms: audioMs, agent, handled, unfinished }, ...fields };
}

function kept(token = 'one') {
  const session = new KeptSession();
  session.onEvent({ type: 'connected', resumption_token: token });
  return session;
}

test('a session can go on after its first checkpoint, if the gateway keeps it', () => {
  const session = kept();
  assert.equal(session.canGoOn, false);
  assert.equal(session.onEvent(checkpoint(0)), false);
  assert.equal(session.canGoOn, true);
  const without = kept(null);
  without.onEvent(checkpoint(0));
  assert.equal(without.canGoOn, false);
});

test('the audio that the checkpoint does not contain is sent again, and no more than ten seconds', () => {
  const session = kept();
  for (let number = 0; number < 10; number += 1) session.onAudio(frame(number));
  session.onEvent(checkpoint(110));
  assert.equal(session.options().resume.audio_ms, 110);
  const again = session.missing().audio.flatMap((samples) => [...samples]);
  assert.equal(again.length, 90 * 16);
  assert.equal(again[0], 5);
  assert.equal(again.at(-1), 9);
  for (let number = 0; number < 1000; number += 1) session.onAudio(frame(1));
  assert.equal(session.options().resume.audio_ms, 1010 * 20 - 10000);
  assert.equal(session.missing().audio.reduce((sum, samples) => sum + samples.length, 0), 160000);
});

test('messages are sent again unless the checkpoint contains them, with new numbers', () => {
  const session = kept();
  const texts = () => session.missing().messages.map(({ text }) => text);
  for (const text of ['a', 'b', 'c']) session.onMessage({ type: 'text', text });
  session.onEvent(checkpoint(0, { handled: 2, unfinished: [1] }));
  assert.deepEqual(texts(), ['a', 'c']);
  // They are 3 and 4 now.
  session.onEvent(checkpoint(0, { handled: 3 }));
  assert.deepEqual(texts(), ['c']);
  session.onMessage({ type: 'text', text: 'd' });
  session.onEvent(checkpoint(0, { handled: 5 }));
  assert.deepEqual(texts(), []);
});

test('marks of playing have no numbers, and say what was heard', () => {
  const session = kept();
  session.onEvent({ type: 'response', turn: 1, response_id: 'r', text: 'Hello there.' });
  const audio = { type: 'audio', turn: 1, response_id: 'r', sample_rate: 8000, samples: 800 };
  session.onEvent({ ...audio, offset_ms: 0, text: 'Hello' });
  session.onEvent({ ...audio, offset_ms: 100, text: '' });
  session.onMessage({ type: 'playback', response_id: 'r', played_ms: 150 });
  assert.deepEqual(session.missing().messages, []);
  session.onEvent(checkpoint(0, { agent: { turn: 1, response_id: 'r' } }));
  assert.deepEqual(session.options().resume.progress, {
    response_id: 'r',
    text: 'Hello there.',
    words: [[0, 'Hello']],
    audio_ms: 200,
    played_ms: 150,
    done: false,
  });
});

test('no more was played than has come', () => {
  const session = kept();
  session.onEvent({
    type: 'audio',
    turn: 1,
    response_id: 'r',
    sample_rate: 22050,
    samples: 40960,
    offset_ms: 0,
    text: '',
  });
  session.onMessage({ type: 'playback', response_id: 'r', played_ms: 1859 });
  session.onEvent(checkpoint(0, { agent: { turn: 1, response_id: 'r' } }));
  const { audio_ms: audioMs, played_ms: playedMs } = session.options().resume.progress;
  assert.deepEqual([audioMs, playedMs], [1858, 1858]);
});

test('a tool is run once, and one whose request was lost is run too', () => {
  const session = kept();
  const request = { type: 'tool_request', turn: 1, call_id: 't', name: 'f', arguments: {} };
  session.onEvent(request);
  const answer = { type: 'tool_response', call_id: 't', output: 1 };
  session.onMessage(answer);
  const calls = [
    { id: 't', name: 'f', arguments: {} },
    { id: 'u', name: 'f', arguments: { a: 1 } },
  ];
  session.onEvent(checkpoint(0, { agent: { turn: 1, response_id: 'r', rounds: [{ calls }] } }));
  assert.deepEqual(session.ends(), [{ ...request, call_id: 'u', arguments: { a: 1 } }]);
  assert.deepEqual(session.missing().messages, [answer]);
  assert.deepEqual(session.ends(), []);
  session.onEvent(checkpoint(0, { handled: 1, agent: { turn: 1, response_id: 'r', rounds: [{ calls }] } }));
  assert.deepEqual(session.missing().messages, []);
});

test('an answer to a message that was lost with the gateway comes all the same', () => {
  const session = kept();
  const updated = { type: 'updated' };
  session.onEvent(checkpoint(0, { answers: [updated] }));
  assert.deepEqual(session.ends(), [updated]);
  session.onEvent(checkpoint(0, { answers: [updated] }));
  session.onEvent(updated);
  assert.deepEqual(session.ends(), []);
});

test('what the next gateway does not go on with is ended, and a pause too', () => {
  const session = kept();
  for (const id of ['lost', 'paused']) session.onEvent({ type: 'response', turn: 1, response_id: id, text: 'a' });
  session.onEvent({ type: 'paused', turn: 1, response_id: 'paused' });
  session.onEvent(checkpoint(0, { agent: { turn: 1, response_id: 'paused' } }));
  const ends = session.ends().map(({ type, response_id: id }) => [type, id]);
  assert.deepEqual(ends, [
    ['interrupted', 'lost'],
    ['resumed', 'paused'],
  ]);
  assert.deepEqual(session.ends(), []);
});

/** A gateway that keeps sessions; each socket is one connection. */
class Socket {
  static OPEN = 1;
  static made = [];

  constructor() {
    this.readyState = 0;
    this.bufferedAmount = 0;
    this.sent = [];
    Socket.made.push(this);
    queueMicrotask(() => {
      this.readyState = Socket.OPEN;
      this.onopen();
    });
  }

  send(data) {
    this.sent.push(typeof data === 'string' ? JSON.parse(data) : data.length);
  }

  say(message) {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  close() {
    this.readyState = 3;
  }

  lose(code = 1006) {
    this.readyState = 3;
    this.onclose?.({ code, reason: '' });
  }
}

function makeLine(answers = [], onState = () => {}) {
  Socket.made = [];
  const bodies = [];
  globalThis.WebSocket = Socket;
  globalThis.document = { baseURI: 'http://localhost/page/' };
  globalThis.fetch = async (_, { body }) => {
    bodies.push(JSON.parse(body));
    const answer = answers.shift();
    return answer ? Response.json(answer.body, { status: answer.status }) : Response.json({ session_id: 's', token: 't' });
  };
  const states = [];
  const messages = [];
  const line = new Line({
    onState: (state) => {
      states.push(state);
      onState(state);
    },
    onMessage: (message) => messages.push(message),
  });
  const until = async (condition) => {
    while (!condition()) await new Promise((resolve) => setTimeout(resolve, 1));
  };
  const socket = async (number) => {
    await until(() => Socket.made.length > number && Socket.made[number].onmessage);
    return Socket.made[number];
  };
  return { line, states, messages, bodies, until, socket };
}

test('a call that loses its gateway goes on over another connection', async () => {
  const { line, states, bodies, until, socket } = makeLine();
  const held = line.hold(() => ({ language: 'en' }));
  const first = await socket(0);
  first.say({ type: 'connected', resumption_token: 'one' });
  line.sendAudio(frame(1));
  line.send({ type: 'text', text: 'hello' });
  first.say(checkpoint(0));
  first.lose();
  await until(() => line.goesOn);
  assert.equal(line.sendAudio(frame(2)), true);
  const second = await socket(1);
  assert.deepEqual(bodies[1], { checkpoints: true, resume: { token: 'one', audio_ms: 0 } });
  assert.deepEqual(second.sent, []);
  second.say(checkpoint(20));
  second.say({ type: 'connected', resumption_token: 'two', resumed: true });
  assert.deepEqual(second.sent, [{ type: 'text', text: 'hello' }, FRAME]);
  assert.deepEqual(
    states.map(({ phase, goesOn }) => [phase, goesOn]),
    [
      ['connecting', false],
      ['live', false],
      ['lost', true],
      ['connecting', false],
      ['live', true],
    ],
  );
  assert.equal(line.goesOn, false);
  line.hangUp();
  await held;
  assert.deepEqual(bodies[0], { checkpoints: true, language: 'en' });
});

test('what is said as soon as there is a connection again comes behind what was lost', async () => {
  const { line, until, socket } = makeLine([], ({ phase, goesOn }) => {
    if (phase === 'live' && goesOn) line.send({ type: 'text', text: 'what can you do' });
  });
  const held = line.hold(() => ({}));
  const first = await socket(0);
  first.say({ type: 'connected', resumption_token: 'one' });
  first.say(checkpoint(0));
  line.send({ type: 'text', text: 'tell me a story' });
  first.lose();
  await until(() => line.goesOn);
  const second = await socket(1);
  second.say({ type: 'connected', resumption_token: 'two', resumed: true });
  assert.deepEqual(
    second.sent.map(({ text }) => text),
    ['tell me a story', 'what can you do'],
  );
  line.hangUp();
  await held;
});

test('audio of ten seconds that is sent again is no stalled connection, and live audio behind it may be', async () => {
  const { line, states, until, socket } = makeLine();
  const held = line.hold(() => ({}));
  const first = await socket(0);
  first.say({ type: 'connected', resumption_token: 'one' });
  first.say(checkpoint(0));
  first.lose();
  await until(() => line.goesOn);
  for (let number = 0; number < 500; number += 1) line.sendAudio(frame(1));
  const second = await socket(1);
  second.send = (data) => (second.bufferedAmount += data.byteLength ?? 0);
  second.say({ type: 'connected', resumption_token: 'two', resumed: true });
  assert.equal(second.bufferedAmount, 320000);
  assert.equal(line.sendAudio(frame(2)), true);
  assert.equal(states.at(-1).phase, 'live');
  // Nothing leaves: four seconds of live audio are too many all the same.
  for (let number = 0; number < 210; number += 1) line.sendAudio(frame(2));
  await until(() => states.at(-1).phase !== 'live');
  assert.equal(states.find(({ detail }) => detail === 'stalled')?.phase, 'lost');
  line.hangUp();
  await held;
});

test('a session that is gone is followed by a new one', async () => {
  const refusal = { status: 410, body: { error: { code: 'not_resumable', message: 'gone', retryable: false } } };
  const { line, states, bodies, until, socket } = makeLine([null, refusal]);
  const held = line.hold(() => ({}));
  const first = await socket(0);
  first.say({ type: 'connected', resumption_token: 'one' });
  first.say(checkpoint(0));
  first.lose();
  await socket(1);
  await until(() => states.at(-1).phase === 'live');
  assert.equal(states.at(-1).goesOn, false);
  assert.deepEqual(
    bodies.map((body) => 'resume' in body),
    [false, true, false],
  );
  line.hangUp();
  await held;
});

test('a gateway that will stop is left in a pause, after another one has the session', async () => {
  const busy = { status: 503, body: { error: { code: 'shutting_down', message: 'no', retryable: true } } };
  const { line, messages, bodies, until, socket } = makeLine([null, busy]);
  const held = line.hold(() => ({}));
  const first = await socket(0);
  first.say({ type: 'connected', resumption_token: 'one' });
  first.say(checkpoint(0, { settled: false }));
  first.say({ type: 'go_away', time_left_ms: 60000 });
  await until(() => true);
  assert.equal(bodies.length, 1);
  first.say(checkpoint(20, { settled: true }));
  first.say({ type: 'state', state: 'listening' });
  await until(() => bodies.length === 2 && messages.some(({ type }) => type === 'state'));
  assert.equal(Socket.made.length, 1);
  first.say(checkpoint(40, { settled: true }));
  const second = await socket(1);
  assert.equal(bodies.length, 3);
  second.say({ type: 'connected', resumption_token: 'two', resumed: true });
  await until(() => !line.goesOn);
  line.hangUp();
  await held;
});
