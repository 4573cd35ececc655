"""The tiny models of the tiny profile: their domain, their data and their training."""

import parley  # noqa: F401 - turns ONNX Runtime's telemetry off before NeMo imports it
