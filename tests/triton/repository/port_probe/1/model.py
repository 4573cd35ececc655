"""Runs scenarios of ``port_scenarios.py`` on the port that models have."""

import json

import triton_python_backend_utils as pb_utils
from port_scenarios import SCENARIOS

from parley.inference import tensor_bytes, text_tensor
from parley.runtime.parameters import Parameters
from parley.triton.model_client import make_model_client
from parley.triton.request_loop import RequestLoop


class TritonPythonModel:
    def initialize(self, args):
        self._port = make_model_client(pb_utils, Parameters.from_args(args))
        self._loop = RequestLoop(pb_utils, self._run)

    async def _run(self, responder, inputs):
        asked = json.loads(tensor_bytes(inputs["REQUEST"]))
        result = await SCENARIOS[asked["scenario"]](self._port, **asked.get("arguments", {}))
        responder.send({"RESULT": text_tensor(json.dumps(result))})

    def execute(self, requests):
        self._loop.submit(requests)

    def finalize(self):
        self._loop.close(self._port.close)
