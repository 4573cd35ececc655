import assert from 'node:assert/strict';
import test from 'node:test';

import { EventLog } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/events.js';
import { snippetsFor } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/snippets.js';

test('the newest events are kept, with their time in the call', () => {
  let now = 0;
  const log = new EventLog({ most: 3, now: () => now });
  now = 1000;
  log.begin();
  for (let i = 1; i <= 5; i += 1) {
    now += 100;
    log.add('in', { type: 'transcript', text: `word ${i}` });
  }
  assert.deepEqual(
    log.events.map(({ number, at }) => [number, at]),
    [
      [3, 300],
      [4, 400],
      [5, 500],
    ],
  );
  assert.equal(log.dropped, 2);
  log.clear();
  assert.deepEqual([log.events, log.dropped], [[], 0]);
});

test('a filter is made of words; what comes all the time is left out unless asked for', () => {
  const log = new EventLog();
  log.add('in', { type: 'audio', text: 'Paris' });
  log.add('in', { type: 'transcript', text: 'in Paris' });
  log.add('out', { type: 'text', text: 'in London' });
  const found = (filter, frequent) => log.matching(filter, frequent).map(({ number }) => number);
  assert.deepEqual(found('', false), [2, 3]);
  assert.deepEqual(found('paris transcript', false), [2]);
  assert.deepEqual(found('PARIS', true), [1, 2]);
});

test('snippets have the page’s own address, and a key where one is needed', () => {
  const open = snippetsFor(new URL('https://voice.example.com/agent/'), false);
  assert.deepEqual(
    open.map(({ name }) => name),
    ['curl', 'Python', 'JavaScript'],
  );
  for (const { text } of open) {
    assert.match(text, /https:\/\/voice\.example\.com\/agent\/v1/);
    assert.doesNotMatch(text, /PARLEY_KEY/);
  }
  assert.match(open[2].text, /wss:\/\/voice\.example\.com\/agent\/v1\/sessions\//);
  for (const { text } of snippetsFor(new URL('http://localhost:8080/'), true))
    assert.match(text, /PARLEY_KEY/);
});
