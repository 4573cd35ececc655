"""Flags and environment of tritonserver."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from parley.launcher import __main__ as launcher
from parley.launcher.__main__ import invitation, parser, read_options
from parley.launcher.command import (
    ADMIN_PROTOCOLS,
    CACHES,
    NO_KEY,
    assemble_backend,
    build_command,
    build_environment,
    find_installation,
)
from parley.launcher.errors import SetupIncompleteError
from parley.launcher.options import GPU_READY_TIMEOUT_S, ROOT, Endpoints, ServerOptions, join_address
from parley.runtime.gpu_loading import ENGINE_START_S, LOADING_TIMEOUT_S
from parley.triton.model_control import CONTROL_MODEL


def command(installation, **options):
    return build_command(installation, ServerOptions(**options), Path("/state/backends"), "parley-1-2-3-")


def test_the_profile_and_the_addresses_are_passed(installation):
    flags = command(installation, profile="open", grpc_port=5, metrics_address="::1")
    assert "--model-config-name=open" in flags
    assert "--grpc-port=5" in flags
    assert "--grpc-address=127.0.0.1" in flags, "closed to other machines unless asked for"
    assert "--metrics-address=ipv6:::1" in flags
    assert "--http-address=127.0.0.1" in flags
    assert "--backend-config=python,shm-region-prefix-name=parley-1-2-3-" in flags


def test_the_gpu_profile_is_the_main_configuration(installation):
    assert not [flag for flag in command(installation, profile="gpu") if "config-name" in flag]


def test_the_models_are_named_with_the_one_that_loads_them_again(installation):
    flags = command(installation, load_models=("espeak", "qwen3"))
    assert "--model-control-mode=explicit" in flags
    assert [flag.partition("load-model=")[2] for flag in flags if "load-model" in flag] == [
        "espeak",
        "qwen3",
        CONTROL_MODEL,
    ]
    repositories = [flag.partition("=")[2] for flag in flags if flag.startswith("--model-repository=")]
    assert [(Path(each) / CONTROL_MODEL / "config.pbtxt").exists() for each in repositories] == [False, True]


def test_without_a_choice_all_models_are_named(installation):
    flags = command(installation)
    assert {"--load-model=espeak", "--load-model=voice_agent"} <= set(flags)


def test_only_the_models_of_the_profile_are_named(installation, repository):
    def loaded(profile):
        flags = command(installation, model_repository=repository, profile=profile)
        return [flag.partition("load-model=")[2] for flag in flags if "load-model" in flag][:-1]

    (repository / "whisper" / "configs").mkdir(parents=True)
    (repository / "whisper" / "configs" / "open.pbtxt").touch()
    assert loaded("tiny") == ["echo"]
    assert loaded("open") == ["whisper"]
    assert loaded("gpu") == ["echo"]


def test_administration_is_locked_and_no_key_is_in_the_command_line(installation):
    locks = [flag for flag in command(installation) if "restricted" in flag]
    assert len(locks) == 2
    assert all("shared-memory,model-repository,trace,logging" in lock for lock in locks)
    assert command(installation) == command(installation), "nothing in it is drawn by chance"
    name = NO_KEY.partition("=")[0]
    assert ":" in name, "neither HTTP/1 nor HTTP/2 has such a header"
    # For servers that are started by hand.
    security = (ROOT / "docs/security.md").read_text()
    assert [lock for lock in locks if lock not in security] == []


def test_by_http_everything_but_health_is_locked(installation):
    (lock,) = [flag for flag in command(installation) if flag.startswith("--http-restricted-api=")]
    apis = lock.partition("=")[2].partition(":")[0].split(",")
    assert sorted(apis) == sorted(
        [*ADMIN_PROTOCOLS.split(","), "inference", "metadata", "model-config", "statistics"]
    )


def test_extra_flags_come_last_so_that_they_win(installation):
    assert command(installation, extra_flags=("--log-verbose=3",))[-1] == "--log-verbose=3"


def test_the_interpreters_own_library_comes_first(installation):
    found = build_environment(
        installation, ServerOptions(), {"LD_LIBRARY_PATH": "/mine::/other", "PATH": "/bin"}
    )
    assert found["LD_LIBRARY_PATH"] == f"/python/lib:{installation.libraries}:/mine:/other"
    assert found["PATH"] == f"{installation.python_bin}:/bin"


def test_python_variables_do_not_leak_into_helpers(installation):
    found = build_environment(installation, ServerOptions(), {"PYTHONPATH": "/x", "PYTHONHOME": "/y"})
    assert not {"PYTHONPATH", "PYTHONHOME"} & set(found)


def test_a_triton_of_an_image_is_run_with_its_own_backends(tmp_path):
    folder = tmp_path / "tritonserver"
    for name in ("bin/tritonserver", "backends/python/triton_python_backend_stub", "lib/libtritonserver.so"):
        with pytest.raises(SetupIncompleteError, match=r"is missing: .* has no Triton with a Python"):
            find_installation(folder)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    options = read_options(parser().parse_args(["--triton", str(folder)]))
    found = find_installation(options.triton)
    assert assemble_backend(found, tmp_path / "unused") == folder / "backends"
    assert not (tmp_path / "unused").exists()
    flags = build_command(found, options, folder / "backends", "parley-1-2-3-")
    assert flags[0] == str(folder / "bin" / "tritonserver")
    # Its interpreters are not isolated.
    assert build_environment(found, options, {"PYTHONPATH": "/x", "PYTHONHOME": "/y"})["PYTHONPATH"] == "/x"


def test_the_stub_of_the_package_is_put_into_a_backend(installation, tmp_path):
    target = tmp_path / "backends"
    assert assemble_backend(installation, target) == target
    assert {path.name for path in (target / "python").iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_stub",
    }
    moved = dataclasses.replace(installation, stub=installation.stub.rename(tmp_path / "other_stub"))
    assemble_backend(moved, target)
    assert not (target / "python" / "triton_python_backend_stub").exists()


def test_models_know_which_others_are_loaded(installation):
    def loaded(**options):
        found = build_environment(installation, ServerOptions(**options), {"PARLEY_LOADED_MODELS": "old"})
        return found["PARLEY_LOADED_MODELS"].split(",")

    assert loaded(load_models=("espeak", "qwen3")) == ["espeak", "qwen3"]
    assert {"voice_agent", "espeak"} <= set(loaded())


def test_the_file_that_drains_the_server_is_in_its_state_folder(installation, tmp_path):
    found = build_environment(installation, ServerOptions(state_dir=tmp_path), {})
    assert found["PARLEY_DRAIN_FILE"] == str(tmp_path / "drain.json")
    found = build_environment(installation, ServerOptions(), {"PARLEY_DRAIN_FILE": "/run/drain.json"})
    assert found["PARLEY_DRAIN_FILE"] == "/run/drain.json"


def test_the_callers_environment_wins_over_defaults(installation):
    inherited = {"OMP_NUM_THREADS": "7", "VLLM_CACHE_ROOT": "/cache"}
    found = build_environment(installation, ServerOptions(environment={"OMP_NUM_THREADS": "3"}), inherited)
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["VLLM_CACHE_ROOT"] == "/cache"
    assert build_environment(installation, ServerOptions(), {})["LC_ALL"] == "C.UTF-8"


def test_what_is_compiled_survives_a_restart(installation, tmp_path):
    found = build_environment(installation, ServerOptions(cache_dir=tmp_path), {"CUDA_CACHE_PATH": "/mine"})
    expected = {variable: str(tmp_path / folder) for variable, folder in CACHES.items()}
    assert {variable: found[variable] for variable in CACHES} == expected | {"CUDA_CACHE_PATH": "/mine"}


def test_the_image_for_gpus_keeps_it_in_the_same_folders():
    containerfile = (ROOT / "build/images/worker-gpu.Containerfile").read_text()
    for variable, folder in CACHES.items():
        assert f" {variable}=/var/cache/parley/{folder}" in containerfile
    assert "ln -s /var/cache/parley /opt/parley/.cache" in containerfile


def test_only_the_operator_overrules_a_models_own_threads(installation):
    found = build_environment(installation, ServerOptions(), {})
    assert "OMP_NUM_THREADS" not in found
    assert int(found["OPENBLAS_NUM_THREADS"]) >= 1
    found = build_environment(installation, ServerOptions(), {"OMP_NUM_THREADS": "8"})
    assert found["OMP_NUM_THREADS"] == "8"
    assert "OPENBLAS_NUM_THREADS" not in found


@pytest.mark.parametrize(
    ("line", "limit_s"), [("", 300), ("--profile gpu", 1_920), ("--profile gpu --ready-timeout 5", 5)]
)
def test_a_start_on_a_gpu_has_time_to_compile(line, limit_s):
    assert read_options(parser().parse_args(line.split())).ready_timeout_s == limit_s


def test_a_start_on_a_gpu_lasts_longer_than_that_of_a_second_engine():
    assert GPU_READY_TIMEOUT_S > LOADING_TIMEOUT_S + ENGINE_START_S


@pytest.mark.parametrize("port", ["--grpc-port", "--port"])
def test_the_command_line_becomes_options(port):
    line = "--any-port {} 9 --load-model a --load-model b --name x -- --log-verbose=1"
    options = read_options(parser().parse_args(line.format(port).split()))
    assert (options.grpc_port, options.http_port, options.metrics_port) == (9, 0, 0)
    assert options.load_models == ("a", "b")
    assert options.state_dir.name == "x"
    assert options.extra_flags == ("--log-verbose=1",)


def test_addresses_of_the_sixth_version(installation):
    options = ServerOptions(grpc_address="::1", http_address="::1", metrics_address="::1", grpc_port=1)
    built = build_command(installation, options, Path("/backends"), "prefix-")
    assert {"--grpc-address=[::1]", "--http-address=ipv6:::1", "--metrics-address=ipv6:::1"} <= set(built)
    assert build_environment(installation, options, {})["PARLEY_GRPC_URL"] == "[::1]:1"
    everywhere = ServerOptions(grpc_address="::", grpc_port=1)
    assert build_environment(installation, everywhere, {})["PARLEY_GRPC_URL"] == "[::1]:1"
    assert read_options(parser().parse_args(["--grpc-address", "[::1]"])).grpc_address == "::1"
    assert join_address("::1", 2) == "[::1]:2"
    assert join_address("127.0.0.1", 2) == "127.0.0.1:2"


def test_the_line_for_programs():
    assert Endpoints(grpc="a:1", http="b:2", metrics="c:3").line() == "ready grpc=a:1 http=b:2 metrics=c:3"


USUAL = Endpoints(grpc="127.0.0.1:8001", http="127.0.0.1:8000", metrics="127.0.0.1:8002")
ELSEWHERE = Endpoints(grpc="127.0.0.1:9001", http="127.0.0.1:9000", metrics="127.0.0.1:9002")


@pytest.mark.parametrize(
    ("files", "endpoints", "ways"),
    [
        ((".venv/bin/parley", "Makefile"), USUAL, "make talk, .venv/bin/parley say FILE.wav, make gateway"),
        ((".venv/bin/parley",), ELSEWHERE, "parley talk --server {0}, parley say --server {0} FILE.wav"),
        (("parley",), USUAL, "parley talk, parley say FILE.wav, parley gateway"),
    ],
    ids=["checkout", "other port", "image"],
)
def test_invitation_has_the_commands_that_reach_the_server(monkeypatch, tmp_path, files, endpoints, ways):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for file in files:
        (tmp_path / file).touch(mode=0o755)
    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = invitation(endpoints)
    for way in ways.format(endpoints.grpc).split(", "):
        assert f"{way} " in text
    assert ("--server" in text) == (endpoints is ELSEWHERE)
