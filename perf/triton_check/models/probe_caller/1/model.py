"""Calls models in process (BLS), streams included, which Parley's own models do not do."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils


def _stream(**asked):
    text = np.array([json.dumps(asked).encode()], np.object_)
    return pb_utils.InferenceRequest(
        model_name="probe_stream",
        inputs=[pb_utils.Tensor("REQUEST", text)],
        requested_output_names=["N"],
    )


def _read(responses):
    """The numbers and errors of a stream, in order; blocks."""
    found = []
    for response in responses:
        if response.has_error():
            found.append(response.error().message())
        elif tensors := response.output_tensors():
            found.append(int(tensors[0].as_numpy()[0]))
    return found


class TritonPythonModel:
    def initialize(self, args):
        self._pool = ThreadPoolExecutor(64)

    async def execute(self, requests):
        return [await self._run(request) for request in requests]

    async def _run(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "REQUEST")
        asked = json.loads(tensor.as_numpy().item())
        result = await getattr(self, asked.pop("run"))(**asked)
        text = np.array([json.dumps(result).encode()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", text)])

    async def stream(self, **asked):
        responses = await _stream(**asked).async_exec(decoupled=True)
        numbers = await asyncio.get_running_loop().run_in_executor(self._pool, _read, responses)
        return {"found": numbers, "can_cancel": hasattr(responses, "cancel")}

    async def together(self, streams, rounds, count):
        whole = list(range(count))
        for _ in range(rounds):
            found = await asyncio.gather(*(self.stream(count=count) for _ in range(streams)))
            if wrong := [one["found"] for one in found if one["found"] != whole]:
                return {"wrong": wrong[0]}
        return {"wrong": None}

    async def sequence(self, name, chunks):
        found = []
        for n in range(chunks):
            flags = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if n == 0 else 0
            if n == chunks - 1:
                flags |= pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
            call = pb_utils.InferenceRequest(
                model_name="probe_echo",
                inputs=[pb_utils.Tensor("DATA", np.full((1, 3), n, np.uint8))],
                requested_output_names=["SAME", "SEQUENCE"],
                correlation_id=name,
                flags=flags,
            )
            response = await call.async_exec()
            if response.has_error():
                found.append(response.error().message())
                continue
            tensors = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
            found.append([tensors["SEQUENCE"].item().decode(), tensors["SAME"].tolist()])
        return found

    def finalize(self):
        self._pool.shutdown()
