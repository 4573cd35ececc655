// @ts-check
/** Programs that talk to this gateway, with its own address in them. */

/** @typedef {{name: string, about: string, text: string}} Snippet */

/**
 * @param {URL} base the page's address
 * @param {boolean} keyed whether a key is needed
 * @param {string} [agent] name of the chosen agent; empty: the server's own
 * @returns {Snippet[]}
 */
export function snippetsFor(base, keyed, agent = '') {
  const root = base.href.replace(/\/$/, '');
  const header = keyed ? ' -H "Authorization: Bearer $PARLEY_KEY"' : '';
  const key = keyed ? 'os.environ["PARLEY_KEY"]' : '"none"';
  const socket = `${root.replace(/^http/, 'ws')}`;
  return [
    {
      name: 'curl',
      about: 'Synthesize a sentence, transcribe it, and ask the language model.',
      text: [
        `curl -sS ${root}/v1/audio/speech${header} \\`,
        `  -d '{"model": "tts-1", "voice": "alloy", "input": "Hello!"}' -o hello.mp3`,
        `curl -sS ${root}/v1/audio/transcriptions${header} -F model=whisper-1 -F file=@hello.mp3`,
        `curl -sS ${root}/v1/chat/completions${header} \\`,
        `  -d '{"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}'`,
      ].join('\n'),
    },
    {
      name: 'Python',
      about: 'A whole conversation with OpenAI’s SDK: pip install "openai[realtime]".',
      text: [
        'import asyncio',
        ...(keyed ? ['import os'] : []),
        '',
        'from openai import AsyncOpenAI',
        '',
        `client = AsyncOpenAI(base_url="${root}/v1", api_key=${key})`,
        '',
        '',
        'async def main():',
        `    async with client.realtime.connect(model="${agent || 'gpt-realtime'}") as call:`,
        '        await call.session.update(session={"type": "realtime", "output_modalities": ["text"]})',
        '        content = [{"type": "input_text", "text": "hello"}]',
        '        await call.conversation.item.create(',
        '            item={"type": "message", "role": "user", "content": content}',
        '        )',
        '        await call.response.create()',
        '        async for event in call:',
        '            if event.type == "response.output_text.delta":',
        '                print(event.delta, end="", flush=True)',
        '            if event.type == "response.done":',
        '                break',
        '',
        '',
        'asyncio.run(main())',
      ].join('\n'),
    },
    {
      name: 'JavaScript',
      about: 'A session of Parley’s own API, without a library: in Node 22, or in a page of this gateway.',
      text: [
        `const answer = await fetch("${root}/v1/sessions", {`,
        '  method: "POST",',
        ...(keyed ? ['  headers: { Authorization: `Bearer ${process.env.PARLEY_KEY}` },'] : []),
        `  body: JSON.stringify({ ${agent && `agent: "${agent}", `}output: "text" }),`,
        '});',
        'const { session_id: id, token } = await answer.json();',
        `const url = \`${socket}/v1/sessions/\${id}/stream\`;`,
        'const socket = new WebSocket(url, ["bearer", token, "parley.v1"]);',
        'socket.onopen = () => socket.send(JSON.stringify({ type: "text", text: "hello" }));',
        'socket.onmessage = ({ data }) => {',
        '  const message = JSON.parse(data);',
        '  if (message.type === "response") console.log(message.text);',
        '  if (message.type === "response_done") socket.close();',
        '};',
      ].join('\n'),
    },
  ];
}
