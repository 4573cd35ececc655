import assert from 'node:assert/strict';
import test from 'node:test';

import { Backoff } from '../../../clients/gateway/parley_gateway/apis/page/static/session/backoff.js';
import {
  DEFAULTS,
  sessionOptions,
  toolsOf,
  updateOf,
  voicesFor,
} from '../../../clients/gateway/parley_gateway/apis/page/static/talk/settings.js';
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
  const { tools, ...update } = updateOf(DEFAULTS, null);
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
