// The OpenAI JavaScript SDK talks to the agent: node realtime.mjs URL RECORDINGS
// A question that needs a function, then a story that is interrupted. Prints what happened as one line of JSON.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const [url, recordings] = process.argv.slice(2);
const HEADER_BYTES = 44;
const FRAME_MS = 20;
const TIMEOUT_MS = 20_000;
const FRAME_SAMPLES = (24_000 * FRAME_MS) / 1000;

/** A recording of 16 kHz at 24 kHz, by straight lines between the samples. */
function recording(name) {
  const file = readFileSync(join(recordings, `${name}.wav`));
  const count = (file.length - HEADER_BYTES) / 2;
  const at = (index) => file.readInt16LE(HEADER_BYTES + 2 * Math.min(index, count - 1));
  const samples = new Int16Array(Math.floor((count * 3) / 2));
  for (let index = 0; index < samples.length; index++) {
    const place = (index * 2) / 3;
    const before = Math.floor(place);
    samples[index] = at(before) + (at(before + 1) - at(before)) * (place - before);
  }
  return samples;
}

const client = new OpenAI({ apiKey: "none", baseURL: `${url}/v1` });
const realtime = new OpenAIRealtimeWS({ model: "gpt-realtime" }, client);
const events = [];
const waiting = new Set();
realtime.on("event", (event) => {
  events.push(event);
  for (const check of [...waiting]) check();
});

/** The first event from number `since` on that matches. */
function wait(matches, since = 0) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      waiting.delete(check);
      reject(new Error(`it did not happen; what did: ${events.slice(since).map((one) => one.type).join(" ")}`));
    }, TIMEOUT_MS);
    const check = () => {
      const found = events.slice(since).find(matches);
      if (!found) return;
      waiting.delete(check);
      clearTimeout(timer);
      resolve(found);
    };
    waiting.add(check);
    check();
  });
}

const kind = (name) => (event) => event.type === name;
let spoken = [];

function say(name) {
  const samples = recording(name);
  for (let start = 0; start < samples.length; start += FRAME_SAMPLES) {
    const frame = new Int16Array(FRAME_SAMPLES);
    frame.set(samples.subarray(start, start + FRAME_SAMPLES));
    spoken.push(frame);
  }
}

async function listen(until) {
  let due = performance.now();
  while (!until.aborted) {
    const frame = spoken.shift() ?? new Int16Array(FRAME_SAMPLES);
    realtime.send({ type: "input_audio_buffer.append", audio: Buffer.from(frame.buffer).toString("base64") });
    due += FRAME_MS;
    await sleep(Math.max(0, due - performance.now()));
  }
}

const transcript = (response) =>
  response.output
    .flatMap((item) => (item.type === "message" ? item.content : []))
    .map((part) => part.transcript ?? "")
    .join(" ");

await wait(kind("session.created"));
realtime.send({
  type: "session.update",
  session: {
    type: "realtime",
    instructions: "You are a friendly voice assistant.",
    audio: { input: { transcription: { model: "whisper-1" }, turn_detection: { type: "semantic_vad" } } },
    tools: [
      {
        type: "function",
        name: "get_weather",
        description: "Get the weather in a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    ],
  },
});
await wait(kind("session.updated"));
const end = new AbortController();
const microphone = listen(end.signal);

say("02-weather");
const asked = (await wait(kind("response.done"))).response;
const call = asked.output.find((item) => item.type === "function_call");
let since = events.length;
realtime.send({
  type: "conversation.item.create",
  item: {
    type: "function_call_output",
    call_id: call.call_id,
    output: JSON.stringify({ temperature: 8, sky: "foggy" }),
  },
});
realtime.send({ type: "response.create" });
const answer = (await wait(kind("response.done"), since)).response;

since = events.length;
say("06-story");
await wait(kind("response.output_audio.delta"), since);
await sleep(2000);
say("07-stop");
const story = (await wait(kind("response.done"), since)).response;

end.abort();
await microphone;
realtime.close();
console.log(
  JSON.stringify({
    heard: events.find(kind("conversation.item.input_audio_transcription.completed")).transcript,
    call: { name: call.name, arguments: JSON.parse(call.arguments) },
    answer: transcript(answer),
    story: { status: story.status, reason: story.status_details?.reason },
    errors: events.filter(kind("error")),
  }),
);
