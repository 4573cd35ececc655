import assert from 'node:assert/strict';
import test from 'node:test';

import {
  readAnswer,
  readFunctions,
} from '../../../clients/gateway/parley_gateway/apis/page/static/talk/functions.js';

const PARAMETERS = { type: 'object', properties: { city: { type: 'string' } } };

test('one definition, a list of them, and OpenAI’s two forms are read', () => {
  const one = { name: 'find', description: 'Find.', parameters: PARAMETERS };
  const found = [{ tool: one, answer: undefined }];
  for (const written of [
    one,
    [one],
    { type: 'function', ...one, strict: true },
    { type: 'function', function: one },
  ])
    assert.deepEqual(readFunctions(JSON.stringify(written)), found);
  assert.deepEqual(readFunctions('  '), []);
  const [{ tool, answer }] = readFunctions('{"name": "find", "answer": null}');
  assert.deepEqual(tool, { name: 'find', description: '', parameters: {} });
  assert.equal(answer, null, 'null is an answer');
});

for (const [text, words] of [
  ['[', /not JSON/],
  ['[1]', /Function 1 is not an object/],
  ['{"description": "x"}', /“name”/],
  ['{"name": "a b"}', /“name”/],
  ['{"name": "x", "description": 1}', /x: “description”/],
  ['{"name": "x", "parameters": []}', /x: “parameters”/],
  ['{"name": "x", "parameters": {"type": "string"}}', /“object”/],
  ['{"name": "x", "answers": 1}', /“answers” is unknown/],
  ['{"type": "retrieval", "name": "x"}', /only functions/],
  ['[{"name": "x"}, {"name": "x"}]', /defined twice/],
  ['{"name": "taken"}', /the server has a tool of this name/],
  [JSON.stringify(Array.from({ length: 17 }, (_, i) => ({ name: `f${i}` }))), /At most 16/],
]) {
  test(`${text.slice(0, 50)} is refused with what is wrong`, () => {
    assert.throws(() => readFunctions(text, ['taken']), words);
  });
}

test('an answer is JSON, or a text', () => {
  assert.deepEqual(readAnswer('{"celsius": 8}'), { celsius: 8 });
  assert.equal(readAnswer(' in stock '), 'in stock');
});
