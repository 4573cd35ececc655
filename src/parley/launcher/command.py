"""The command line and the environment of ``tritonserver``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from parley.launcher.installation import Installation
from parley.launcher.models import CONTROL_REPOSITORY, model_folders
from parley.launcher.options import GPU_PROFILE, ServerOptions
from parley.launcher.ports import join_address
from parley.runtime.parameters import LOADED_MODELS_VARIABLE
from parley.telemetry import TELEMETRY_OFF
from parley.triton.model_control import CONTROL_MODEL

ADMIN_PROTOCOLS = "shared-memory,model-repository,trace,logging"
"""Protocols with which a client could read memory, replace models or change the log."""
NO_KEY = "locked:has-no-key=none"
"""The header that opens them. Triton takes it on its command line, where every user of the machine can
read it: so it is one that no client can send. A name with a colon ends at the colon in HTTP/1, and gRPC
refuses a request with such a name before it looks at anything else."""


def build_command(
    installation: Installation, options: ServerOptions, backends: Path, prefix: str
) -> list[str]:
    """The command line; the ports in ``options`` must already be chosen.

    Args:
        installation: gives the binary.
        options: what the caller chose.
        backends: the assembled backend directory.
        prefix: names of the server's shared memory regions begin with it.
    """
    lock = f"{ADMIN_PROTOCOLS}:{NO_KEY}"
    command = [
        str(installation.tritonserver),
        f"--model-repository={options.model_repository}",
        f"--model-repository={CONTROL_REPOSITORY}",
        # So that the control model may load them again.
        "--model-control-mode=explicit",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--backend-config=python,shm-default-byte-size={options.shm_region_bytes}",
        # Every configuration is complete: spare the extra process per model that would guess it.
        "--disable-auto-complete-config",
        "--strict-readiness=true",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        f"--grpc-address={_for_grpc(options.grpc_address)}",
        f"--grpc-port={options.grpc_port}",
        f"--http-address={_for_http(options.http_address)}",
        f"--http-port={options.http_port}",
        f"--metrics-address={_for_http(options.http_address)}",
        f"--metrics-port={options.metrics_port}",
        f"--grpc-restricted-protocol={lock}",
        f"--http-restricted-api={lock}",
        # Find half-open clients within seconds, and do not punish clients that ping us.
        "--grpc-keepalive-time=10000",
        "--grpc-keepalive-timeout=5000",
        "--grpc-keepalive-permit-without-calls=true",
        "--grpc-http2-min-recv-ping-interval-without-data=5000",
        "--grpc-http2-max-pings-without-data=0",
        f"--log-verbose={options.log_verbose}",
    ]
    if options.profile != GPU_PROFILE:
        command.append(f"--model-config-name={options.profile}")
    models = [folder.name for folder in model_folders(options)]
    command += [f"--load-model={name}" for name in (*models, CONTROL_MODEL)]
    return [*command, *options.extra_flags]


def _for_grpc(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _for_http(address: str) -> str:
    """As the HTTP library inside Triton wants it."""
    return f"ipv6:{address}" if ":" in address else address


def build_environment(
    installation: Installation, options: ServerOptions, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the server and so of every model process."""
    environment = dict(inherited)
    # The embedded interpreters are isolated: PYTHONHOME and PYTHONPATH would only mislead the
    # helper processes that a model may start.
    for name in ("PYTHONHOME", "PYTHONPATH"):
        environment.pop(name, None)
    libraries = [str(installation.libpython_dir)] if installation.libpython_dir else []
    libraries.append(str(installation.libraries))
    libraries += [part for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part]
    environment |= {
        "LD_LIBRARY_PATH": ":".join(libraries),
        # An isolated interpreter searches PATH for the environment that it belongs to.
        "PATH": f"{installation.python_bin}:{environment.get('PATH', os.defpath)}",
        "LC_ALL": "C.UTF-8",
        # No model looks for anything on the network at run time.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        **TELEMETRY_OFF,
        "VLLM_ENABLE_V1_MULTIPROCESSING": environment.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    }
    # Some do without another one that is left out.
    environment[LOADED_MODELS_VARIABLE] = ",".join(folder.name for folder in model_folders(options))
    # Models reach each other's streams through the server's own endpoint.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.grpc_address, options.grpc_address)  # noqa: S104
    environment["PARLEY_GRPC_URL"] = join_address(host, options.grpc_port)
    environment.setdefault("VLLM_CACHE_ROOT", str(options.cache_dir / "vllm"))
    # By default in the folder for temporary files, which goes with the server.
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(options.cache_dir / "torchinductor"))
    # On few cores the models' own thread pools only fight each other. This one is numpy's; those of
    # onnxruntime and vLLM are each model's own parameter `threads`.
    if "OMP_NUM_THREADS" not in environment:
        environment.setdefault("OPENBLAS_NUM_THREADS", str(max(1, min(4, (os.cpu_count() or 1) // 2))))
    return environment | dict(options.environment)
