"""Parakeet's encoder: features of speech in, encoded speech out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.parakeet_encoder:load_model")
