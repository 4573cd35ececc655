"""The first step of ``voice_ensemble``: recordings of speakers in, checks out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley_torch.models.voice_ensemble:load_checks_model")
