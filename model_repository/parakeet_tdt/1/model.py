"""Parakeet: a stream of audio in, transcripts out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.parakeet_tdt:ParakeetModel")
