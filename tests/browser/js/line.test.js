import assert from 'node:assert/strict';
import test from 'node:test';

import { Line } from '../../../clients/gateway/parley_gateway/apis/page/static/session/line.js';

/** A connection whose other side has gone without a word: `onclose` never comes. */
class DeadSocket {
  static OPEN = 1;
  static made = [];

  constructor() {
    this.readyState = 0;
    this.bufferedAmount = 0;
    this.sent = [];
    this.closes = [];
    DeadSocket.made.push(this);
    queueMicrotask(() => {
      this.readyState = DeadSocket.OPEN;
      this.onopen();
    });
  }

  send(data) {
    this.sent.push(data);
  }

  close(code, reason) {
    this.readyState = 2;
    this.closes.push([code, reason]);
  }
}

function makeLine(onMessage = () => {}) {
  DeadSocket.made = [];
  globalThis.WebSocket = DeadSocket;
  globalThis.document = { baseURI: 'http://localhost/page/' };
  globalThis.fetch = async () => Response.json({ session_id: 's', token: 't' });
  const states = [];
  const waiting = new Map();
  const line = new Line({
    onState: (state) => {
      states.push(state);
      waiting.get(state.phase)?.(state);
    },
    onMessage,
  });
  const phase = (name) => new Promise((resolve) => waiting.set(name, resolve));
  return { line, states, phase };
}

test('a call is over as soon as the user hangs up, although the other side is silent', async () => {
  const { line, states, phase } = makeLine();
  const live = phase('live');
  const held = line.hold(() => ({}));
  await live;
  line.hangUp();
  await held;
  const [socket] = DeadSocket.made;
  assert.deepEqual(JSON.parse(socket.sent[0]), { type: 'control', action: 'hangup' });
  assert.deepEqual(socket.closes, [[1000, 'hangup']]);
  assert.deepEqual(
    states.map(({ phase: name }) => name),
    ['connecting', 'live', 'ended'],
  );
  assert.equal(line.isWanted, false);
});

test('a connection on which nothing moves is given up at once, and another is made', async () => {
  const heard = [];
  const { line, states, phase } = makeLine((message) => heard.push(message.type));
  const live = phase('live');
  const held = line.hold(() => ({}));
  await live;
  const lost = phase('lost');
  const [first] = DeadSocket.made;
  assert.equal(line.sendAudio(new Int16Array(1)), true);
  first.bufferedAmount = 1 << 20;
  assert.equal(line.sendAudio(new Int16Array(1)), false);
  assert.equal((await lost).detail, 'stalled');
  // What the old one still says belongs to no call.
  first.onmessage?.({ data: '{"type": "state"}' });
  assert.deepEqual(heard, []);
  const again = phase('live');
  line.retryNow();
  await again;
  assert.equal(DeadSocket.made.length, 2);
  assert.equal(states.at(-1).again, true);
  line.hangUp();
  await held;
  assert.deepEqual(first.closes, [[4000, 'stalled']]);
});
