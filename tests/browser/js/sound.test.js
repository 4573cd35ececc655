import assert from 'node:assert/strict';
import test from 'node:test';

import { Sound } from '../../../clients/gateway/parley_gateway/apis/page/static/audio/sound.js';

/** Something that is connected to something else, or not any more. */
class Node {
  constructor() {
    this.port = { postMessage() {} };
    this.connected = false;
  }

  connect() {
    this.connected = true;
  }

  disconnect() {
    this.connected = false;
  }
}

/** A browser with a microphone, whose sound starts when `resume` says so. */
function makeBrowser(resume = async () => {}) {
  const sources = [];
  globalThis.AudioWorkletNode = Node;
  globalThis.AudioContext = class {
    constructor() {
      this.state = 'suspended';
      this.audioWorklet = { addModule: async () => {} };
    }

    resume() {
      return resume();
    }

    createMediaStreamSource() {
      sources.push(new Node());
      return sources.at(-1);
    }

    async close() {
      this.state = 'closed';
    }
  };
  const track = () => ({ stop() {}, enabled: true, onended: null });
  const getUserMedia = async () => {
    const tracks = [track()];
    return { getTracks: () => tracks, getAudioTracks: () => tracks };
  };
  const navigator = { mediaDevices: { getUserMedia } };
  Object.defineProperty(globalThis, 'navigator', { value: navigator, configurable: true });
  return sources;
}

function makeSound(handlers = {}) {
  return new Sound({ onFrame() {}, onHeard() {}, onTrouble() {}, onPlayed() {}, onOther() {}, ...handlers });
}

test('the microphone is heard once, however often it is asked for', async () => {
  const sources = makeBrowser();
  const sound = makeSound();
  await sound.open();
  await sound.listen();
  await sound.listen();
  assert.deepEqual(
    sources.map((source) => source.connected),
    [false, true],
  );
  await sound.close();
  assert.equal(sources[1].connected, false);
});

test('a microphone that is unplugged gives way to another, and comes back when there is none', async () => {
  makeBrowser();
  const asked = [];
  const tracks = [];
  let there = ['desk', 'system'];
  navigator.mediaDevices.getUserMedia = async ({ audio }) => {
    const id = audio.deviceId?.exact ?? 'system';
    asked.push(id);
    if (!there.includes(id)) throw Object.assign(new Error('gone'), { name: 'NotFoundError' });
    const track = { stop() {}, enabled: true, onended: null };
    tracks.push(track);
    return { getTracks: () => [track], getAudioTracks: () => [track] };
  };
  const troubles = [];
  const sound = makeSound({ onTrouble: (trouble) => troubles.push(trouble), onOther: () => troubles.push('other') });
  await sound.choose('desk', '');
  await sound.open();
  await sound.listen();
  there = ['system'];
  tracks[0].onended();
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(asked, ['desk', 'desk', 'system']);
  assert.deepEqual(troubles, [null, null, 'other']);
  there = [];
  tracks[1].onended();
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(troubles.at(-1), 'none');
  there = ['desk'];
  await sound.look();
  assert.deepEqual([asked.at(-1), troubles.at(-1)], ['desk', null]);
  await sound.look();
  assert.equal(asked.length, 6, 'it is not looked for any more');
  await sound.close();
});

/** A browser that gives microphones when the test says so: `asked` has each request, in order. */
function makeSlowBrowser() {
  const sources = makeBrowser();
  const asked = [];
  navigator.mediaDevices.getUserMedia = ({ audio }) =>
    new Promise((resolve, reject) => {
      const track = { stopped: false, enabled: true, onended: null, stop: () => (track.stopped = true) };
      const stream = { getTracks: () => [track], getAudioTracks: () => [track] };
      asked.push({
        id: audio.deviceId?.exact ?? 'system',
        track,
        give: () => resolve(stream),
        refuse: (name) => reject(Object.assign(new Error(name), { name })),
      });
    });
  return { sources, asked };
}

/** Until all that can go on has gone on. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

for (const [title, order] of [
  ['in the order in which they were asked for', [0, 1]],
  ['in the other order', [1, 0]],
]) {
  test(`of two requests for a microphone the later one counts, answered ${title}`, async () => {
    const { sources, asked } = makeSlowBrowser();
    const sound = makeSound();
    await sound.open();
    const both = [sound.listen(), sound.listen()];
    for (const one of order) {
      asked[one].give();
      await settled();
    }
    await Promise.all(both);
    assert.deepEqual(
      asked.map(({ track }) => track.stopped),
      [true, false],
    );
    assert.equal(sources.filter((source) => source.connected).length, 1);
    await sound.close();
    assert.equal(asked[1].track.stopped, true);
  });
}

test('a request for a microphone that was replaced reports no trouble', async () => {
  const { asked } = makeSlowBrowser();
  const troubles = [];
  const sound = makeSound({ onTrouble: (trouble) => troubles.push(trouble) });
  await sound.open();
  const both = [sound.listen(), sound.listen()];
  asked[1].give();
  await settled();
  asked[0].refuse('NotReadableError');
  await Promise.all(both);
  assert.deepEqual(troubles, [null]);
  await sound.look();
  assert.equal(asked.length, 2, 'no microphone is missing');
  await sound.close();
});

test('a request that was replaced does not report that the browser still asks', async (t) => {
  const { asked } = makeSlowBrowser();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const troubles = [];
  const sound = makeSound({ onTrouble: (trouble) => troubles.push(trouble) });
  await sound.open();
  const first = sound.listen();
  const second = sound.listen();
  asked[1].give();
  await second;
  t.mock.timers.tick(700);
  assert.deepEqual(troubles, [null]);
  await sound.close();
  asked[0].give();
  await first;
});

test('a microphone that is chosen while another one is asked for is the one that is heard', async () => {
  const { asked } = makeSlowBrowser();
  const sound = makeSound();
  await sound.choose('desk', '');
  await sound.open();
  const first = sound.listen();
  const second = sound.choose('head', '');
  await settled();
  for (const one of asked) one.give();
  await Promise.all([first, second]);
  assert.deepEqual(
    asked.map(({ id, track }) => [id, track.stopped]),
    [
      ['desk', true],
      ['head', false],
    ],
  );
  await sound.close();
});

test('no microphone is asked for where one is chosen before or after a call', async () => {
  const { asked } = makeSlowBrowser();
  const sound = makeSound();
  await sound.choose('desk', '');
  await sound.open();
  await sound.choose('head', '');
  const listening = sound.listen();
  asked[0].give();
  await listening;
  await sound.close();
  await sound.choose('desk', '');
  assert.deepEqual(
    asked.map(({ id }) => id),
    ['head'],
  );
});

test('a microphone that comes when the call is over is stopped', async () => {
  const { asked } = makeSlowBrowser();
  const sound = makeSound();
  await sound.open();
  const late = sound.listen();
  await sound.close();
  await sound.open();
  const next = sound.listen();
  asked[0].give();
  asked[1].give();
  await Promise.all([late, next]);
  assert.deepEqual(
    asked.map(({ track }) => track.stopped),
    [true, false],
  );
  await sound.close();
});

test('a microphone that the sound cannot use is not left open', async () => {
  const { asked } = makeSlowBrowser();
  AudioContext.prototype.createMediaStreamSource = () => {
    throw Object.assign(new Error('another rate'), { name: 'NotSupportedError' });
  };
  const troubles = [];
  const sound = makeSound({ onTrouble: (trouble) => troubles.push(trouble) });
  await sound.open();
  const listening = sound.listen();
  asked[0].give();
  await listening;
  assert.equal(asked[0].track.stopped, true);
  assert.deepEqual(troubles, ['none']);
  await sound.close();
});

test('sound that the browser does not start is a failure after a while', async (t) => {
  makeBrowser(() => new Promise(() => {}));
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const sound = makeSound();
  const opening = sound.open();
  t.mock.timers.tick(10_000);
  await assert.rejects(opening, /does not start the sound/);
  await sound.close();
});

test('sound that cannot go on is no error', async (t) => {
  let refuse = false;
  makeBrowser(async () => {
    if (refuse) throw new Error('not now');
  });
  const sound = makeSound();
  await sound.open();
  const loose = t.mock.fn();
  process.once('unhandledRejection', loose);
  refuse = true;
  sound.wake();
  await new Promise((resolve) => setImmediate(resolve));
  process.off('unhandledRejection', loose);
  assert.equal(loose.mock.callCount(), 0);
});
