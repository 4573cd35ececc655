"""Smart Turn: the audio of a turn in, the probability that it is over out."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley.models.smart_turn:load_model")
