import assert from 'node:assert/strict';
import test from 'node:test';

import { Level } from '../../../clients/gateway/parley_gateway/apis/page/static/audio/devices.js';

/** A browser that gives microphones when the test says so: `asked` has each request, in order. */
function makeBrowser() {
  const asked = [];
  const contexts = [];
  const getUserMedia = () =>
    new Promise((resolve, reject) => {
      const track = { stopped: false, onended: null, stop: () => (track.stopped = true) };
      const refuse = (name) => reject(Object.assign(new Error(name), { name }));
      asked.push({ track, give: () => resolve({ getTracks: () => [track] }), refuse });
    });
  Object.defineProperty(globalThis, 'navigator', {
    value: { mediaDevices: { getUserMedia } },
    configurable: true,
  });
  globalThis.AudioContext = class {
    constructor() {
      this.open = true;
      contexts.push(this);
    }

    createAnalyser() {
      return { fftSize: 0, getFloatTimeDomainData() {} };
    }

    createMediaStreamSource() {
      return { connect() {} };
    }

    async close() {
      this.open = false;
    }
  };
  return { asked, contexts };
}

for (const order of [
  [0, 1],
  [1, 0],
]) {
  test(`there is one level meter, that of the later microphone: answers ${order}`, async (t) => {
    const { asked, contexts } = makeBrowser();
    const level = new Level(() => {});
    t.after(() => level.close());
    const both = [level.open('desk'), level.open('head')];
    for (const one of order) asked[one].give();
    await Promise.all(both);
    assert.deepEqual(
      asked.map(({ track }) => track.stopped),
      [true, false],
    );
    assert.equal(contexts.filter(({ open }) => open).length, 1);
    level.close();
    assert.equal(asked[1].track.stopped, true);
    assert.equal(contexts.filter(({ open }) => open).length, 0);
  });
}

test('a microphone that was replaced and then fails is no failure; the last one is', async (t) => {
  const { asked } = makeBrowser();
  const level = new Level(() => {});
  t.after(() => level.close());
  const first = level.open('desk');
  const second = level.open('head');
  asked[1].give();
  await second;
  asked[0].refuse('NotReadableError');
  await first;
  assert.equal(asked[1].track.stopped, false);
  const last = level.open('desk');
  asked[2].refuse('NotReadableError');
  await assert.rejects(last, { name: 'NotReadableError' });
});
