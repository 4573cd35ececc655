"""A sequence model that answers with what it was asked, for tests of the ports."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from parley.errors import OverloadedError
from parley.triton.responses import make_error, make_response, read_tensors

TEXT_REPLY = "REPLY"


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        inputs = read_tensors(request.inputs())
        asked = json.loads(inputs["REQUEST"].item())
        time.sleep(asked.get("delay_s", 0.0))
        if asked.get("fail"):
            return make_error(pb_utils, OverloadedError("asked to fail"))
        reply = {"n": asked.get("n"), "flags": request.flags(), "sequence": request.correlation_id()}
        return make_response(
            pb_utils,
            {TEXT_REPLY: np.array([[json.dumps(reply).encode()]], np.object_), "AUDIO_OUT": inputs["AUDIO"]},
        )
