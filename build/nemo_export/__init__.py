"""NeMo transducers as the files that the models load."""

import parley  # noqa: F401 - turns ONNX Runtime's telemetry off before a module here imports it
