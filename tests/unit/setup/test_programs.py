"""scripts/setup's programs: those of Debian, with a fake Debian, and perf_analyzer, with a fake uv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from provision import main, programs
from provision.system import SetupError


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
        monkeypatch.setattr(programs.os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(programs, "loads", lambda soname: library or (tmp_path / soname).exists())
        return tmp_path

    return make


INSTALLING = "echo '#!/bin/sh' > {0}/chromium; /bin/chmod +x {0}/chromium"


def test_a_browser_that_is_there_is_found(machine):
    folder = machine(google_chrome="exit 0")
    programs.provide_browser(Path())
    assert programs.find_browser() == str(folder / "google-chrome")


def test_a_named_browser_comes_first(machine, monkeypatch):
    machine(chromium="exit 0")
    monkeypatch.setenv("PARLEY_BROWSER", "/opt/chrome")
    assert programs.find_browser() == "/opt/chrome"


def test_root_gets_the_browser_installed(machine, tmp_path):
    machine(apt_get=INSTALLING.format(tmp_path))
    programs.provide_browser(Path())
    assert programs.find_browser() == str(tmp_path / "chromium")


def test_lists_of_packages_are_fetched_where_they_are_missing(machine, tmp_path):
    updated = tmp_path / "updated"
    lines = f'test "$1" = update && exec /usr/bin/touch {updated}\ntest -e {updated} || exit 100\n'
    machine(apt_get=lines + INSTALLING.format(tmp_path))
    programs.provide_browser(Path())
    assert updated.exists()


def test_without_root_the_command_that_installs_the_browser_is_named(machine, capsys):
    machine(root=False, apt_get="exit 0")
    assert main.main(["--browser"]) == 1
    assert "sudo apt-get install chromium" in capsys.readouterr().err


def test_browser_driver_is_installed(machine, tmp_path):
    machine(library=False, chromium="exit 0", apt_get=f'echo "$@" > {tmp_path}/libatomic.so.1')
    programs.provide_browser(Path())
    assert (tmp_path / "libatomic.so.1").read_text().split()[-1] == "libatomic1"


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


DEB = "a package of Debian"


class FakeUv:
    """Puts a program there that says with which libraries it was started."""

    installed = 0
    works = True

    def __init__(self, root):
        self.root = root

    def prepare(self):
        pass

    def install(self, *arguments):
        FakeUv.installed += 1
        program = Path(arguments[arguments.index("--target") + 1]) / "bin" / "perf_analyzer"
        program.parent.mkdir(parents=True)
        if self.works:
            program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')


@pytest.fixture
def checkout(machine, tmp_path, monkeypatch):
    """A checkout with a lock, on a machine without the library but with programs of Debian."""
    lock = tmp_path / "build" / "requirements" / "perf-analyzer.txt"
    lock.parent.mkdir(parents=True)
    lock.write_text("tritonclient==2.51.0")
    machine(
        library=False,
        apt_get=f'echo "$@" >> {tmp_path}/asked\ntest -e {tmp_path}/absent && exit 100\n'
        f'test "$2" = download && printf "%s" "{DEB}" > "$3_1_amd64.deb"\nexit 0',
        dpkg_deb='mkdir -p "$3/usr/bin"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(programs, "Uv", FakeUv)
    monkeypatch.setattr(main, "ROOT", tmp_path)
    monkeypatch.setattr(FakeUv, "installed", 0)
    return tmp_path


@pytest.fixture
def perf_analyzer(checkout):
    return checkout / ".cache" / "perf-analyzer" / "perf_analyzer"


def test_perf_analyzer_is_started_with_its_libraries(checkout, perf_analyzer):
    programs.provide_perf_analyzer(checkout)
    command = [str(perf_analyzer), "-m", "espeak"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    libraries, arguments = said.split(" ", 1)
    assert arguments == "-m espeak\n"
    assert libraries.split(":")[:2] == [
        str(perf_analyzer.parent / "packages/nvidia/cuda_runtime/lib"),
        str(perf_analyzer.parent / "libb64/usr/lib/x86_64-linux-gnu"),
    ]
    assert (perf_analyzer.parent / "libb64/usr").is_dir()


def test_perf_analyzer_is_made_once_until_the_lock_changes(checkout):
    for _ in range(2):
        programs.provide_perf_analyzer(checkout)
    assert FakeUv.installed == 1
    (checkout / "build" / "requirements" / "perf-analyzer.txt").write_text("tritonclient==2.50.0")
    programs.provide_perf_analyzer(checkout)
    assert FakeUv.installed == 2


def test_a_library_that_the_machine_has_is_not_downloaded(checkout, monkeypatch):
    monkeypatch.setattr(programs, "loads", lambda _: True)
    programs.provide_perf_analyzer(checkout)
    assert not (checkout / "asked").exists()


def test_a_debian_package_that_cannot_be_had_is_named(checkout, perf_analyzer, capsys):
    (checkout / "absent").touch()
    assert main.main(["--perf-analyzer"]) == 1
    assert "sudo apt-get install libb64-0d" in capsys.readouterr().err
    asked = (checkout / "asked").read_text().splitlines()
    assert [line.split()[-2] for line in asked] == ["download", "update", "download"]
    assert not perf_analyzer.exists()


def test_a_wheel_without_perf_analyzer_is_an_error(checkout, monkeypatch):
    monkeypatch.setattr(FakeUv, "works", False)
    with pytest.raises(SetupError, match="has another wheel"):
        programs.provide_perf_analyzer(checkout)


def test_prometheus_is_unpacked_once(checkout):
    for _ in range(2):
        assert main.main(["--prometheus"]) == 0
        for package, program in (("prometheus", "prometheus"), ("prometheus-alertmanager", "amtool")):
            (checkout / ".cache" / package / "usr" / "bin" / program).touch()
    asked = (checkout / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked] == ["prometheus", "prometheus-alertmanager"]
