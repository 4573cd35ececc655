import assert from 'node:assert/strict';
import test from 'node:test';

import { Sound } from '../../../clients/gateway/parley_gateway/doors/page/static/audio/sound.js';

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
  const told = [];
  const sound = makeSound({ onTrouble: (trouble) => told.push(trouble), onOther: () => told.push('other') });
  await sound.choose('desk', '');
  await sound.open();
  await sound.listen();
  there = ['system'];
  tracks[0].onended();
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(asked, ['desk', 'desk', 'system']);
  assert.deepEqual(told, [null, null, 'other']);
  there = [];
  tracks[1].onended();
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(told.at(-1), 'none');
  there = ['desk'];
  await sound.look();
  assert.deepEqual([asked.at(-1), told.at(-1)], ['desk', null]);
  await sound.look();
  assert.equal(asked.length, 6, 'it is not looked for any more');
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
