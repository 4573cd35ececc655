// The OpenAI JavaScript SDK uses single stages: node stages.mjs URL RECORDING
// Prints what happened as one line of JSON.
import { createReadStream, readFileSync } from "node:fs";
import OpenAI, { toFile } from "openai";

const [url, recording] = process.argv.slice(2);
const client = new OpenAI({ apiKey: "none", baseURL: `${url}/v1`, maxRetries: 0, timeout: 20_000 });
const report = {};

report.models = [];
for await (const model of client.models.list()) report.models.push(model.id);

const transcriptions = client.audio.transcriptions;
const heard = await transcriptions.create({ model: "whisper-1", file: createReadStream(recording) });
report.heard = heard.text;
const detailed = await transcriptions.create({
  model: "whisper-1",
  file: createReadStream(recording),
  response_format: "verbose_json",
  timestamp_granularities: ["word"],
});
report.words = detailed.words.map((word) => word.word);
report.events = [];
const events = await transcriptions.create({
  model: "gpt-4o-transcribe",
  file: await toFile(readFileSync(recording), "a.wav"),
  stream: true,
});
for await (const event of events) report.events.push(event);

report.spoken = {};
for (const response_format of ["mp3", "opus", "aac", "flac", "wav"]) {
  const speech = await client.audio.speech.create({
    model: "tts-1",
    voice: "alloy",
    input: "thank you",
    response_format,
  });
  const file = await toFile(Buffer.from(await speech.arrayBuffer()), `a.${response_format}`);
  report.spoken[response_format] = (await transcriptions.create({ model: "whisper-1", file })).text;
}

const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather of a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
const messages = [{ role: "user", content: report.heard }];
const runner = client.chat.completions.stream({
  model: "gpt-4o",
  messages,
  tools,
  stream_options: { include_usage: true },
});
const asked = await runner.finalChatCompletion();
const message = asked.choices[0].message;
report.finish = asked.choices[0].finish_reason;
report.call = message.tool_calls[0].function;
report.counted = asked.usage.completion_tokens > 0;
const answer = await client.chat.completions.create({
  model: "gpt-4o",
  messages: [
    ...messages,
    message,
    { role: "tool", tool_call_id: message.tool_calls[0].id, content: '{"temperature": 8, "sky": "foggy"}' },
  ],
  tools,
});
report.answer = answer.choices[0].message.content;

// Leaving the loop ends the request.
const story = await client.chat.completions.create({
  model: "gpt-4o",
  messages: [{ role: "user", content: "tell me a story" }],
  stream: true,
});
for await (const chunk of story) if (chunk.choices[0].delta.content) break;

report.errors = [];
const wrong = [
  () => client.chat.completions.create({ model: "gpt-4o", messages, temperature: 9 }),
  () => client.audio.speech.create({ model: "tts-1", voice: "missing", input: "Hello." }),
  async () => transcriptions.create({ model: "whisper-1", file: await toFile(Buffer.from("x"), "a.wav") }),
  () => client.models.retrieve("gpt-4o"),
];
for (const request of wrong) {
  try {
    await request();
    report.errors.push(null);
  } catch (error) {
    report.errors.push([error.constructor.name, error.status, error.code]);
  }
}
console.log(JSON.stringify(report));
