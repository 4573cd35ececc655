/* Put into the page before its own code runs. Nothing in the page knows of it. */
(() => {
  const seen = {
    messages: [],
    sent: [],
    urls: [],
    protocols: [],
    partials: [],
    highlights: [],
    blocks: [],
    rate: 0,
  };
  let context = null;
  globalThis.seen = seen;
  const now = () => (context ? context.currentTime : 0);

  globalThis.WebSocket = class extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols);
      seen.urls.push(String(url));
      seen.protocols.push(protocols);
      this.addEventListener('message', ({ data }) => {
        if (typeof data !== 'string') return;
        const message = JSON.parse(data);
        seen.messages.push({ at: now(), ...message });
        document.documentElement.dataset.seen = seen.messages.map(({ type }) => type).join(' ');
      });
    }

    send(data) {
      if (typeof data === 'string') seen.sent.push({ at: now(), ...JSON.parse(data) });
      super.send(data);
    }
  };

  // Whatever goes to the loudspeaker is recorded on its way.
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    // A context that is closed at once loads nothing any more.
    if (target instanceof AudioDestinationNode) record(this).catch(() => {});
    return connect.call(this, target, ...rest);
  };

  async function record(source) {
    if (context !== source.context) {
      context = source.context;
      seen.blocks = [];
      seen.rate = context.sampleRate;
      context.tapped = context.audioWorklet.addModule('/tap.js');
    }
    await context.tapped;
    const tap = new AudioWorkletNode(context, 'tap');
    tap.port.onmessage = ({ data }) => seen.blocks.push(data);
    connect.call(source, tap);
    connect.call(tap, context.destination); // silent; but what leads nowhere is not run
  }

  /** The recording as base64 of 16-bit samples, from context time 0 on. */
  globalThis.recording = () => {
    const end = Math.max(0, ...seen.blocks.map(({ frame, samples }) => frame + samples.length));
    const all = new Int16Array(end);
    for (const { frame, samples } of seen.blocks) {
      for (let i = 0; i < samples.length; i += 1) all[frame + i] += Math.round(32767 * samples[i]);
    }
    const bytes = new Uint8Array(all.buffer);
    let text = '';
    for (let i = 0; i < bytes.length; i += 32768)
      text += String.fromCharCode(...bytes.subarray(i, i + 32768));
    return btoa(text);
  };

  addEventListener('DOMContentLoaded', () => {
    new MutationObserver(() => {
      const partial = document.querySelector('.partial .said')?.textContent;
      if (partial && seen.partials.at(-1) !== partial) seen.partials.push(partial);
      const answer = [...document.querySelectorAll('li.agent')].at(-1);
      const heard = answer?.querySelector('.heard')?.textContent.length ?? 0;
      const coming = answer?.querySelector('.coming')?.textContent.length ?? 0;
      if (heard && coming) seen.highlights.push(heard);
    }).observe(document.getElementById('transcript'), { subtree: true, childList: true });
  });
})();
