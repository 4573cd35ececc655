"""A decoupled model that counts, for tests of the ports."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils

from parley.errors import OverloadedError
from parley.inference import tensor_bytes, text_tensor
from parley.triton.request_loop import RequestLoop


class TritonPythonModel:
    def initialize(self, args):
        self._loop = RequestLoop(pb_utils, self._count)
        self._ends = {}

    async def _count(self, responder, inputs):
        asked = json.loads(tensor_bytes(inputs["REQUEST"]))
        if asked.get("op") == "end":
            end = self._ends.get(asked["stream"], "")
            responder.send({"EVENT": text_tensor(end), "AUDIO": np.zeros(0, np.int16)})
            return
        try:
            await asyncio.sleep(asked.get("first_delay_s", 0.0))
            for n in range(asked["count"]):
                if n == asked.get("fail_at"):
                    raise OverloadedError("asked to fail")
                await asyncio.sleep(asked.get("delay_s", 0.0))
                event = {"stream": asked["stream"], "n": n}
                responder.send(
                    {"EVENT": text_tensor(json.dumps(event)), "AUDIO": np.full(n % 7, n, np.int16)}
                )
        except asyncio.CancelledError:
            self._ends[asked["stream"]] = "cancelled"
            raise
        self._ends[asked["stream"]] = "complete"

    def execute(self, requests):
        self._loop.submit(requests)

    def finalize(self):
        self._loop.close()
