"""The last step of ``parakeet_ensemble``: tokens in, a transcript out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.parakeet_ensemble:load_texts_model")
