"""S3Gen, the second half of Chatterbox: speech tokens (25 per second) in, 24 kHz audio out.

Two networks: *flow* turns tokens into a mel spectrogram by integrating a learned flow, *HiFT*
turns the spectrogram into a waveform. The modules are our own, written from the published
architecture, and load upstream's checkpoints by upstream's key names. Why not depend on
``chatterbox-tts`` (MIT): its releases pin versions of torch, transformers, diffusers and gradio
that cannot be installed beside a current vLLM; importing it needs a watermarking library, a
Chinese word segmenter and torchaudio's CUDA build; its flow redraws its noise and its harmonic
source restarts its phase on each call, so that it cannot be streamed without clicks; it asks
tensors for their values between layers, so that it cannot be compiled; and it serves one
utterance at a time. ``tests/parity`` holds our modules against upstream's.

Time in this package: a *token* is 40 ms and two mel *frames*; a frame is 480 samples
of 24 kHz audio. Frames and tokens are counted from the first one of the utterance; the voice's
reference speech, the *prompt*, stands before them.
"""
