"""A speaker's recording to a voice of Chatterbox, and the list of voices."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley_torch.models.voice_enrollment:EnrollmentModel")
