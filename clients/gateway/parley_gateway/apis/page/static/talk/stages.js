// @ts-check
/** The stages of an answer, as `parley trace` has them. Written by build/page_stages.py. */

/** @typedef {{title: string, meaning: string}} Stage */

export const STAGES = /** @type {Readonly<Record<string, Stage>>} */ ({
  silence: {
    title: 'Silence noticed',
    meaning: 'from the end of speech until the silence after it was noticed',
  },
  asr_final: {
    title: 'Final transcript',
    meaning: 'from that notice until the final transcript',
  },
  end_of_turn: {
    title: 'Endpointing',
    meaning: 'from the final transcript until the decision that the turn is over',
  },
  llm_first_token: {
    title: 'First token',
    meaning: 'from that decision until the first token of the language model',
  },
  first_audio: {
    title: 'First audio',
    meaning: 'from the same decision until the first audio was sent',
  },
  llm_total: {
    title: 'Language model',
    meaning: 'its requests for the answer, until their last tokens',
  },
  tool: {
    title: 'Tools',
    meaning: 'waiting for tools',
  },
  tts_first_audio: {
    title: 'Voice',
    meaning: 'from the first segment of text until its first audio',
  },
  delivery: {
    title: 'Network and sound',
    meaning: 'from the first audio sent until it is heard: measured in the page only',
  },
});
