"""Returns what it gets."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "DATA").as_numpy()
            name = f"{request.correlation_id()} {request.flags()}"
            outputs = [
                pb_utils.Tensor("SAME", data),
                pb_utils.Tensor("SEQUENCE", np.array([[name.encode()]], np.object_)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
