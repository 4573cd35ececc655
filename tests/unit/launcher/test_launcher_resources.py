"""Ports, shared memory, the lock, the backend folder and the model repository."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from parley.canaries.models import called_models
from parley.launcher import cleanup
from parley.launcher import command as installations
from parley.launcher.command import assemble_backend
from parley.launcher.errors import (
    AlreadyRunningError,
    LauncherSettingsError,
    PortBusyError,
    SetupIncompleteError,
    SharedMemoryTooSmallError,
)
from parley.launcher.models import (
    check_models,
    count_instances,
    describe_language_model,
    describe_left_out,
    leave_out_absent,
    model_folders,
    model_names,
    read_config,
)
from parley.launcher.options import GPU_PROFILE, ROOT, TINY_PROFILE, ServerOptions, choose_ports
from parley.launcher.processes import StateLock, session_members
from parley.launcher.replacement import bound_by_room
from parley.launcher.restarts import SupervisorLimits
from parley.runtime.repository import read_parameters

DYING_LAUNCHER = """
import pathlib, subprocess, sys
from parley.launcher.processes import StateLock
lock = StateLock(pathlib.Path(sys.argv[1]))
silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
server = subprocess.Popen(["sleep", "600"], pass_fds=(lock.acquire(),), start_new_session=True, **silent)
lock.record(server.pid, "ready", "", "", "")
print(server.pid)
"""


def test_free_ports_differ():
    options = choose_ports(ServerOptions(grpc_port=0, http_port=0, metrics_port=0))
    ports = {options.grpc_port, options.http_port, options.metrics_port}
    assert len(ports) == 3
    assert 0 not in ports


def test_a_busy_port_is_named_with_its_holder_and_the_flag():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"metrics port 127\.0\.0\.1:{port} .*process {os.getpid()} .*--metrics-port N"
        with pytest.raises(PortBusyError, match=message):
            choose_ports(ServerOptions(grpc_port=0, http_port=0, metrics_port=port))


def test_the_same_port_twice_is_busy():
    free = choose_ports(ServerOptions(grpc_port=0, http_port=0, metrics_port=0)).grpc_port
    with pytest.raises(PortBusyError, match="http port"):
        choose_ports(ServerOptions(grpc_port=free, http_port=free, metrics_port=0))


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_what_dead_launchers_without_processes_left_is_removed(tmp_path):
    namespace = re.fullmatch(r"parley-(\d+)-\d+-\d+-", cleanup.new_prefix())[1]
    memory, temporary = tmp_path / "memory", tmp_path / "temporary"
    memory.mkdir()
    dead = f"parley-{namespace}-{dead_pid()}"
    names = [
        f"{dead}-1-",
        f"{dead}-2-",  # a process of the server lives
        f"parley-{namespace}-{os.getpid()}-1-",  # its launcher lives
        f"parley-1-{dead_pid()}-1-",  # of another process namespace
        "parley-",  # not named by this launcher
    ]
    for name in names:
        (memory / f"{name}uuid").touch()
        (temporary / f"{name}tmp").mkdir(parents=True)
        (temporary / f"{name}tmp" / "file").touch()
    (memory / "triton_python_backend_shm_region_1").touch()
    holder = subprocess.Popen(["/bin/sleep", "60"], env={"TMPDIR": str(temporary / f"{dead}-2-tmp")})
    try:
        removed = cleanup.remove_stale(memory, temporary)
    finally:
        holder.kill()
        holder.wait()
    assert removed == [memory / f"{dead}-1-uuid", temporary / f"{dead}-1-tmp"]
    assert [path for path in removed if path.exists()] == []
    assert len(list(memory.iterdir())) == len(names)
    assert len(list(temporary.iterdir())) == len(names) - 1


def test_a_server_removes_its_own_regions_only(tmp_path):
    mine, other = cleanup.new_prefix(), cleanup.new_prefix()
    (tmp_path / f"{mine}uuid").touch()
    (tmp_path / f"{other}uuid").touch()
    cleanup.remove_left(mine, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{other}uuid"]


def test_regions_of_a_server_are_for_its_user_only(tmp_path):
    mine, other = (tmp_path / f"{cleanup.new_prefix()}uuid" for _ in range(2))
    for path in (mine, other):
        path.touch(mode=0o644)
    assert cleanup.protect_regions(mine.name.removesuffix("uuid"), tmp_path) == 1
    assert (mine.stat().st_mode & 0o777, other.stat().st_mode & 0o777) == (0o600, 0o644)


def test_protection_of_regions_follows_no_link(tmp_path):
    prefix = cleanup.new_prefix()
    target = tmp_path / "target"
    target.touch(mode=0o644)
    (tmp_path / f"{prefix}link").symlink_to(target)
    assert cleanup.protect_regions(prefix, tmp_path) == 0
    assert target.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("pids", "free", "dead"),
    [
        ({}, {}, 100),
        ({}, {"threads": 800}, 10),
        ({}, {"bytes": 64 << 20}, 8),
        ({"pids.max": "8192", "pids.current": "1192"}, {}, 87),
        ({"pids.max": "max", "pids.current": "1192"}, {}, 100),
        ({"pids.max": "900", "pids.current": "890"}, {}, 1),
    ],
)
def test_dead_instances_may_take_half_of_what_is_free(tmp_path, monkeypatch, pids, free, dead):
    monkeypatch.setattr("resource.getrlimit", lambda _: (free.get("threads", -1), -1))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free.get("bytes", 1 << 40)))
    for name, text in pids.items():
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text("0::/\n")
    found = bound_by_room(SupervisorLimits(), 1 << 20, groups=tmp_path, own=tmp_path / "own")
    assert found == SupervisorLimits(dead_instances=dead)


def test_the_need_for_shared_memory_follows_the_profiles_instances(repository):
    tiny = ServerOptions(model_repository=repository, profile="tiny", shm_region_bytes=1 << 20)
    gpu = ServerOptions(model_repository=repository, profile="gpu", shm_region_bytes=1 << 20)
    control = 2 * (4 << 20)
    assert cleanup.needed_bytes(tiny) == 2 * (4 << 20) + control
    assert cleanup.needed_bytes(gpu) == (4 << 20) + control


def test_too_little_shared_memory_is_refused_with_numbers(repository):
    options = ServerOptions(model_repository=repository, shm_region_bytes=1 << 50)
    with pytest.raises(SharedMemoryTooSmallError, match=r"MiB free, but .* needs 4294967308 MiB.*--shm-size"):
        cleanup.check_capacity(options)


def test_a_configuration_that_cannot_be_read_counts_as_one_process(tmp_path):
    (tmp_path / "config.pbtxt").write_text("garbage {")
    assert count_instances(tmp_path, "tiny") == 1


def add_choir(repository, **parameters):
    """Add an optional model with these parameters."""
    folder = repository / "choir" / "configs"
    folder.mkdir(parents=True)
    lines = (
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in {"optional": "true", **parameters}.items()
    )
    (folder / f"{TINY_PROFILE}.pbtxt").write_text('name: "choir"\n' + "".join(lines))


def test_an_optional_model_is_loaded_if_its_weights_are_there_or_it_is_named(repository, tmp_path):
    add_choir(repository, weights="voices")
    options = ServerOptions(model_repository=repository)
    smaller, reasons = leave_out_absent(options, {})
    assert smaller.load_models == ("echo",)
    assert "voices does not exist" in reasons["choir"]
    named = ServerOptions(model_repository=repository, load_models=("choir",))
    assert leave_out_absent(named, {}) == (named, {})
    elsewhere = {"PARLEY_WEIGHTS_CHOIR": str(tmp_path)}
    assert leave_out_absent(options, elsewhere) == (options, {})
    (tmp_path / "models" / "voices").mkdir(parents=True)
    assert leave_out_absent(options, {}) == (options, {})


def test_local_language_model_is_left_out_where_the_agent_asks_a_remote_one(repository, tmp_path):
    add_choir(repository, weights="voices")
    for model in ("voice_agent", "qwen3"):
        folder = repository / model / "configs"
        folder.mkdir(parents=True)
        (folder / f"{TINY_PROFILE}.pbtxt").write_text(f'name: "{model}"\n')
    options = ServerOptions(model_repository=repository)
    remote = {"PARLEY_VOICE_AGENT_LLM": "openai_chat"}
    smaller, reasons = leave_out_absent(options, remote)
    assert smaller.load_models == ("echo", "voice_agent")
    assert describe_left_out(reasons, {}) == [
        "left out, the agent's language model is elsewhere: qwen3",
        "left out, weights are absent: choir",
    ]
    assert "qwen3" in leave_out_absent(options, {})[0].load_models
    second = {"PARLEY_VOICE_AGENT_LLM": "openai_chat,qwen3"}
    assert "qwen3" in leave_out_absent(options, second)[0].load_models
    agents = repository.parent / "agents"
    agents.mkdir()
    for line, is_loaded in (('fallback = [{ name = "qwen3" }]', True), ('name = "qwen3"', True), ("", False)):
        (agents / "one.toml").write_text(f'instructions = "x"\n[model]\n{line}')
        assert ("qwen3" in leave_out_absent(options, remote)[0].load_models) is is_loaded
    named = ServerOptions(model_repository=repository, load_models=("voice_agent", "qwen3"))
    assert leave_out_absent(named, remote) == (named, {})


def test_language_model_that_is_a_demonstration_is_named_at_the_start():
    options = ServerOptions(model_repository=ROOT / "model_repository", profile="open")
    (line,) = describe_language_model(options, {})
    assert line.startswith("the language model qwen2.5-coder-0.5b-w8a8 is a demonstration: often wrong")
    assert not describe_language_model(options, {"PARLEY_WEIGHTS_QWEN3": "qwen2.5-coder-1.5b-w8a8"})
    remote = replace(options, load_models=("voice_agent", "piper"))
    assert not describe_language_model(remote, {})


def test_an_optional_model_needs_all_the_weights_that_it_names(repository, tmp_path):
    add_choir(repository, weights="voices", dictionary="words", letters="sounds")
    for name in ("voices", "words"):
        (tmp_path / "models" / name).mkdir(parents=True)
    for name in ("us_gold.json", "us_silver.json"):
        (tmp_path / "models/words" / name).touch()
    options = ServerOptions(model_repository=repository)
    smaller, reasons = leave_out_absent(options, {})
    assert smaller.load_models == ("echo",)
    assert "sounds does not exist" in reasons["choir"]
    assert "PARLEY_CHOIR_LETTERS" in reasons["choir"]
    (tmp_path / "checkpoint20.npz").touch()
    assert leave_out_absent(options, {"PARLEY_CHOIR_LETTERS": str(tmp_path)}) == (options, {})
    (tmp_path / "models" / "sounds").mkdir()
    _, reasons = leave_out_absent(options, {})
    assert "sounds is without checkpoint20.npz" in reasons["choir"]
    (tmp_path / "models/sounds/checkpoint20.npz").touch()
    assert leave_out_absent(options, {}) == (options, {})


@pytest.mark.parametrize("absent", ["misaki-en", "g2p-en"])
def test_voices_without_what_they_pronounce_words_with_are_left_out(tmp_path, absent):
    known = tomllib.loads((ROOT / "build/checkpoints.toml").read_text())["weights"]
    voices = {"piper-joe", "hibari-heart", "kokoro-82m"}
    there = {"whisper-base", *voices, "misaki-en", "g2p-en", "all-minilm-l6-v2", "campplus-zh-en"} - {absent}
    for name in there:
        for file in known[name]["files"]:
            (tmp_path / name / file["name"]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file["name"]).touch()
    (tmp_path / "parakeet-ctc-110m").mkdir()
    for name in ("model.onnx", "tokens.txt"):
        (tmp_path / "parakeet-ctc-110m" / name).touch()
    options = ServerOptions(model_repository=ROOT / "model_repository", profile="open")
    _, reasons = leave_out_absent(options, {"PARLEY_MODELS_DIR": str(tmp_path)})
    assert reasons.keys() == {"piper", "hibari", "kokoro"}
    assert all(f"make fetch MODEL={absent}" in reason for reason in reasons.values())
    assert describe_left_out(reasons, {}) == ["left out, weights are absent: hibari, kokoro, piper"]


def test_what_lacks_some_of_its_files_is_named_with_them(tmp_path):
    for name in ("recognizer.json", "encoder_model.onnx"):
        (tmp_path / "whisper-base").mkdir(exist_ok=True)
        (tmp_path / "whisper-base" / name).write_text('{"family": "whisper"}')
    options = ServerOptions(model_repository=ROOT / "model_repository", profile="open")
    smaller, reasons = leave_out_absent(options, {"PARLEY_MODELS_DIR": str(tmp_path)})
    assert "whisper" not in smaller.load_models
    first, *lines = describe_left_out(reasons, {})
    absent = (
        "embeddings",
        "hibari",
        "kokoro",
        "piper",
        "sherpa_onnx",
        "sherpa_onnx_transcribe",
        "speaker_embedding",
        "whisper",
        "whisper_transcribe",
    )
    assert first == f"left out, weights are absent: {', '.join(absent)}"
    assert len(lines) == 2
    for line in lines:
        assert "is without decoder_model_merged.onnx, tokenizer.json, " in line
        assert "download it with `make fetch MODEL=whisper-base`" in line


def test_a_folder_of_weights_that_was_named_and_is_not_there_is_told(tmp_path):
    environment = {"PARLEY_MODELS_DIR": str(tmp_path), "PARLEY_WEIGHTS_SHERPA_ONNX": "/nowhere/mine"}
    options = ServerOptions(model_repository=ROOT / "model_repository", profile="open")
    _, reasons = leave_out_absent(options, environment)
    _, *lines = describe_left_out(reasons, environment)
    (line,) = lines
    assert "/nowhere/mine does not exist" in line
    assert "PARLEY_WEIGHTS_SHERPA_ONNX" in line


def test_a_model_that_is_not_there_is_named(repository):
    with pytest.raises(LauncherSettingsError, match="no model nope; it has echo"):
        check_models(ServerOptions(model_repository=repository, load_models=("nope",)))
    with pytest.raises(SetupIncompleteError, match="not a model repository"):
        check_models(ServerOptions(model_repository=repository / "echo"))


def test_a_profile_that_is_not_there_is_named(repository):
    for profile in ("mine", "", "../mine"):
        with pytest.raises(LauncherSettingsError, match=rf"no profile '{profile}'; it has gpu, tiny\."):
            check_models(ServerOptions(model_repository=repository, profile=profile))
    with pytest.raises(LauncherSettingsError, match=r"no profile 'tinny' \(did you mean tiny\?\); it has"):
        check_models(ServerOptions(model_repository=repository, profile="tinny"))
    for profile in ("gpu", "tiny"):
        check_models(ServerOptions(model_repository=repository, profile=profile))


def test_a_model_of_another_profile_is_not_loaded(repository):
    (repository / "whisper" / "configs").mkdir(parents=True)
    (repository / "whisper" / "configs" / "open.pbtxt").touch()
    check_models(ServerOptions(model_repository=repository, profile="open", load_models=("whisper",)))
    with pytest.raises(LauncherSettingsError, match=r"profile tiny of .* has no model whisper; it has echo"):
        check_models(ServerOptions(model_repository=repository, load_models=("whisper",)))
    assert read_parameters(repository / "whisper", "tiny", {}) is None


@pytest.mark.parametrize("name", ["my models", "models (2)", "it's"])
def test_a_folder_that_triton_cannot_use_is_refused(repository, tmp_path, name):
    moved = repository.rename(tmp_path / name)
    with pytest.raises(SetupIncompleteError, match="Triton cannot work in"):
        check_models(ServerOptions(model_repository=moved))
    with pytest.raises(SetupIncompleteError, match="Triton cannot work in"):
        check_models(ServerOptions(model_repository=moved.rename(repository), state_dir=tmp_path / name))


def test_a_live_launchers_lock_is_respected(tmp_path):
    first, second = StateLock(tmp_path), StateLock(tmp_path)
    first.acquire()
    with pytest.raises(AlreadyRunningError, match=r"Another start .* has just begun\. Try again .*--name"):
        second.check()
    first.record(os.getpid(), "ready", "", "", "")
    with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}.*--name"):
        second.acquire()
    with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}.*--name"):
        second.check()
    first.record_stop()
    with pytest.raises(AlreadyRunningError, match=r"is stopping .*Try again in a few seconds\.$"):
        second.acquire()
    first.release()
    second.acquire()
    second.record_stop()  # nothing was started
    second.release()
    assert not (tmp_path / "server.json").exists()


def test_a_dead_launchers_server_is_ended(tmp_path):
    """The launcher was killed; the server inherited its lock and would run for ever."""
    made = subprocess.run(
        [sys.executable, "-c", DYING_LAUNCHER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    server = int(made.stdout)
    assert psutil.pid_exists(server)
    lock = StateLock(tmp_path)
    assert not lock.check()
    assert psutil.pid_exists(server)
    lock.acquire()
    lock.release()
    assert server in lock.ended
    assert lock.check()
    assert session_members(server) == []


def test_the_backend_folder_is_links_and_is_kept_up_to_date(tmp_path, installation):
    target = tmp_path / "backends"
    (target / "python" / "__pycache__").mkdir(parents=True)
    (target / "python" / "libtriton_python.so").symlink_to("/old/libtriton_python.so")
    (target / "python" / "gone.py").symlink_to("/old/gone.py")
    for _ in range(2):
        assemble_backend(installation, target)
        links = {path.name: path.readlink() for path in (target / "python").iterdir() if path.is_symlink()}
        assert links == {
            "libtriton_python.so": installation.python_backend / "libtriton_python.so",
            "triton_python_backend_stub": installation.stub,
        }


def test_a_missing_libpython_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(installations.sysconfig, "get_config_var", lambda _: str(tmp_path))
    monkeypatch.setattr(installations.sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(installations, "_loader_cache", lambda: "")
    with pytest.raises(SetupIncompleteError, match=r"apt-get install libpython3\.1\d"):
        installations.find_libpython()
    monkeypatch.setattr(installations, "_loader_cache", lambda: f"{installations.LIBPYTHON} (libc6) => /x")
    assert installations.find_libpython() is None
    (tmp_path / installations.LIBPYTHON).touch()
    assert installations.find_libpython() == tmp_path


def test_a_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(installations.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupIncompleteError, match="make setup"):
        installations.find_installation()


def test_models_on_request_are_loaded_only_where_they_are_named():
    every = ServerOptions()
    steps = ("parakeet_features", "parakeet_text", "parakeet_ensemble")
    assert set(steps) <= set(model_names(every))
    assert not set(steps) & {folder.name for folder in model_folders(every)}
    named = ServerOptions(load_models=steps)
    assert {folder.name for folder in model_folders(named)} == set(steps)


@pytest.mark.parametrize("profile", [TINY_PROFILE, GPU_PROFILE])
def test_an_ensemble_has_no_process(profile):
    name = "parakeet_ensemble"
    folder = ROOT / "model_repository" / name
    assert count_instances(folder, profile) == 0
    config = read_config(folder, profile)
    steps = {step.model_name for step in config.ensemble_scheduling.step}
    assert steps == set(called_models(name))


@pytest.mark.parametrize("profile", [TINY_PROFILE, GPU_PROFILE])
def test_the_steps_of_an_ensemble_fit_together(profile):
    """Triton checks it at the start only."""
    repository = ROOT / "model_repository"
    config = read_config(repository / "parakeet_ensemble", profile)
    known = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in config.input}
    for step in config.ensemble_scheduling.step:
        model = read_config(repository / step.model_name, profile)
        inputs = {tensor.name: tensor for tensor in model.input}
        needed = {name for name, tensor in inputs.items() if not tensor.optional}
        assert needed <= set(step.input_map) <= set(inputs)
        for key, source in step.input_map.items():
            kind, dims = known[source]
            assert kind == inputs[key].data_type
            assert len(dims) == len(inputs[key].dims)
        outputs = {tensor.name: tensor for tensor in model.output}
        for key, target in step.output_map.items():
            known[target] = outputs[key].data_type, list(outputs[key].dims)
    assert {tensor.name for tensor in config.output} <= set(known)
