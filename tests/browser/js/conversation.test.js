import assert from 'node:assert/strict';
import test from 'node:test';

import { Conversation } from '../../../clients/gateway/parley_gateway/apis/page/static/talk/conversation.js';

function held(...messages) {
  const removed = [];
  const conversation = new Conversation(
    () => {},
    (entry) => removed.push(entry.id),
  );
  for (const message of messages) conversation.apply(message);
  return { conversation, removed, last: () => conversation.entries.at(-1) };
}

const transcript = (utterance, text, isFinal = false) => ({
  type: 'transcript',
  utterance,
  text,
  is_final: isFinal,
});
const decision = (what) => ({ type: 'turn_decision', decision: what, text: '' });
const response = (text, id = 'r1') => ({ type: 'response', turn: 1, response_id: id, text });
const audio = (text, offset, ms, id = 'r1') => ({
  type: 'audio',
  response_id: id,
  offset_ms: offset,
  sample_rate: 1000,
  samples: ms,
  text,
});

test('partial texts replace each other, and the final one them', () => {
  const { conversation } = held(
    transcript(1, 'what'),
    transcript(1, 'what is'),
    transcript(1, 'what’s up', true),
  );
  assert.deepEqual(
    conversation.entries.map(({ text, partial }) => [text, partial]),
    [['what’s up', false]],
  );
});

test('what is said after a pause belongs to the same turn, until it is committed', () => {
  const { conversation } = held(
    transcript(1, 'set a timer for', true),
    decision('wait'),
    decision('resume'),
    transcript(2, 'ten minutes', true),
    decision('commit'),
    transcript(3, 'and'),
  );
  assert.deepEqual(
    conversation.entries.map(({ text }) => text),
    ['set a timer for ten minutes', 'and'],
  );
});

test('texts that are recognised together replace those of the utterances before', () => {
  const { conversation } = held(
    transcript(1, 'my number is five', true),
    transcript(2, 'five five', true),
    { ...transcript(3, 'one two', true), first: 2, before: 'nine five' },
  );
  assert.deepEqual(
    conversation.entries.map(({ text }) => text),
    ['my number is five nine five one two'],
  );
  conversation.apply({ ...transcript(4, 'three', true), first: 1, before: 'My number is 5 9 5 1 2' });
  assert.equal(conversation.entries[0].text, 'My number is 5 9 5 1 2 three');
});

test('an utterance of which nothing was understood leaves no line', () => {
  const { conversation, removed } = held(transcript(1, 'uh'), transcript(1, '', true));
  assert.equal(conversation.entries.length, 0);
  assert.equal(removed.length, 1);
});

test('an answer ends the user’s turn where nothing else says so', () => {
  const { conversation } = held(transcript(1, 'hi', true), response('Hello.'), transcript(2, 'you'));
  assert.deepEqual(
    conversation.entries.map(({ kind }) => kind),
    ['user', 'agent', 'user'],
  );
});

test('an "mhm" over the answer is no turn', () => {
  const { conversation } = held(
    response('Once upon a time.'),
    { type: 'paused', response_id: 'r1' },
    transcript(1, 'mhm', true),
    { type: 'resumed', response_id: 'r1', reason: 'backchannel', text: 'mhm' },
  );
  const [answer, mhm] = conversation.entries;
  assert.equal(answer.held, false);
  assert.equal(mhm.aside, true);
});

test('an "mhm" over an answer that was not paused is no turn', () => {
  const { conversation } = held(
    response('Once upon a time.'),
    transcript(1, 'mhm', true),
    { type: 'speech_ignored', reason: 'backchannel', text: 'mhm' },
  );
  assert.equal(conversation.entries[1].aside, true);
});

test('words light up as they are heard', () => {
  const { conversation, last } = held(
    response('It’s 8 degrees '),
    response('and foggy.'),
    audio('It’s 8', 0, 400),
    audio('degrees and foggy.', 400, 600),
  );
  const heard = (ms) => {
    conversation.heard('r1', ms);
    return last().words.text.slice(0, last().words.heardAt(last().heardMs));
  };
  assert.equal(heard(0), '');
  assert.equal(heard(10), 'It’s');
  assert.equal(heard(250), 'It’s 8');
  assert.equal(heard(450), 'It’s 8 degrees');
  assert.equal(heard(990), 'It’s 8 degrees and foggy.');
});

test('words that are spoken otherwise than written do not stop the others', () => {
  const { conversation, last } = held(
    response('It costs $5 in Paris.'),
    audio('It costs five dollars in Paris.', 0, 600),
  );
  conversation.heard('r1', 600);
  assert.equal(last().words.heardAt(600), last().words.text.length);
});

test('an interruption cuts the text where it was heard', () => {
  const { last } = held(response('One two three four.'), audio('One two three four.', 0, 800), {
    type: 'interrupted',
    response_id: 'r1',
    played_ms: 300,
    spoken_text: 'One two…',
    reason: 'words',
  });
  assert.equal(last().words.text.slice(0, last().cut), 'One two');
});

test('an answer without words leaves no line', () => {
  const { conversation } = held(audio('', 0, 0), { type: 'response_done', response_id: 'r1', audio_ms: 0 });
  assert.equal(conversation.entries.length, 0);
});

test('tools are shown with their result, or as no longer awaited', () => {
  const request = { type: 'tool_request', call_id: 'c1', name: 'get_time', arguments: { city: 'Tokyo' } };
  const { conversation, last } = held(request);
  assert.equal(last().state, 'running');
  conversation.toolAnswered('c1', { time: '20:54' }, false);
  assert.deepEqual([last().state, last().output], ['done', { time: '20:54' }]);
  conversation.apply({ ...request, call_id: 'c2' });
  conversation.apply({ type: 'tool_cancelled', call_id: 'c2', reason: 'interrupted' });
  conversation.toolAnswered('c2', { time: '20:54' }, false);
  assert.equal(last().state, 'cancelled');
});

test('a step is noted', () => {
  const { last } = held({ type: 'step', step: 'book', previous: 'greet' });
  assert.equal(last().text, 'Step: book');
});

test('another call has names of its own', () => {
  const { conversation } = held(response('First.'));
  conversation.begin();
  conversation.apply(response('Second.'));
  assert.deepEqual(
    conversation.entries.map(({ words }) => words.text),
    ['First.', 'Second.'],
  );
});

test('the list is bounded', () => {
  const { conversation, removed } = held();
  for (let i = 0; i < 450; i += 1) conversation.note(`note ${i}`);
  assert.equal(conversation.entries.length, 400);
  assert.equal(removed.length, 50);
});
