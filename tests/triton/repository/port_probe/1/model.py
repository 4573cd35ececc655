"""Runs scenarios of ``port_scenarios.py`` on the port that a request names."""

import json

import triton_python_backend_utils as pb_utils
from port_scenarios import SCENARIOS

from parley.inference import tensor_bytes, text_tensor
from parley.serving.parameters import Parameters
from parley.serving.ports import make_port
from parley.serving.request_loop import RequestLoop


class TritonPythonModel:
    def initialize(self, args):
        self._parameters = Parameters.from_args(args)
        self._loop = RequestLoop(pb_utils, self._run)
        self._ports = {}

    async def _run(self, responder, inputs):
        asked = json.loads(tensor_bytes(inputs["REQUEST"]))
        kind = asked["port"]
        if kind not in self._ports:
            environment = {**self._parameters.environment, "PARLEY_BLS": kind}
            parameters = Parameters("port_probe", {"bls_max_streams": "40"}, environment=environment)
            self._ports[kind] = make_port(pb_utils, parameters)
        result = await SCENARIOS[asked["scenario"]](self._ports[kind], **asked.get("arguments", {}))
        responder.send({"RESULT": text_tensor(json.dumps(result))})

    def execute(self, requests):
        self._loop.submit(requests)

    async def _close_ports(self):
        for port in self._ports.values():
            await port.close()

    def finalize(self):
        self._loop.close(self._close_ports)
