import assert from 'node:assert/strict';
import test from 'node:test';

import { Backoff } from '../../../clients/gateway/parley_gateway/doors/page/static/session/backoff.js';
import {
  sessionOptions,
  updateOf,
} from '../../../clients/gateway/parley_gateway/doors/page/static/talk/settings.js';
import { runTool } from '../../../clients/gateway/parley_gateway/doors/page/static/talk/tools.js';

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

test('what the user does not choose is left to the server', () => {
  const options = sessionOptions({ voice: '', language: 'en', eagerness: '', bargeIn: true });
  assert.deepEqual(Object.keys(options).sort(), ['barge_in', 'language', 'tools']);
  const chosen = updateOf({ voice: 'anna', language: 'en', eagerness: 'patient', bargeIn: false });
  assert.deepEqual(chosen, {
    type: 'update',
    voice: 'anna',
    turn: { eagerness: 'patient' },
    barge_in: { enabled: false },
  });
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
