"""The installed Triton, and the command line and environment of ``tritonserver``.

It is the Triton of the wheel ``nvidia-pytriton``, or one in a folder, as in NVIDIA's images. The wheel
carries the real ``tritonserver``, its Python backend and one stub per Python version. The stub loads
``libpython3.X.so.1.0``, and it must be the very library of the interpreter whose packages the models
import: another patch release breaks extension modules such as ``_ssl``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parley import TELEMETRY_OFF
from parley.launcher.errors import SetupIncompleteError
from parley.launcher.models import CONTROL_REPOSITORY, model_folders
from parley.launcher.options import GPU_PROFILE, ServerOptions, join_address
from parley.launcher.processes import STUB
from parley.runtime.drain import DRAIN_FILE, DRAIN_FILE_VARIABLE
from parley.runtime.parameters import LOADED_MODELS_VARIABLE
from parley.tls import VARIABLES
from parley.triton.model_control import CONTROL_MODEL

ADMIN_PROTOCOLS = "shared-memory,model-repository,trace,logging"
"""Protocols with which a client could read memory, replace models or change the log."""
ALL_BUT_HEALTH = f"{ADMIN_PROTOCOLS},inference,metadata,model-config,statistics"
"""All APIs of the HTTP port but health. Triton before 25.07 reads a body of many small chunks onto its
stack, and ends by SIGSEGV; a locked API answers before that. The port has no TLS either."""
NO_KEY = "locked:has-no-key=none"
"""The header that opens them. Triton takes it on its command line, where every user of the machine can
read it: so it is one that no client can send. A name with a colon ends at the colon in HTTP/1, and gRPC
refuses a request with such a name before it looks at anything else."""

CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
"""Folders of what is compiled at a start, by variable: the next start finds it there. By default some of them
are folders for temporary files, which go with the server."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBPYTHON = f"libpython{PYTHON}.so.1.0"


def build_command(
    installation: Installation, options: ServerOptions, backends: Path, prefix: str
) -> list[str]:
    """The command line; ports are already chosen, and ``prefix`` is that of shared memory regions."""
    tls, grpc_address = options.tls, options.grpc_address
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
        f"--grpc-address={f'[{grpc_address}]' if ':' in grpc_address else grpc_address}",
        f"--grpc-port={options.grpc_port}",
        f"--http-address={_for_http(options.http_address)}",
        f"--http-port={options.http_port}",
        f"--metrics-address={_for_http(options.metrics_address)}",
        f"--metrics-port={options.metrics_port}",
        f"--grpc-restricted-protocol={ADMIN_PROTOCOLS}:{NO_KEY}",
        f"--http-restricted-api={ALL_BUT_HEALTH}:{NO_KEY}",
        # Find half-open clients within seconds, and do not punish clients that ping us.
        "--grpc-keepalive-time=10000",
        "--grpc-keepalive-timeout=5000",
        "--grpc-keepalive-permit-without-calls=true",
        "--grpc-http2-min-recv-ping-interval-without-data=5000",
        "--grpc-http2-max-pings-without-data=0",
    ]
    command += tls.flags() if tls else []
    if options.profile != GPU_PROFILE:
        command.append(f"--model-config-name={options.profile}")
    models = [folder.name for folder in model_folders(options)]
    command += [f"--load-model={name}" for name in (*models, CONTROL_MODEL)]
    return [*command, *options.extra_flags]


def _for_http(address: str) -> str:
    """In the form that the HTTP library inside Triton expects."""
    return f"ipv6:{address}" if ":" in address else address


def build_environment(
    installation: Installation, options: ServerOptions, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the server and so of every model process."""
    environment = dict(inherited)
    environment.pop("PYTHONHOME", None)
    if installation.is_isolated:
        # It would only mislead the helper processes that a model may start.
        environment.pop("PYTHONPATH", None)
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
    # Some models work without one that is left out.
    environment[LOADED_MODELS_VARIABLE] = ",".join(folder.name for folder in model_folders(options))
    # Models reach each other's streams through the server's own endpoint.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.grpc_address, options.grpc_address)  # noqa: S104
    environment["PARLEY_GRPC_URL"] = join_address(host, options.grpc_port)
    for variable in VARIABLES:  # those of a client, if there are any
        environment.pop(variable, None)
    if options.tls is not None:
        environment |= options.tls.own_options().environment()
    for variable, name in CACHES.items():
        environment.setdefault(variable, str(options.cache_dir / name))
    environment.setdefault(DRAIN_FILE_VARIABLE, str(options.state_dir.resolve() / DRAIN_FILE))
    # On few cores the models' own thread pools only fight each other. This one is numpy's; those of
    # onnxruntime and vLLM are each model's own parameter `threads`.
    if "OMP_NUM_THREADS" not in environment:
        environment.setdefault("OPENBLAS_NUM_THREADS", str(max(1, min(4, (os.cpu_count() or 1) // 2))))
    return environment | dict(options.environment)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Files and folders of the Triton that is run."""

    tritonserver: Path
    python_backend: Path
    """Folder with ``libtriton_python.so`` and ``triton_python_backend_utils.py``."""
    stub: Path
    libraries: Path
    libpython_dir: Path | None
    """Folder of the interpreter's shared library; None: the system's loader finds it."""
    python_bin: Path
    """Folder of the environment's ``python``; the stub finds the environment through PATH."""
    is_isolated: bool = True
    """Whether the models' interpreters ignore ``PYTHONPATH``."""


def find_installation(folder: Path | None = None) -> Installation:
    """Find Triton.

    Args:
        folder: with ``bin``, ``lib`` and ``backends``, such as ``/opt/tritonserver`` of NVIDIA's images. Its
            Python backend has to be built for this Python. None: the embedded Triton of this environment.

    Raises:
        SetupIncompleteError: it, its stub for this Python, or libpython is missing.
    """
    if folder is None:
        package = _find_package()
        triton = package / "tritonserver"
        backend = triton / "backends/python"
        stub = triton / "python_backend_stubs" / PYTHON / STUB
        program, libraries = triton / "bin", package.parent / "nvidia_pytriton.libs"
        problem = f"nvidia-pytriton is damaged or has no stub for Python {PYTHON}. Run: make clean setup"
    else:
        backend = folder / "backends/python"
        stub = backend / STUB
        program, libraries = folder / "bin", folder / "lib"
        problem = f"{folder} has no Triton with a Python backend. Name another folder with --triton."
    found = Installation(
        tritonserver=program / "tritonserver",
        python_backend=backend,
        stub=stub,
        libraries=libraries,
        libpython_dir=find_libpython(),
        python_bin=Path(sys.prefix) / "bin",
        is_isolated=folder is None,
    )
    for path in (found.tritonserver, found.python_backend, found.stub, found.libraries):
        if not path.exists():
            raise SetupIncompleteError(f"{path} is missing: {problem}")
    return found


def _find_package() -> Path:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise SetupIncompleteError(
            f"The embedded Triton (package nvidia-pytriton) is not installed in {sys.prefix}. Run: make setup"
        )
    return Path(spec.origin).parent


def find_libpython() -> Path | None:
    """The folder of the interpreter's shared library, or None if the loader's cache has it.

    Raises:
        SetupIncompleteError: there is none on this machine.
    """
    candidates = [Path(str(sysconfig.get_config_var("LIBDIR") or "")), Path(sys.base_prefix) / "lib"]
    for folder in candidates:
        if (folder / LIBPYTHON).is_file():
            return folder
    if LIBPYTHON in _loader_cache():
        return None
    raise SetupIncompleteError(
        f"{LIBPYTHON} was not found; the models' processes load it. On Debian and Ubuntu: "
        f"sudo apt-get install libpython{PYTHON}. "
        "Or let the set-up fetch a Python that carries its own: PARLEY_PYTHON=managed make clean setup"
    )


def _loader_cache() -> str:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig is None:
        return ""
    return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False, timeout=10).stdout


def assemble_backend(installation: Installation, target: Path) -> Path:
    """Triton's ``--backend-directory``.

    That of the installation, where the stub lies in it; otherwise ``target``, whose folder ``python`` is
    filled with links to the backend and the stub.
    """
    if installation.stub.parent == installation.python_backend:
        return installation.python_backend.parent
    folder = target / "python"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in installation.python_backend.iterdir() if path.is_file()}
    wanted[installation.stub.name] = installation.stub
    for link in folder.iterdir():
        # The stub writes its __pycache__ next to the links.
        if link.is_symlink() and link.readlink() != wanted.get(link.name):
            link.unlink()
    for name, path in wanted.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(path)
    return target
