"""Chatterbox: text in, also while it is being written; PCM with word marks out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley_torch.models.chatterbox:ChatterboxModel")
