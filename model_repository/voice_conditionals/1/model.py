"""The last step of ``voice_ensemble``: a checked recording in, the conditionals of a voice out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley_torch.models.voice_ensemble:load_conditionals_model")
