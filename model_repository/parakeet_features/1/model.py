"""The first step of ``parakeet_ensemble``: recordings in, features out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.parakeet_ensemble:load_features_model")
