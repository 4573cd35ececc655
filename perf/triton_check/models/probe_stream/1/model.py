"""Counts in one thread for all requests, as Parley's models do; notes requests whose caller has left."""

import asyncio
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self._left = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "REQUEST")
            asked = json.loads(tensor.as_numpy().item())
            asyncio.run_coroutine_threadsafe(self._count(request.get_response_sender(), asked), self._loop)

    async def _count(self, sender, asked):
        if asked.get("left"):
            sender.send(self._number(self._left), flags=FINAL)
            return
        for n in range(asked["count"]):
            if n == asked.get("fail_at"):
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("asked to fail")))
                break
            await asyncio.sleep(asked.get("delay_s", 0.0))
            if sender.is_cancelled():
                self._left += 1
                break
            sender.send(self._number(n))
        sender.send(flags=FINAL)

    @staticmethod
    def _number(n):
        return pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([n], np.int32))])

    def finalize(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
