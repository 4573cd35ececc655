"""Makes voices of recordings, with the networks that Chatterbox analyses a speaker with.

They are code of our own rather than a dependency on chatterbox-tts and s3tokenizer, although both
are free to use (MIT and Apache-2.0): chatterbox-tts pins torch, numpy and transformers to versions
that no current vLLM works with, both import packages that a server must not have (librosa, torchaudio's
GPU build, onnx, a web interface), and the networks themselves are small and have not changed since
they were published. The modules have the names of upstream's tensors, so that its checkpoints
load as they are; ``make test-parity`` compares each with the original.
"""
