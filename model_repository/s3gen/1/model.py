"""Chatterbox's S3Gen: speech tokens in, PCM out, all utterances in one run of the flow."""

import triton_python_backend_utils as pb_utils

from parley.triton.backend import make

TritonPythonModel = make(pb_utils, "parley_torch.models.s3gen:S3GenModel")
