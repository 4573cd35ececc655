"""scripts/setup: choosing a Python, package sources, stamps, messages."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
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
    IMAGE_GATEWAY,
    PEERS,
    SERVE,
    TALK,
    fingerprints,
    with_project,
)
from provision.system import (  # noqa: E402
    MANAGED,
    Library,
    Progress,
    SetupError,
    candidates,
    check_system,
    choose,
    probe,
)
from provision.uv import Uv, parse_pip_config, run_quietly, uv_environment, uv_options  # noqa: E402


@pytest.fixture
def fake_python(tmp_path):
    """Writes programs that answer the probe as an interpreter would."""

    def write(name, version, *, library=True, cpython=True):
        path = tmp_path / name
        answer = {
            "version": version,
            "cpython": cpython,
            "virtual": False,
            "base": str(path),
            "library": library,
        }
        path.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_the_first_supported_python_with_its_library_is_taken(fake_python):
    paths = [
        fake_python("old", (3, 10, 1)),
        fake_python("new", (3, 13, 0)),
        fake_python("pypy", (3, 11, 1), cpython=False),
        fake_python("bare", (3, 11, 2), library=False),
        fake_python("good", (3, 12, 1)),
        fake_python("late", (3, 11, 9)),
    ]
    assert choose("", paths) == (paths[4], f"Python 3.12.1 ({paths[4]})")


def test_without_a_suitable_python_uv_provides_one_and_the_reason_is_told(fake_python):
    chosen, remark = choose("", [fake_python("bare", (3, 11, 2), library=False)])
    assert chosen == MANAGED
    assert "sudo apt-get install libpython3.11" in remark
    assert choose("", ["/nonexistent"]) == (
        MANAGED,
        f"Python {MANAGED}, downloaded: this machine has no Python 3.11 or 3.12.",
    )


def test_a_wanted_python_is_taken_or_refused_never_replaced(fake_python):
    good, bare = fake_python("good", (3, 11, 2)), fake_python("bare", (3, 11, 2), library=False)
    assert choose(good, [])[0] == good
    assert choose("managed", [good])[0] == MANAGED
    with pytest.raises(SetupError, match=r"apt-get install libpython3\.11"):
        choose(bare, [good])
    with pytest.raises(SetupError, match=r"not a working CPython 3\.11 or 3\.12"):
        choose(fake_python("old", (3, 10, 0)), [good])


def test_this_interpreter_can_be_asked():
    found = probe(sys.executable)
    assert found.version == tuple(sys.version_info[:3])
    assert not Path(found.path).is_relative_to(sys.prefix), "an environment is built on its base"


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


def test_pips_sources_are_handed_on_to_uv():
    config = parse_pip_config(PIP_CONFIG)
    assert " ".join(uv_options(config, {})) == (
        "--find-links /wheels --find-links /more --allow-insecure-host b "
        "--index file:///a --index https://b/simple --default-index https://main/simple "
        "--index-strategy unsafe-best-match"
    )


def test_uvs_own_configuration_wins():
    options = uv_options(parse_pip_config(PIP_CONFIG), {"UV_DEFAULT_INDEX": "https://mine/simple"})
    assert not [option for option in options if "index" in option]


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, []),
        (
            {"no-index": "true", "find-links": "/w", "index-url": "x"},
            ["--find-links", "/w", "--no-index"],
        ),
    ],
)
def test_sources_without_an_index(config, options):
    assert uv_options(config, {}) == options


@pytest.mark.parametrize("value", ["not quoted", "'half", "f(x)"])
def test_a_configuration_that_cannot_be_understood_is_shown(value):
    with pytest.raises(SetupError, match=r"cannot be understood: global\.index-url"):
        parse_pip_config(f"global.index-url={value}")


def test_a_program_that_hangs_is_given_up():
    with pytest.raises(SetupError, match="did not end within"):
        run_quietly([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)


@pytest.fixture
def uv_that(tmp_path):
    """A Uv whose program writes down its arguments and then runs a line of shell."""

    def make(script):
        uv = Uv(tmp_path)
        uv.program = str(tmp_path / "uv")
        Path(uv.program).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{script}\n')
        Path(uv.program).chmod(0o755)
        uv._sources |= {"main": [], "all": ["--index", "more"]}
        return uv

    return make


def test_what_uv_complains_of_is_shown(uv_that, capsys):
    with pytest.raises(SetupError, match="uv pip install failed with status 2; its message is above"):
        uv_that("echo 'error: no such package' >&2; exit 2").run("pip", "install", "a")
    assert "error: no such package" in capsys.readouterr().err


def test_a_uv_that_hangs_is_given_up(uv_that, monkeypatch):
    monkeypatch.setattr(uv_module, "_DOWNLOAD_S", 0.1)
    with pytest.raises(SetupError, match="did not end within"):
        uv_that("exec sleep 60").run("pip", "install", "a")


def test_uvs_environment(tmp_path):
    config = {"cert": "/etc/cert.pem", "default-timeout": "180"}
    found = uv_environment(config, {"VIRTUAL_ENV": "/x", "UV_CACHE_DIR": "/cache"}, tmp_path)
    assert found["UV_CACHE_DIR"] == "/cache"
    assert found["UV_PYTHON_INSTALL_DIR"] == str(tmp_path / ".cache" / "python")
    assert found["SSL_CERT_FILE"] == "/etc/cert.pem"
    assert found["UV_HTTP_TIMEOUT"] == "180"
    assert "VIRTUAL_ENV" not in found


def test_missing_libraries_are_named_with_one_command():
    missing = [
        Library("libno.so.1", "libno1", "nothing"),
        Library("libneither.so.2", "libneither2", "nobody"),
    ]
    with pytest.raises(SetupError, match=r"libno\.so\.1 is missing .*apt-get install libno1 libneither2$"):
        check_system([*missing, Library("libc.so.6", "libc6", "all")])


def test_a_python_without_venv_is_named_in_the_same_command(monkeypatch):
    monkeypatch.setattr(system.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"cannot make .*apt-get install libno1 python3-venv$"):
        check_system([Library("libno.so.1", "libno1", "nothing")])


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
        check_system([])


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
    (checkout / "build/requirements/peers.txt").write_text("peers.txt")
    assert "torch.txt" in fingerprints(checkout, EXPORT)
    assert fingerprints(checkout, PEERS).keys().isdisjoint({"torch.txt", "torch-cuda.txt"})


def test_packages_come_from_the_main_index_first(uv_that, tmp_path):
    uv_that("true").install("-r", "lock.txt")
    assert (tmp_path / "calls").read_text().splitlines() == ["pip install -r lock.txt"]


def test_packages_that_the_main_index_lacks_come_from_the_others(uv_that, tmp_path):
    uv_that('test "$5" = --index').install("-r", "lock.txt")
    assert (tmp_path / "calls").read_text().splitlines() == [
        "pip install -r lock.txt",
        "pip install -r lock.txt --index more",
    ]


def test_packages_that_no_index_has(uv_that):
    with pytest.raises(SetupError, match="status 1"):
        uv_that("false").install("-r", "lock.txt")


def test_of_single_packages_only_large_ones_are_shown(uv_that, tmp_path, capsys):
    said = """Resolved 90 packages in 1ms
Downloading scipy (36.5MiB)
Downloading torch (186.3MiB)
 Downloaded scipy
   Building espeak
      Built espeak
 + scipy==1.16
 - numpy==1.25
 ~ parley==0.1
Installed 90 packages in 2ms
error: no disk"""
    (tmp_path / "said").write_text(said)
    uv_that(f"cat {tmp_path / 'said'} >&2").install("-r", "lock.txt")
    assert [line.strip() for line in capsys.readouterr().err.splitlines()] == [
        "Resolved 90 packages in 1ms",
        "Downloading torch (186.3MiB)",
        "Installed 90 packages in 2ms",
        "error: no disk",
    ]


class FakeUv:
    """Notes what is asked of uv, and fails where told."""

    fails_at = ""
    wheel_sizes = ()

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
        if self.fails_at and self.fails_at in command:
            raise SetupError("uv failed")

    def install(self, *arguments):
        self.run("pip", "install", *arguments)

    def sizes(self, lock, python):
        self.commands.append(f"sizes of {lock.name}")
        return list(self.wheel_sizes)

    def folders_filled(self, python):
        return [self.root]

    def try_pip(self, python, *arguments):
        self.commands.append(f"pip {arguments[-1]}")
        return self.pip_works


@pytest.fixture
def uv(monkeypatch):
    monkeypatch.setattr(environments, "Uv", FakeUv)
    monkeypatch.setattr(environments, "check_system", lambda libraries: None)
    monkeypatch.setattr(FakeUv, "fails_at", "")
    monkeypatch.setattr(FakeUv, "pip_works", True, raising=False)
    monkeypatch.setenv("PARLEY_PYTHON", "managed")
    return FakeUv


HARMLESS = SERVE._replace(check="pass")


def test_a_finished_environment_is_ready_until_a_lock_changes(checkout, uv):
    assert not environments.is_ready(checkout, HARMLESS)
    environments.make(checkout, HARMLESS, Progress(6))
    assert environments.is_ready(checkout, HARMLESS)
    (checkout / "build/requirements/dev.txt").write_text("changed")
    assert not environments.is_ready(checkout, HARMLESS)


def test_an_environment_whose_python_is_gone_is_made_anew(checkout, uv):
    environments.make(checkout, HARMLESS, Progress(6))
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/gone/python3.11")
    assert not environments.is_ready(checkout, HARMLESS)
    environments.make(checkout, HARMLESS, Progress(6))
    assert uv.last.commands[1] == f"venv --quiet --managed-python --python {MANAGED} {checkout / '.venv'}"


def test_what_would_disturb_goes_into_a_folder_of_its_own(checkout, uv):
    environment = EXPORT._replace(check="pass")
    environments.make(checkout, environment, Progress(6))
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
    environments.make(checkout, environment, Progress(6))
    (editable,) = [command for command in uv.last.commands if "--editable" in command]
    client = checkout / "clients" / "parley-client"
    assert editable.endswith(f"--editable {checkout} --editable {client} --editable {project}")
    assert environments.is_ready(checkout, environment)
    (project / "pyproject.toml").write_text("changed")
    assert not environments.is_ready(checkout, environment)


@pytest.mark.parametrize("step", ["serve.txt", "--editable"])
def test_a_failed_step_leaves_no_stamp(checkout, uv, monkeypatch, step):
    environments.make(checkout, HARMLESS, Progress(6))
    monkeypatch.setattr(uv, "fails_at", step)
    with pytest.raises(SetupError):
        environments.make(checkout, HARMLESS, Progress(6))
    assert not environments.is_ready(checkout, HARMLESS)


def test_an_environment_that_does_not_work_is_not_ready(checkout, uv):
    broken = SERVE._replace(check="raise ImportError('no libnuma')")
    with pytest.raises(SetupError, match="no libnuma"):
        environments.make(checkout, broken, Progress(6))
    assert not environments.is_ready(checkout, broken)


@pytest.mark.parametrize("pip_works", [True, False])
def test_torch_comes_from_the_machines_sources_or_pytorchs_index(checkout, uv, monkeypatch, pip_works):
    monkeypatch.setattr(uv, "pip_works", pip_works)
    environments.make(checkout, EXPORT._replace(check="pass"), Progress(6))
    commands = uv.last.commands
    assert "pip torch==2.0+cpu" in commands
    from_index = [command for command in commands if "--torch-backend cpu torch==2.0" in command]
    assert bool(from_index) is not pip_works


@pytest.fixture
def far_from_pytorch(uv, monkeypatch):
    """PyTorch's own index cannot be reached, and the machine has no wheel of its own."""
    monkeypatch.setattr(uv, "pip_works", False)
    monkeypatch.setattr(uv, "fails_at", "--torch-backend")
    return uv


def test_without_pytorchs_index_torch_comes_from_the_package_index(
    checkout, far_from_pytorch, monkeypatch, capsys
):
    monkeypatch.setattr(far_from_pytorch, "wheel_sizes", (500_000_000, 2_000_000_000))
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda _: SimpleNamespace(free=4_100_000_000))
    environments.make(checkout, HARMLESS, Progress(6))
    commands = far_from_pytorch.last.commands
    size, installation = commands.index("sizes of torch-cuda.txt"), commands[-2]
    assert installation.endswith(f"--no-deps -r {checkout}/build/requirements/torch-cuda.txt")
    assert size < commands.index(installation), "its size is told before it is downloaded"
    assert "2 packages: 2.5 GB to download, about 4.0 GB on the disk" in capsys.readouterr().err
    assert environments.is_ready(checkout, HARMLESS)


def test_torch_that_the_disk_cannot_hold_is_not_downloaded(checkout, far_from_pytorch, monkeypatch):
    monkeypatch.setattr(far_from_pytorch, "wheel_sizes", (2_500_000_000,))
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda _: SimpleNamespace(free=3_900_000_000))
    with pytest.raises(SetupError, match=r"needs 4\.0 GB below .*; 3\.9 GB are free"):
        environments.make(checkout, HARMLESS, Progress(6))
    assert not [command for command in far_from_pytorch.last.commands if "-r torch-cuda" in command]
    assert not environments.is_ready(checkout, HARMLESS)


def test_an_index_that_does_not_say_how_large_torch_is_still_gives_it(
    checkout, far_from_pytorch, monkeypatch, capsys
):
    monkeypatch.setattr(far_from_pytorch, "wheel_sizes", (500_000_000, None))
    environments.make(checkout, HARMLESS, Progress(6))
    assert "2 packages; the package index gives no sizes" in capsys.readouterr().err
    assert environments.is_ready(checkout, HARMLESS)


@pytest.mark.parametrize("installed", ["torch==2.0+cpu", "torch==2.0"])
def test_torch_that_is_there_is_kept_whatever_it_is_built_for(checkout, uv, monkeypatch, installed):
    answer = SimpleNamespace(stdout=f"{installed}\n", returncode=0)
    monkeypatch.setattr(environments, "run_quietly", lambda *_: answer)
    environments.make(checkout, HARMLESS, Progress(6))
    commands = uv.last.commands
    assert not [command for command in commands if "torch==2.0" in command or "sizes" in command]
    libraries = [command for command in commands if command.endswith("torch-cuda.txt")]
    assert bool(libraries) is not installed.endswith("+cpu"), "libraries that an interruption left out"


PYLOCK = """\
lock-version = "1.0"
[[packages]]
name = "torch"
wheels = [{ url = "u/torch.whl", upload-time = 2026-05-12T16:18:38Z, size = 526600000, hashes = {} }]
[[packages]]
name = "nvidia-cublas"
wheels = [{ url = "u/cublas.whl" }]
"""


def test_sizes_come_from_the_index(uv_that, tmp_path):
    (tmp_path / "said").write_text(PYLOCK)
    uv = uv_that(f"cat {tmp_path / 'said'}")
    assert uv.sizes(tmp_path / "torch-cuda.txt", Path(sys.executable)) == [526_600_000, None]
    with pytest.raises(SetupError, match=r"has not all of torch-cuda\.txt"):
        uv_that("exit 2").sizes(tmp_path / "torch-cuda.txt", Path(sys.executable))


def test_the_locks_of_torch_have_one_version():
    (pin,) = re.findall(r"^torch==\S+", (LOCKS / "torch.txt").read_text(), re.MULTILINE)
    locked = (LOCKS / "torch-cuda.txt").read_text()
    assert f"\n{pin} \\\n" in locked
    assert not re.search(r"^triton==", locked, re.MULTILINE), "vLLM does not import on a CPU beside it"


def test_the_talk_environment_is_more_than_the_serving_one(checkout, uv):
    environments.make(checkout, HARMLESS, Progress(6))
    assert not environments.is_ready(checkout, TALK)
    environments.make(checkout, TALK._replace(check="pass"), Progress(6))
    assert environments.is_ready(checkout, TALK._replace(check="pass"))
    assert environments.is_ready(checkout, HARMLESS), "it need not be made again for the tests"


def test_an_image_gets_its_packages_first_and_then_parley_without_what_installs_it(checkout, uv):
    for lock in ("gateway", "project"):
        (checkout / f"build/requirements/{lock}.txt").write_text(lock)
    packages = IMAGE_GATEWAY._replace(check="pass")
    environments.make(checkout, packages, Progress(packages.steps))
    assert not [command for command in uv.last.commands if "--editable" in command]
    whole = with_project(IMAGE_GATEWAY)._replace(check="pass")
    assert not environments.is_ready(checkout, whole)
    environments.make(checkout, whole, Progress(whole.steps))
    assert "--editable" in uv.last.commands[-2]
    assert uv.last.commands[-1].startswith("pip uninstall")
    assert "hatchling" in uv.last.commands[-1]
    assert environments.is_ready(checkout, whole)


def test_two_setups_wait_for_each_other(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(main, "ROOT", tmp_path)
    (tmp_path / ".cache").mkdir()
    with (tmp_path / ".cache" / "setup.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        script = (
            f"import sys, pathlib; sys.path.insert(0, {str(SCRIPTS)!r})\n"
            "from provision import main\n"
            f"main.ROOT = pathlib.Path({str(tmp_path)!r})\n"
            "with main._only_one(): print('mine', flush=True)\n"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stderr.readline() == "waiting for another set-up of this checkout to end\n"
        assert other.poll() is None
    assert other.communicate(timeout=30)[0] == "mine\n"


def test_a_download_that_fails_names_the_packages(checkout, uv, monkeypatch):
    monkeypatch.setattr(uv, "fails_at", "venv")
    with pytest.raises(
        SetupError, match=r"uv failed\n.*Debian 12: sudo apt-get install python3 libpython3\.11"
    ):
        environments.make(checkout, HARMLESS, Progress(6))


def test_a_failure_is_one_line_and_a_status(checkout, uv, monkeypatch, capsys):
    monkeypatch.setattr(main, "ROOT", checkout)
    monkeypatch.setattr(uv, "fails_at", "venv")
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
    "serve networks dev talk export chatterbox peers kernels torch-cuda frameworks perf-analyzer "
    "gateway project packing images serve-gpu".split(),
)
def test_every_locked_package_has_one_version_and_a_hash(lock):
    text = (LOCKS / f"{lock}.txt").read_text()
    packages = re.findall(r"^([a-z0-9.-]+)==(\S+)((?: \\\n    --hash=\S+)+)", text, re.MULTILINE)
    starts = re.findall(r"^[a-z0-9]", text, re.MULTILINE)
    assert len(packages) == len(starts) == len({name for name, _, _ in packages})


def test_what_must_stay_apart_is_not_in_the_serving_lock():
    locked = locked_versions("serve.txt")
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "triton"} & set(locked)
    assert locked["numpy"].startswith("1."), "the stub of Triton 24.10 reads arrays of numpy 2 as empty"


def test_the_development_lock_agrees_with_the_serving_lock():
    serve = locked_versions("serve.txt")
    for other in map(locked_versions, ("dev.txt", "talk.txt", "gateway.txt", "project.txt")):
        assert {name: version for name, version in other.items() if serve.get(name, version) != version} == {}


# --- programs that tests start ----------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with these programs on its path, each of which runs a line of shell."""

    def make(root=True, library=True, **lines):
        for name, line in lines.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{line}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("PARLEY_BROWSER", raising=False)
        monkeypatch.setattr(main.os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(main, "loads", lambda soname: library or (tmp_path / soname).exists())
        return tmp_path

    return make


INSTALLING = "echo '#!/bin/sh' > {0}/chromium; /bin/chmod +x {0}/chromium"


def test_a_browser_that_is_there_is_found(machine):
    folder = machine(google_chrome="exit 0")
    main.provide_browser()
    assert main.find_browser() == str(folder / "google-chrome")


def test_a_named_browser_comes_first(machine, monkeypatch):
    machine(chromium="exit 0")
    monkeypatch.setenv("PARLEY_BROWSER", "/opt/chrome")
    assert main.find_browser() == "/opt/chrome"


def test_root_gets_the_browser_installed(machine, tmp_path):
    machine(apt_get=INSTALLING.format(tmp_path))
    main.provide_browser()
    assert main.find_browser() == str(tmp_path / "chromium")


def test_lists_of_packages_are_fetched_where_they_are_missing(machine, tmp_path):
    updated = tmp_path / "updated"
    lines = f'test "$1" = update && exec /usr/bin/touch {updated}\ntest -e {updated} || exit 100\n'
    machine(apt_get=lines + INSTALLING.format(tmp_path))
    main.provide_browser()
    assert updated.exists()


def test_without_root_the_command_that_installs_the_browser_is_named(machine, capsys):
    machine(root=False, apt_get="exit 0")
    assert main.main(["--browser"]) == 1
    assert "sudo apt-get install chromium" in capsys.readouterr().err


def test_what_drives_the_browser_is_installed_too(machine, tmp_path):
    machine(library=False, chromium="exit 0", apt_get=f'echo "$@" > {tmp_path}/libatomic.so.1')
    main.provide_browser()
    assert (tmp_path / "libatomic.so.1").read_text().split()[-1] == "libatomic1"


def test_a_program_that_is_absent_after_its_installation_is_an_error(machine):
    machine(library=False, apt_get="exit 0")
    with pytest.raises(SetupError, match="chromium and libatomic1 were installed"):
        main.provide_browser()


@pytest.mark.parametrize("program", ["browser", "redis"])
def test_the_output_of_a_failed_apt_get_is_shown(machine, capsys, program):
    machine(apt_get="echo no space left >&2; exit 100")
    assert main.main([f"--{program}"]) == 1
    assert "no space left" in capsys.readouterr().err


REDIS = "echo '#!/bin/sh' > {0}/redis-server; /bin/chmod +x {0}/redis-server"


def test_root_gets_redis_installed(machine, tmp_path):
    machine(apt_get=REDIS.format(tmp_path))
    assert main.main(["--redis"]) == 0
    assert (tmp_path / "redis-server").exists()


@pytest.mark.parametrize(
    ("root", "lines"),
    [(True, {"apt_get": "exit 100", "redis_server": "exit 0"}), (True, {}), (False, {"apt_get": "exit 100"})],
)
def test_redis_that_is_there_or_cannot_be_installed_is_left_alone(machine, capsys, root, lines):
    machine(root=root, **lines)
    assert main.main(["--redis"]) == 0
    assert capsys.readouterr().err == ""


CONTAINERS = (
    "echo $@ > {0}/installed; for name in buildah catatonit crun debootstrap nginx openssl podman "
    "redis-server runc; do "
    "echo '#!/bin/sh' > {0}/$name; /bin/chmod +x {0}/$name; done"
)


def test_root_gets_what_runs_containers_installed_once(machine, tmp_path):
    machine(apt_get=CONTAINERS.format(tmp_path))
    assert main.main(["--containers"]) == 0
    assert "podman" in (tmp_path / "installed").read_text()
    (tmp_path / "installed").unlink()
    assert main.main(["--containers"]) == 0
    assert not (tmp_path / "installed").exists()


CLUSTER = (
    "echo $@ > {0}/installed; for name in ip nft nginx redis-server; do "
    "echo '#!/bin/sh' > {0}/$name; /bin/chmod +x {0}/$name; done"
)


def test_root_gets_what_the_cluster_needs_installed_once(machine, tmp_path):
    machine(apt_get=CLUSTER.format(tmp_path))
    assert main.main(["--cluster"]) == 0
    assert (tmp_path / "installed").read_text().split()[-4:] == [
        "iproute2",
        "nftables",
        "nginx-light",
        "redis-server",
    ]
    (tmp_path / "installed").unlink()
    assert main.main(["--cluster"]) == 0
    assert not (tmp_path / "installed").exists()


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
