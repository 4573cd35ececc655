import assert from 'node:assert/strict';
import test from 'node:test';

import { Refusal } from '../../../clients/gateway/parley_gateway/apis/page/static/session/api.js';
import { Presence } from '../../../clients/gateway/parley_gateway/apis/page/static/session/presence.js';

const AGENT = {
  recognizers: ['a'],
  language_model: 'b',
  synthesizers: ['c'],
  languages: ['en'],
  voices: null,
  tools: [],
  examples: [],
};
const DOWN = new Refusal('no server', { status: 503, code: 'no_server_ready', reason: 'no_server', retryable: true });

/** A gateway with the given answers; requests are recorded. */
function made(answers = {}) {
  const asked = [];
  const states = [];
  const answering = (name, usual) => async (key, agent) => {
    asked.push(name);
    const answer = answers[name] ?? usual;
    if (answer instanceof Error) throw answer;
    return typeof answer === 'function' ? answer(key, agent) : answer;
  };
  const presence = new Presence((known) => states.push(known.state), {
    readiness: answering('readiness', {}),
    agents: answering('agents', { agents: [], own: true }),
    agent: answering('agent', AGENT),
    voices: answering('voices', { data: [{ id: 'v' }] }),
  });
  return { presence, asked, states, answers };
}

test('a server that is there is asked what it has', async () => {
  const { presence, states } = made();
  assert.equal(await presence.check(), true);
  assert.deepEqual(presence.offer, { ...AGENT, voices: [{ id: 'v' }] });
  assert.deepEqual(states, ['ready']);
});

test('voices are those of the agent, with their descriptions', async () => {
  const listed = [{ id: 'v', description: 'Calm.' }, { id: 'of another model' }];
  const { presence } = made({ agent: { ...AGENT, voices: ['v', 'w'] }, voices: { data: listed } });
  await presence.check();
  assert.deepEqual(presence.offer.voices, [listed[0], { id: 'w' }]);
});

test('a call is possible without a list of voices', async () => {
  const { presence } = made({ voices: new Refusal('not permitted', { status: 403 }) });
  assert.equal(await presence.check(), true);
  assert.equal(presence.offer.voices, null);
});

const AGENTS = [{ name: 'clinic' }, { name: 'restaurant' }];
const named = (_, name = '') => ({ ...AGENT, agent: AGENTS.find((one) => one.name === name) ?? null });

test('the chosen agent is described, or the first that may be chosen where it may not', async () => {
  for (const [wanted, own, described] of [
    ['restaurant', true, 'restaurant'],
    ['', true, undefined],
    ['gone', true, undefined],
    ['gone', false, 'clinic'],
    ['', false, 'clinic'],
  ]) {
    const { presence } = made({ agents: { agents: AGENTS, own }, agent: named });
    presence.wanted = wanted;
    assert.equal(await presence.check(), true);
    assert.equal(presence.offer.agent?.name, described, wanted);
  }
});

test('an agent that is chosen while another is asked for is the one that is described', async () => {
  const { presence, asked } = made({ agents: { agents: AGENTS, own: true, calls: true }, agent: named });
  const first = presence.choose('clinic');
  const second = presence.choose('restaurant');
  assert.deepEqual(await Promise.all([first, second]), [true, true]);
  assert.equal(presence.offer.agent.name, 'restaurant');
  assert.equal(asked.filter((name) => name === 'readiness').length, 1);
  assert.equal(presence.hasCalls, true);
});

test('a chosen agent that does not describe itself is not replaced by the own one', async () => {
  const refusal = new Refusal('no agent', { status: 404, code: 'unknown_agent' });
  const { presence } = made({ agents: { agents: AGENTS, own: true }, agent: refusal });
  assert.equal(await presence.choose('clinic'), false);
  presence.rest();
});

test('a server that is down is asked again until it is there', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { presence, asked, states, answers } = made({ readiness: DOWN });
  assert.equal(await presence.check(), false);
  assert.deepEqual(asked, ['readiness'], 'nothing else is asked then');
  assert.ok(presence.known.retryAt > 0);
  delete answers.readiness;
  t.mock.timers.tick(1000);
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(states, ['down', 'ready']);
  t.mock.timers.tick(60_000);
  assert.deepEqual(asked, ['readiness', 'readiness', 'agents', 'agent', 'voices']);
});

test('a server that is ready and does not tell what it has can be called', async () => {
  const older = new Refusal('unknown field', { status: 400, code: 'invalid_message' });
  const { presence, states } = made({ agent: older });
  assert.equal(await presence.check(), true);
  assert.deepEqual([presence.offer, ...states], [null, 'ready']);
});

test('a server that goes between the questions, and a gateway that limits them, are not ready', async () => {
  const gone = new Refusal('none', { status: 503, code: 'no_server_ready', retryable: true });
  const limited = new Refusal('too many requests', { status: 429, retryable: true });
  for (const [agent, state] of [
    [gone, 'loading'],
    [limited, 'limited'],
  ]) {
    const { presence, states } = made({ agent });
    assert.equal(await presence.check(), false);
    presence.rest();
    assert.deepEqual(states, [state]);
  }
});

test('a gateway that does not answer differs from one without a server', async () => {
  const { presence, states } = made({ readiness: new Refusal('unreachable', { retryable: true }) });
  await presence.check();
  presence.rest();
  assert.deepEqual(states, ['gone']);
});

test('no server, a server that is not ready, and a gateway that shuts down differ', async () => {
  const facts = { status: 503, code: 'no_server_ready', retryable: true };
  for (const [refusal, state, detail] of [
    [new Refusal('nothing at a:1', { ...facts, reason: 'no_server' }), 'down', 'nothing at a:1'],
    [new Refusal('not ready: a:1', { ...facts, reason: 'not_ready' }), 'loading', 'not ready: a:1'],
    [new Refusal('this gateway shuts down', { ...facts, code: 'shutting_down' }), 'gone', ''],
  ]) {
    const { presence } = made({ readiness: refusal });
    assert.equal(await presence.check(), false);
    assert.deepEqual([presence.known.state, presence.known.detail], [state, detail]);
    assert.ok(presence.known.retryAt > 0);
    presence.rest();
  }
});

test('a key is asked for, and a wrong one is said to be wrong', async () => {
  const refusal = new Refusal('the API key is not valid', { status: 401 });
  const agent = (key) => {
    if (key === 'right') return AGENT;
    throw refusal;
  };
  const { presence } = made({ agent });
  await presence.check();
  assert.deepEqual([presence.known.state, presence.known.detail, presence.keyed], ['locked', '', true]);
  presence.key = 'wrong';
  await presence.check();
  assert.match(presence.known.detail, /not accepted: the API key is not valid/);
  presence.key = 'right';
  assert.equal(await presence.check(), true);
});
