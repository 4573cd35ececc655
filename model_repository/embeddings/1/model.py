"""Sentence encoder: a text in, its vector out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.embeddings:load_model")
