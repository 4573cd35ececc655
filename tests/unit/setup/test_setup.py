"""scripts/setup: choosing a Python, package sources, stamps, messages."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
LOCKS = SCRIPTS.parent / "build" / "requirements"
sys.path.insert(0, str(SCRIPTS))

from provision import environments, main, system  # noqa: E402
from provision import uv as uv_module  # noqa: E402
from provision.environments import (  # noqa: E402
    EXPORT,
    IN_IMAGES,
    PHOENIX,
    SERVE,
    TALK,
    fingerprints,
    with_project,
)
from provision.system import (  # noqa: E402
    MANAGED,
    SetupError,
    candidates,
    check_system,
    choose,
    probe,
    run_quietly,
)
from provision.uv import Uv, parse_pip_config, uv_environment  # noqa: E402


@pytest.fixture
def fake_python(tmp_path):
    """Writes programs that answer the probe as an interpreter would."""

    def write(name, version, *, library=True):
        path = tmp_path / name
        has = "library" if library else ""
        path.write_text(f"#!/bin/sh\necho '{path}'; echo '{version}'; echo '{has}'\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_the_first_supported_python_with_its_library_is_taken(fake_python):
    paths = [
        fake_python("old", "3.10"),
        fake_python("new", "3.13"),
        fake_python("pypy", "another implementation"),
        fake_python("bare", "3.11", library=False),
        fake_python("good", "3.12"),
        fake_python("late", "3.11"),
    ]
    assert choose("", paths) == (paths[4], f"Python 3.12 ({paths[4]})")


def test_without_a_suitable_python_uv_provides_one_with_the_reason(fake_python):
    chosen, remark = choose("", [fake_python("bare", "3.11", library=False)])
    assert chosen == MANAGED
    assert "sudo apt-get install libpython3.11" in remark
    assert choose("", ["/nonexistent"]) == (
        MANAGED,
        f"Python {MANAGED}, downloaded: this machine has no Python 3.11 or 3.12.",
    )


def test_a_wanted_python_is_taken_or_refused_never_replaced(fake_python):
    good, bare = fake_python("good", "3.11"), fake_python("bare", "3.11", library=False)
    assert choose(good, [])[0] == good
    assert choose("managed", [good])[0] == MANAGED
    with pytest.raises(SetupError, match=r"apt-get install libpython3\.11"):
        choose(bare, [good])
    with pytest.raises(SetupError, match=r"not a working CPython 3\.11 or 3\.12"):
        choose(fake_python("old", "3.10"), [good])


def test_this_interpreter_can_be_asked():
    path, version, _ = probe(sys.executable)
    assert version == ".".join(map(str, sys.version_info[:2]))
    assert not Path(path).is_relative_to(sys.prefix), "an environment is built on its base"


def test_candidates_are_real_and_asked_once():
    found = [Path(path).resolve() for path in candidates()]
    assert found
    assert len(found) == len(set(found))


PIP_CONFIG = """\
:env:.find-links='/wheels /more'
global.cert='/etc/cert.pem'
global.extra-index-url='file:///a https://b/simple'
global.find-links='/old'
global.index-url='https://main/simple'
install.trusted-host='b'
wheel.index-url='https://never/simple'
"""


def uv_variables(config, given=(), *, only_main=False):
    found = uv_environment(config, dict(given), Path("/checkout"), only_main=only_main)
    return {name: value for name, value in found.items() if "CACHE" not in name and "INSTALL" not in name}


def test_pips_sources_become_variables_of_uv():
    config = parse_pip_config(PIP_CONFIG)
    main_index = {
        "UV_INSECURE_HOST": "b",
        "UV_DEFAULT_INDEX": "https://main/simple",
        "SSL_CERT_FILE": "/etc/cert.pem",
    }
    assert uv_variables(config, only_main=True) == main_index
    assert uv_variables(config) == main_index | {
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "file:///a https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL"])
def test_an_index_that_is_set_for_uv_replaces_all_of_pip(name):
    found = uv_variables(parse_pip_config(PIP_CONFIG), {name: "https://mine/simple"})
    assert {key: value for key, value in found.items() if "INDEX" in key} == {name: "https://mine/simple"}


@pytest.mark.parametrize("value", ["not quoted", "'half", "f(x)"])
def test_a_configuration_that_cannot_be_understood_is_shown(value):
    with pytest.raises(SetupError, match=r"cannot be understood: global\.index-url"):
        parse_pip_config(f"global.index-url={value}")


def test_a_program_that_hangs_is_given_up():
    with pytest.raises(SetupError, match="did not end within"):
        run_quietly([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)


@pytest.fixture
def uv_that(tmp_path):
    """A Uv whose program writes down its arguments and indexes, and then runs a line of shell."""

    def make(script, config="global.extra-index-url='more'"):
        uv = Uv(tmp_path)
        uv.program = str(tmp_path / "uv")
        Path(uv.program).write_text(f'#!/bin/sh\necho "$@" $UV_INDEX >> {tmp_path}/calls\n{script}\n')
        Path(uv.program).chmod(0o755)
        uv._pip_config = parse_pip_config(config)
        return uv

    return make


def test_errors_of_uv_are_shown(uv_that, capfd):
    with pytest.raises(SetupError, match="uv pip install failed with status 2; its message is above"):
        uv_that("echo 'error: no such package' >&2; exit 2").run("pip", "install", "a")
    assert "error: no such package" in capfd.readouterr().err


def test_a_uv_that_hangs_is_given_up(uv_that, monkeypatch):
    monkeypatch.setattr(uv_module, "_DOWNLOAD_S", 0.1)
    with pytest.raises(SetupError, match="did not end within"):
        uv_that("exec sleep 60").run("pip", "install", "a")


def test_uvs_environment(tmp_path):
    config = {"cert": "/etc/cert.pem", "default-timeout": "180"}
    given = {"VIRTUAL_ENV": "/x", "UV_CACHE_DIR": "/cache"}
    found = uv_environment(config, given, tmp_path, only_main=True)
    assert found["UV_CACHE_DIR"] == "/cache"
    assert found["UV_PYTHON_INSTALL_DIR"] == str(tmp_path / ".cache" / "python")
    assert found["SSL_CERT_FILE"] == "/etc/cert.pem"
    assert found["UV_HTTP_TIMEOUT"] == "180"
    assert "VIRTUAL_ENV" not in found


def test_missing_libraries_are_named_with_one_command():
    missing = {"libno.so.1": "libno1", "libneither.so.2": "libneither2"}
    with pytest.raises(SetupError, match=r"libno\.so\.1 is missing.*apt-get install libno1 libneither2$"):
        check_system({**missing, "libc.so.6": "libc6"})


def test_a_python_without_venv_is_named_in_the_same_command(monkeypatch):
    monkeypatch.setattr(system.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"cannot make .*apt-get install libno1 python3-venv$"):
        check_system({"libno.so.1": "libno1"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("machine", lambda: "aarch64", "Linux on x86-64 only"),
        ("libc_ver", lambda: ("glibc", "2.31"), "glibc 2.35 or later"),
        ("libc_ver", lambda: ("", ""), "another C library"),
    ],
)
def test_an_unsuitable_machine_is_refused(monkeypatch, name, value, message):
    monkeypatch.setattr(system.platform, name, value)
    with pytest.raises(SetupError, match=message):
        check_system({})


@pytest.fixture
def checkout(tmp_path):
    """A folder with locks, and an environment as a finished set-up leaves it."""
    locks = tmp_path / "build" / "requirements"
    locks.mkdir(parents=True)
    for name in ("serve.txt", "networks.txt", "dev.txt", "talk.txt", "export.txt", "chatterbox.txt"):
        (locks / name).write_text(name)
    (locks / "torch.txt").write_text("# why\ntorch==2.0\n")
    (locks / "torch-cuda.txt").write_text("torch==2.0 --hash\n")
    for project in (tmp_path, tmp_path / "clients" / "parley-client"):
        project.mkdir(parents=True, exist_ok=True)
        (project / "pyproject.toml").write_text("[project]")
    return tmp_path


def test_fingerprints_of_an_environment_without_torch_leave_that_lock_to_others(checkout):
    """Environments share folders: one that installs no torch must not say that the folder has it."""
    (checkout / "build/requirements/phoenix.txt").write_text("phoenix.txt")
    assert "torch.txt" in fingerprints(checkout, EXPORT)
    assert fingerprints(checkout, PHOENIX).keys().isdisjoint({"torch.txt", "torch-cuda.txt"})


def test_packages_come_from_the_main_index_first(uv_that, tmp_path):
    uv_that("true").install("-r", "lock.txt")
    assert (tmp_path / "calls").read_text().splitlines() == ["pip install -r lock.txt --quiet"]


def test_packages_that_the_main_index_lacks_come_from_the_others(uv_that, tmp_path):
    uv_that('test "$UV_INDEX" = more').install("-r", "lock.txt")
    assert (tmp_path / "calls").read_text().splitlines() == [
        "pip install -r lock.txt --quiet",
        "pip install -r lock.txt --quiet more",
    ]


def test_without_an_index_only_the_links_of_pip_count_for_the_rest(uv_that, tmp_path):
    config = "global.find-links='/wheels'\nglobal.no-index='yes'"
    uv_that('test "$6" = --no-index && test "$UV_FIND_LINKS" = /wheels', config).install("-r", "lock.txt")


@pytest.mark.parametrize(("config", "attempts"), [("", 1), ("global.find-links='/wheels'", 2)])
def test_packages_that_no_source_has(uv_that, tmp_path, config, attempts):
    with pytest.raises(SetupError, match="status 1"):
        uv_that("false", config).install("-r", "lock.txt")
    assert len((tmp_path / "calls").read_text().splitlines()) == attempts


class FakeUv:
    """Notes what is asked of uv, and fails at commands that contain one of these texts."""

    fails_at = ()

    def __init__(self, root):
        self.root = root
        self.commands = []
        FakeUv.last = self

    def prepare(self):
        self.commands.append("prepare")

    def run(self, *arguments, **options):
        command = " ".join(str(argument) for argument in arguments)
        self.commands.append(command)
        if arguments[0] == "venv":
            python = Path(arguments[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.symlink_to(sys.executable)
        if any(text in command for text in self.fails_at):
            raise SetupError("uv failed")

    def install(self, *arguments):
        self.run("pip", "install", *arguments)


@pytest.fixture
def uv(monkeypatch):
    monkeypatch.setattr(environments, "Uv", FakeUv)
    monkeypatch.setattr(environments, "check_system", lambda libraries: None)
    monkeypatch.setattr(FakeUv, "fails_at", ())
    monkeypatch.setenv("PARLEY_PYTHON", "managed")
    return FakeUv


HARMLESS = SERVE._replace(check="pass")


def test_a_finished_environment_is_ready_until_a_lock_changes(checkout, uv):
    assert not environments.is_ready(checkout, HARMLESS)
    environments.make(checkout, HARMLESS)
    assert environments.is_ready(checkout, HARMLESS)
    (checkout / "build/requirements/dev.txt").write_text("changed")
    assert not environments.is_ready(checkout, HARMLESS)


def test_an_environment_whose_python_is_gone_is_made_anew(checkout, uv):
    environments.make(checkout, HARMLESS)
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/gone/python3.11")
    assert not environments.is_ready(checkout, HARMLESS)
    environments.make(checkout, HARMLESS)
    assert uv.last.commands[1] == f"venv --quiet --managed-python --python {MANAGED} {checkout / '.venv'}"


def test_conflicting_packages_get_a_folder_of_their_own(checkout, uv):
    environment = EXPORT._replace(check="pass")
    environments.make(checkout, environment)
    (apart,) = [command for command in uv.last.commands if "chatterbox.txt" in command]
    assert f"--target {checkout / '.venv-export' / 'apart'} " in apart
    assert "/export.txt" not in apart
    (checkout / "build/requirements/chatterbox.txt").write_text("changed")
    assert not environments.is_ready(checkout, environment)


def test_further_projects_of_the_checkout_are_installed_too(checkout, uv):
    environment = HARMLESS._replace(plugins=("clients/one",))
    project = checkout / "clients" / "one"
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text("[project]")
    environments.make(checkout, environment)
    (editable,) = [command for command in uv.last.commands if "--editable" in command]
    client = checkout / "clients" / "parley-client"
    assert editable.endswith(f"--editable {checkout} --editable {client} --editable {project}")
    assert environments.is_ready(checkout, environment)
    (project / "pyproject.toml").write_text("changed")
    assert not environments.is_ready(checkout, environment)


@pytest.mark.parametrize("step", ["serve.txt", "--editable"])
def test_a_failed_step_leaves_no_stamp(checkout, uv, monkeypatch, step):
    environments.make(checkout, HARMLESS)
    monkeypatch.setattr(uv, "fails_at", (step,))
    with pytest.raises(SetupError):
        environments.make(checkout, HARMLESS)
    assert not environments.is_ready(checkout, HARMLESS)


def test_an_environment_that_does_not_work_is_not_ready(checkout, uv):
    broken = SERVE._replace(check="raise ImportError('no libnuma')")
    with pytest.raises(SetupError, match="no libnuma"):
        environments.make(checkout, broken)
    assert not environments.is_ready(checkout, broken)


OWN, PYTORCH = "--quiet --quiet torch==2.0+cpu", "--torch-backend cpu torch==2.0+cpu"


def test_torch_comes_from_the_machines_own_sources_first(checkout, uv):
    environments.make(checkout, HARMLESS)
    (command,) = [command for command in uv.last.commands if "torch==2.0" in command]
    assert command.endswith(OWN)


def test_torch_that_the_machine_has_not_comes_from_pytorchs_index(checkout, uv, monkeypatch):
    monkeypatch.setattr(uv, "fails_at", (OWN,))
    environments.make(checkout, HARMLESS)
    assert [command for command in uv.last.commands if command.endswith(PYTORCH)]
    assert not [command for command in uv.last.commands if "torch-cuda.txt" in command]


@pytest.fixture
def far_from_pytorch(uv, monkeypatch):
    """PyTorch's own index cannot be reached, and the machine has no wheel of its own."""
    monkeypatch.setattr(uv, "fails_at", (OWN, PYTORCH))
    return uv


def test_without_pytorchs_index_torch_comes_from_the_package_index(
    checkout, far_from_pytorch, monkeypatch, capsys
):
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda _: SimpleNamespace(free=4_100_000_000))
    environments.make(checkout, HARMLESS)
    assert far_from_pytorch.last.commands[-2].endswith(
        f"--no-deps -r {checkout}/build/requirements/torch-cuda.txt"
    )
    assert "2.5 GB to download, 4.0 GB on the disk" in capsys.readouterr().err
    assert environments.is_ready(checkout, HARMLESS)


@pytest.mark.parametrize("is_there", [True, False])
def test_torch_that_the_disk_cannot_hold_is_not_downloaded(checkout, far_from_pytorch, monkeypatch, is_there):
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda _: SimpleNamespace(free=3_900_000_000))
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    if is_there:
        (checkout / ".venv/lib/python3.11/site-packages/torch").mkdir(parents=True)
    with (
        nullcontext() if is_there else pytest.raises(SetupError, match=r"needs 4\.0 GB .*; 3\.9 GB are free")
    ):
        environments.make(checkout, HARMLESS)
    commands = far_from_pytorch.last.commands
    assert bool([command for command in commands if "torch-cuda.txt" in command]) is is_there
    assert environments.is_ready(checkout, HARMLESS) is is_there


def test_the_locks_of_torch_have_one_version():
    (pin,) = re.findall(r"^torch==\S+", (LOCKS / "torch.txt").read_text(), re.MULTILINE)
    locked = (LOCKS / "torch-cuda.txt").read_text()
    assert f"\n{pin} \\\n" in locked
    assert not re.search(r"^triton==", locked, re.MULTILINE), "vLLM does not import on a CPU beside it"


def test_the_talk_environment_is_more_than_the_serving_one(checkout, uv):
    environments.make(checkout, HARMLESS)
    assert not environments.is_ready(checkout, TALK)
    environments.make(checkout, TALK._replace(check="pass"))
    assert environments.is_ready(checkout, TALK._replace(check="pass"))
    assert environments.is_ready(checkout, HARMLESS), "it need not be made again for the tests"


def test_image_gets_packages_first_and_then_parley_without_the_installer(checkout, uv):
    for lock in ("gateway", "project"):
        (checkout / f"build/requirements/{lock}.txt").write_text(lock)
    packages = IN_IMAGES["gateway"]._replace(check="pass")
    environments.make(checkout, packages)
    assert not [command for command in uv.last.commands if "--editable" in command]
    whole = with_project(IN_IMAGES["gateway"])._replace(check="pass")
    assert not environments.is_ready(checkout, whole)
    environments.make(checkout, whole)
    assert "--editable" in uv.last.commands[-2]
    assert uv.last.commands[-1].startswith("pip uninstall")
    assert "hatchling" in uv.last.commands[-1]
    assert environments.is_ready(checkout, whole)


def test_two_setups_wait_for_each_other(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(main, "ROOT", tmp_path)
    (tmp_path / ".cache").mkdir()
    with (tmp_path / ".cache" / "setup-programs.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        script = (
            f"import sys, pathlib; sys.path.insert(0, {str(SCRIPTS)!r})\n"
            "from provision import main\n"
            f"main.ROOT = pathlib.Path({str(tmp_path)!r})\n"
            "with main._only_one('programs'): print('mine', flush=True)\n"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stderr.readline() == "waiting for another set-up of this checkout to end\n"
        assert other.poll() is None
    assert other.communicate(timeout=30)[0] == "mine\n"


def test_a_download_that_fails_names_the_packages(checkout, uv, monkeypatch):
    monkeypatch.setattr(uv, "fails_at", ("venv",))
    with pytest.raises(
        SetupError, match=r"uv failed\n.*Debian 12: sudo apt-get install python3 libpython3\.11"
    ):
        environments.make(checkout, HARMLESS)


def test_a_failure_is_one_line_and_a_status(checkout, uv, monkeypatch, capsys):
    monkeypatch.setattr(main, "ROOT", checkout)
    monkeypatch.setattr(uv, "fails_at", ("venv",))
    assert main.main([]) == 1
    assert "error: uv failed" in capsys.readouterr().err


def locked_versions(name):
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (LOCKS / name).read_text(), re.MULTILINE))


def test_locks_name_no_host_and_no_folder():
    for path in LOCKS.iterdir():
        found = re.findall(
            r"(?:https?|file)://\S+|(?<![\w.])/(?:work|home|root|opt|tmp)\S*", path.read_text()
        )
        assert found == [], path.name


@pytest.mark.parametrize(
    "lock",
    "serve networks dev talk export chatterbox kernels torch-cuda frameworks perf-analyzer "
    "gateway project packing images node serve-gpu".split(),
)
def test_every_locked_package_has_one_version_and_a_hash(lock):
    text = (LOCKS / f"{lock}.txt").read_text()
    packages = re.findall(r"^([a-z0-9.-]+)==(\S+)((?: \\\n    --hash=\S+)+)", text, re.MULTILINE)
    starts = re.findall(r"^[a-z0-9]", text, re.MULTILINE)
    assert len(packages) == len(starts) == len({name for name, _, _ in packages})


def test_separate_packages_are_not_in_the_serving_lock():
    locked = locked_versions("serve.txt")
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "triton"} & set(locked)
    assert locked["numpy"].startswith("1."), "the stub of Triton 24.10 reads arrays of numpy 2 as empty"


def test_the_development_lock_agrees_with_the_serving_lock():
    serve = locked_versions("serve.txt")
    for other in map(locked_versions, ("dev.txt", "talk.txt", "gateway.txt", "project.txt")):
        assert {name: version for name, version in other.items() if serve.get(name, version) != version} == {}


# --- continuous integration -------------------------------------------------------------------


def test_continuous_integration_takes_no_arguments():
    done = subprocess.run(
        ["bash", str(SCRIPTS.parent / ".ci" / "run"), "tests/unit"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: .ci/run takes no arguments")
    assert done.stdout == ""
