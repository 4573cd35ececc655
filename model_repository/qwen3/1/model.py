"""A chat model on vLLM: messages and tools in, a stream of typed events out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.qwen3:load_model")
