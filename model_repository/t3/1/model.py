"""Chatterbox's T3 on vLLM: text and a voice in, a stream of speech tokens out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley_torch.models.t3:load_model")
