"""Chatterbox's T3: text and a voice in, speech tokens (25 per second) out.

The transformer runs on vLLM as a model of its own (:mod:`parley_torch.tts.t3.vllm_models`); the
tokenizer, the conditioning encoder and the embeddings of the prompt are plain PyTorch
(:mod:`parley_torch.tts.t3.prompt`).

Reproduced from the original implementation (chatterbox-tts 0.1.7), token for token for the same random
numbers: conditioning, learned positions, the start token fed twice at position 0 (Original and
Multilingual), guidance ``c + w (c - u)`` on the logits with an unconditional half whose text
embeddings are zero and whose text positions stay, repetition penalty over the start token and
everything generated, temperature, min_p, top_p; for Turbo temperature, top_k, top_p and then the
repetition penalty over the generated tokens (the start token before there are any). Not reproduced:
the random numbers themselves (for a seed see :mod:`parley_torch.tts.t3.sampling`), and the monitor of
attention and repetitions with which the original forces or forbids the end of Multilingual speech,
because vLLM's attention kernels do not expose their weights. Marks sampled in the middle of speech
stay in the model's context and are not sent; the original also drops everything before a second
start token.
"""
