"""NeMo transducers to the files that the models load; see ``build/export_nemo.py``."""

import parley  # noqa: F401 - turns ONNX Runtime's telemetry off before a module here imports it
