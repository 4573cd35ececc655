"""Hibari: segments of English text in, a stream of PCM with word marks out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.hibari:HibariModel")
