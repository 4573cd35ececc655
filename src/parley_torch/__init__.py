"""The models that need PyTorch: recognition on a GPU, Chatterbox and its voices.

``parley`` does not import this package: ``parley/runtime/extensions.toml`` names what it finds here.
"""

import parley  # noqa: F401 - turns the telemetry of libraries off before they are imported
