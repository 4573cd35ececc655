import assert from 'node:assert/strict';
import test from 'node:test';

import { Backoff } from '../../../clients/gateway/parley_gateway/apis/page/static/session/backoff.js';
import { readable } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/colours.js';
import {
  DEFAULTS,
  languageOf,
  sessionOptions,
  toolsOf,
  updateOf,
  voicesFor,
} from '../../../clients/gateway/parley_gateway/apis/page/static/talk/settings.js';
import { snippetsFor } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/snippets.js';
import { runTool } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/tools.js';

test('each wait is longer, up to a limit, and begins anew after success', () => {
  const backoff = new Backoff(() => 1);
  const waits = Array.from({ length: 6 }, () => backoff.next());
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 5000, 5000]);
  backoff.reset();
  assert.equal(backoff.next(), 500);
});

test('no two pages wait equally long, and none less than the server asks for', () => {
  assert.equal(new Backoff(() => 0).next(), 250);
  assert.equal(new Backoff(() => 0).next(5000), 5000);
  assert.equal(new Backoff(() => 1).next(5000), 6250);
});

const CHOICES = {
  voice: 'anna',
  language: 'de',
  eagerness: 'patient',
  bargeIn: false,
  prompt: 'Sell tea.',
  greeting: 'Good day.',
  temperature: '0.5',
  demoTools: false,
  functions: '[{"name": "order", "answer": 1}, {"name": "get_time"}]',
};
const namesOf = (tools) => tools.map(({ name }) => name);

test('what the user does not choose is left to the server', () => {
  assert.deepEqual(Object.keys(sessionOptions(DEFAULTS, null)).sort(), ['barge_in', 'language', 'tools']);
  const { tools, ...update } = updateOf(DEFAULTS, null, DEFAULTS);
  assert.deepEqual(tools, []);
  assert.deepEqual(update, {
    type: 'update',
    system_prompt: null,
    voice: null,
    sampling: {},
    turn: {},
    barge_in: { enabled: true },
  });
});

test('what the user chooses is said, as far as it is known that the server has it', () => {
  const offer = {
    languages: ['en', 'de'],
    tools: ['get_time'],
    examples: [],
    voices: [{ id: 'anna', language: 'de' }],
  };
  const { tools, ...rest } = sessionOptions(CHOICES, offer);
  assert.deepEqual(namesOf(tools), ['order'], 'the server’s own tool comes first');
  assert.deepEqual(rest, {
    language: 'de',
    voice: 'anna',
    system_prompt: 'Sell tea.',
    greeting: 'Good day.',
    sampling: { temperature: 0.5 },
    turn: { eagerness: 'patient' },
    barge_in: { enabled: false },
  });
  const english = sessionOptions(CHOICES, { ...offer, languages: ['en'] });
  assert.deepEqual([english.language, english.voice], ['en', undefined]);
});

const RESTAURANT = {
  ...{ languages: ['en', 'de'], tools: [], examples: [], voices: [{ id: 'anna', language: 'de' }] },
  agent: { name: 'restaurant', title: 'Bella Vista', language: 'de', voice: '', colour: '' },
};

test('another agent than the own one keeps what its definition says', () => {
  const { tools, ...rest } = sessionOptions(CHOICES, RESTAURANT);
  assert.deepEqual(namesOf(tools), ['order', 'get_time']);
  const turns = { turn: { eagerness: 'patient' }, barge_in: { enabled: false } };
  assert.deepEqual(rest, { agent: 'restaurant', ...turns });
  const own = { ...RESTAURANT, agent: null };
  assert.equal(sessionOptions(CHOICES, own).agent, undefined);
  assert.deepEqual(toolsOf(DEFAULTS, RESTAURANT), [], 'the demo tools belong to Parley’s own prompt');
});

test('a change during a call of another agent changes nothing else of it', () => {
  assert.deepEqual(updateOf(DEFAULTS, RESTAURANT, DEFAULTS), { type: 'update', tools: [] });
  const { tools, ...update } = updateOf({ ...CHOICES, functions: '' }, RESTAURANT, DEFAULTS);
  const turns = { turn: { eagerness: 'patient' }, barge_in: { enabled: false } };
  assert.deepEqual([tools, update], [[], { type: 'update', ...turns }]);
});

test('the language of another agent is its own', () => {
  assert.equal(languageOf(DEFAULTS, RESTAURANT), 'de');
  assert.equal(languageOf({ ...DEFAULTS, language: 'en' }, RESTAURANT), 'de');
});

test('a colour is kept where it can be read, and otherwise made darker or lighter', () => {
  assert.equal(readable('#0A7D5A', ['#faf8f4', '#ffffff']), '#0a7d5a');
  for (const papers of [['#faf8f4', '#ffffff'], ['#171614', '#201e1b']]) {
    for (const colour of ['#ffff00', '#000080', '#ffffff', '#000000', '#808080']) {
      assert.match(readable(colour, papers), /^#[0-9a-f]{6}$/);
    }
    for (const wrong of ['', 'red', '#fff', '#0a7d5a;', 'url(x)']) assert.equal(readable(wrong, papers), '');
  }
  assert.notEqual(readable('#ffff00', ['#ffffff']), '#ffff00');
});

test('snippets name the chosen agent', () => {
  const texts = (agent) => snippetsFor(new URL('http://a.example/'), false, agent).map(({ text }) => text);
  const [, python, script] = texts('restaurant');
  assert.match(python, /connect\(model="restaurant"\)/);
  assert.match(script, /\{ agent: "restaurant", output: "text" \}/);
  assert.match(texts('')[1], /connect\(model="gpt-realtime"\)/);
  assert.match(texts('')[2], /\{ output: "text" \}/);
});

test('the demo tools go with Parley’s own prompt only, and with no tools of the server', () => {
  const offer = { languages: [], tools: [], examples: [], voices: null, default_prompt: true };
  const names = (settings, offered) => namesOf(toolsOf({ ...DEFAULTS, ...settings }, offered));
  assert.deepEqual(names({}, offer), ['get_weather', 'get_time', 'set_timer']);
  assert.deepEqual(names({ prompt: 'You take bookings.' }, offer), []);
  assert.deepEqual(names({}, { ...offer, default_prompt: false }), []);
  assert.deepEqual(names({}, { ...offer, default_prompt: undefined }), [], 'an older server');
  assert.deepEqual(names({}, { ...offer, tools: ['book_table'] }), []);
  assert.deepEqual(names({ demoTools: false }, offer), []);
});

test('the user’s own functions take the place of the demo’s', () => {
  const own = { ...DEFAULTS, functions: '{"name": "set_timer", "description": "Mine."}' };
  const offer = { languages: [], tools: [], examples: [], voices: null, default_prompt: true };
  const tools = toolsOf(own, offer);
  assert.deepEqual(namesOf(tools), ['set_timer', 'get_weather', 'get_time']);
  assert.equal(tools[0].description, 'Mine.');
});

test('voices are those of the language; one that names none speaks any', () => {
  const voices = [{ id: 'a', languages: ['en-US'] }, { id: 'b', language: 'de' }, { id: 'c' }];
  assert.deepEqual(
    voicesFor(voices, 'en-GB').map(({ id }) => id),
    ['a', 'c'],
  );
});

test('tools answer as those of the Python client', async () => {
  assert.deepEqual(await runTool('get_weather', { city: 'Paris' }), {
    output: { temperature: 8, sky: 'foggy' },
    is_error: false,
  });
  assert.match((await runTool('get_time', { city: 'Tokyo' })).output.time, /^\d\d:\d\d$/);
  assert.deepEqual(await runTool('set_timer', { minutes: 10 }), { output: { ok: true }, is_error: false });
});

test('a tool that fails, or is not there, answers that', async () => {
  assert.deepEqual(await runTool('get_time', { city: 'Atlantis' }), {
    output: { error: 'unknown city' },
    is_error: true,
  });
  assert.equal((await runTool('set_timer', { minutes: 0 })).is_error, true);
  assert.equal((await runTool('toString', {})).is_error, true);
});
