"""CAM++: a person's speech in, a vector of the voice out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.speaker_embedding:load_model")
