"""Chatterbox's T3: text and a voice in, speech tokens (25 per second) out.

The transformer runs on vLLM as a model of its own (:mod:`parley.tts.t3.llama`,
:mod:`parley.tts.t3.gpt2`); everything before it - the tokenizer, the conditioning encoder, the
embeddings of the prompt - is plain PyTorch (:mod:`parley.tts.t3.prompt`).

What is reproduced of the original implementation (chatterbox-tts 0.1.7), token for token for
the same draws: conditioning, learned positions, the start token fed twice at position 0
(Original and Multilingual), guidance ``c + w (c - u)`` on the logits with an unconditional half
whose text embeddings are zero and whose text positions are kept, repetition penalty over the
start token and everything generated, temperature, min_p, top_p; for Turbo temperature, top_k,
top_p and then the repetition penalty over the generated tokens (the start token before there
are any). What is not: the random numbers themselves (:mod:`parley.tts.t3.logits` says where
those of a seed come from), and the watch over attention and repetitions with which the original
forces or forbids the end of Multilingual speech, because vLLM's attention kernels do not expose
their weights. Marks that are drawn in the middle of speech stay in the model's context and are
not sent; the original drops what stands before a second start token too.
"""
