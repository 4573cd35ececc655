"""Nothing that we use tells its makers who uses it, or how."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

TELEMETRY_OFF: Mapping[str, str] = {
    # ONNX Runtime writes a device id into the home folder and sends events. It reads this while it is
    # imported; its function disable_telemetry_events comes too late for the files.
    "ORT_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""The variables with which libraries are told so."""


def turn_off_telemetry(environment: MutableMapping[str, str]) -> None:
    """Tell the libraries that are imported after this; what the operator has set stays."""
    for name, value in TELEMETRY_OFF.items():
        environment.setdefault(name, value)
