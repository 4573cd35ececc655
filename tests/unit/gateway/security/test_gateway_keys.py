"""``parley gateway keys``."""

import fcntl
import io
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from parley_client.cli.commands import gateway_keys
from parley_client.cli.program import build_parser, main
from parley_gateway.errors import UnauthorizedError
from parley_gateway.security import keys
from parley_gateway.security.keys import KeyRing, new_key, read_keys
from parley_gateway.security.watched import WatchedFile


def test_a_new_key_is_shown_once_and_its_line_can_be_appended(tmp_path, capsys):
    assert main(["gateway", "keys", "new", "--name", "kiosk", "--scope", "agent", "--days", "30"]) == 0
    shown = capsys.readouterr()
    file = tmp_path / "keys.toml"
    file.write_text(shown.out)
    key = shown.err.strip().rpartition(" ")[2]
    principal = KeyRing(WatchedFile(file, read_keys)).verify(key)
    assert principal.scopes == {"agent"}
    (entry,) = read_keys(shown.out.encode()).values()
    assert entry.name == "kiosk"
    assert entry.expires is not None
    assert key not in shown.out


def test_a_key_may_do_everything_but_administrate_by_default(capsys):
    assert main(["gateway", "keys", "new"]) == 0
    (entry,) = read_keys(capsys.readouterr().out.encode()).values()
    assert entry.scopes == {"agent", "transcribe", "speak", "chat"}
    assert entry.expires is None


def test_new_key_may_be_limited_to_agents(tmp_path, capsys):
    assert main(["gateway", "keys", "new", "--agent", "restaurant", "--agent", ""]) == 0
    line = capsys.readouterr().out
    (entry,) = read_keys(line.encode()).values()
    assert entry.agents == {"restaurant", ""}
    (tmp_path / "keys.toml").write_text(line)
    assert main(["gateway", "keys", "list", "--file", str(tmp_path / "keys.toml")]) == 0
    assert "own, restaurant" in capsys.readouterr().out


def test_key_of_an_impossible_agent_is_refused(capsys):
    assert main(["gateway", "keys", "new", "--agent", "Bella Vista"]) != 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("days", ["0", "-1", "x", "1e9"])
def test_days_have_to_be_a_number(capsys, days):
    with pytest.raises(SystemExit):
        main(["gateway", "keys", "new", "--days", days])
    assert "number of days" in capsys.readouterr().err


@pytest.fixture
def keys_file(tmp_path, monkeypatch):
    """A file with two keys and a remark, which the gateway's settings name."""
    file = tmp_path / "keys.toml"
    old = datetime.now(UTC) - timedelta(days=1)
    lines = [new_key("kiosk", ["agent"]).line, "# a remark", new_key("[old]", ["admin", "chat"], old).line]
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o640)
    monkeypatch.setenv("PARLEY_GATEWAY_SECURITY_KEYS_FILE", str(file))
    return file


def test_keys_are_listed_without_their_hashes(keys_file, capsys):
    assert main(["gateway", "keys", "list"]) == 0
    shown = capsys.readouterr().out
    for key_id, entry in read_keys(keys_file.read_bytes()).items():
        (line,) = (line for line in shown.splitlines() if line.startswith(key_id))
        assert entry.name in line
        assert ("has expired" in line) == (entry.name == "[old]")
        assert entry.sha256[:8] not in shown
    assert "admin, chat" in shown


@pytest.mark.parametrize("by", ["id", "key"])
def test_a_revoked_key_is_gone_and_the_rest_stays(keys_file, capsys, by):
    made = new_key("third", ["speak"])
    with keys_file.open("a") as file:
        file.write(made.line + "\n")
    before = keys_file.read_text()
    ring = KeyRing(WatchedFile(keys_file, read_keys))
    named = made.line.split(" ")[0] if by == "id" else made.secret
    assert main(["gateway", "keys", "revoke", named]) == 0
    assert keys_file.read_text() == before.replace(made.line + "\n", "")
    assert keys_file.stat().st_mode & 0o777 == 0o640
    assert list(keys_file.parent.iterdir()) == [keys_file]
    assert made.secret not in capsys.readouterr().out
    ring.reload()
    with pytest.raises(UnauthorizedError):
        ring.verify(made.secret)


def revoke(key_id, file):
    args = build_parser().parse_args(["gateway", "keys", "revoke", key_id, "--file", str(file)])
    return gateway_keys.run(args, Console(file=io.StringIO()), str)


def test_simultaneous_revocations_both_apply(keys_file, monkeypatch):
    first, second = read_keys(keys_file.read_bytes())
    waits, without_key = threading.Event(), keys.without_key
    other = threading.Thread(target=revoke, args=(second, keys_file))

    def between_reading_and_writing(raw, key_id):
        if key_id == first:
            other.start()
            while other.is_alive() and not waits.wait(0.01):
                pass
        return without_key(raw, key_id)

    monkeypatch.setattr(keys, "without_key", between_reading_and_writing)
    monkeypatch.setattr(gateway_keys, "sleep", lambda _: waits.set())
    assert revoke(first, keys_file) == 0
    other.join()
    assert keys_file.read_text() == "# a remark\n"
    assert list(keys_file.parent.iterdir()) == [keys_file]


def test_a_file_that_another_program_holds_is_not_waited_for_without_end(keys_file, capsys, monkeypatch):
    before = keys_file.read_bytes()
    (key_id, *_) = read_keys(before)
    monkeypatch.setattr(gateway_keys, "_LOCK_S", 0.05)
    with keys_file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["gateway", "keys", "revoke", key_id]) == 1
        assert keys_file.read_bytes() == before
    said = " ".join(capsys.readouterr().err.split())
    assert "another program is changing it" in said
    assert "(settings)" in said
    assert main(["gateway", "keys", "revoke", key_id]) == 0


def test_a_file_that_is_always_replaced_is_not_waited_for_without_end(keys_file, capsys, monkeypatch):
    flock = fcntl.flock

    def replaced_just_before(file, operation):
        copy = keys_file.with_name("copy")
        copy.write_bytes(keys_file.read_bytes())
        copy.replace(keys_file)
        flock(file, operation)

    (key_id, *_) = read_keys(keys_file.read_bytes())
    monkeypatch.setattr(gateway_keys, "_LOCK_S", 0.05)
    monkeypatch.setattr(gateway_keys.fcntl, "flock", replaced_just_before)
    assert main(["gateway", "keys", "revoke", key_id]) == 1
    assert "another program is changing it" in " ".join(capsys.readouterr().err.split())
    assert key_id in read_keys(keys_file.read_bytes())


def test_revoking_a_key_keeps_the_others_readable(keys_file, monkeypatch):
    first, second = read_keys(keys_file.read_bytes())
    replace, seen = Path.replace, []

    def look(fresh, file):
        done = replace(fresh, file)
        seen.append(set(read_keys(keys_file.read_bytes())))
        return done

    monkeypatch.setattr(Path, "replace", look)
    assert revoke(first, keys_file) == 0
    assert seen == [{second}]


def test_a_key_is_revoked_in_the_file_that_a_link_names(keys_file, monkeypatch):
    made = new_key("third", ["speak"])
    with keys_file.open("a") as file:
        file.write(made.line + "\n")
    owner = keys_file.stat()
    link = keys_file.parent / "link.toml"
    link.symlink_to(keys_file)
    assert main(["gateway", "keys", "revoke", made.line.split(" ")[0], "--file", str(link)]) == 0
    assert link.is_symlink()
    assert made.line not in keys_file.read_text()
    assert (keys_file.stat().st_uid, keys_file.stat().st_gid) == (owner.st_uid, owner.st_gid)


def test_a_file_of_another_owner_is_not_replaced(keys_file, capsys, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    before = keys_file.read_bytes()
    monkeypatch.setattr("parley_client.cli.commands.gateway_keys.os.fchown", refuse)
    (key_id, *_) = read_keys(before)
    assert main(["gateway", "keys", "revoke", key_id]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert keys_file.read_bytes() == before
    assert list(keys_file.parent.iterdir()) == [keys_file]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["list", "--file", "none.toml"], 1, "none.toml: cannot be read"),
        (["revoke", "missing"], 2, "has no key 'missing'"),
    ],
)
def test_unusable_keys_file_is_reported(keys_file, capsys, arguments, status, words):
    before = keys_file.read_bytes()
    assert main(["gateway", "keys", *arguments]) == status
    assert words in " ".join(capsys.readouterr().err.split())
    assert keys_file.read_bytes() == before


def test_a_file_has_to_be_named(capsys, monkeypatch):
    monkeypatch.delenv("PARLEY_GATEWAY_SECURITY_KEYS_FILE", raising=False)
    assert main(["gateway", "keys", "list"]) == 2
    assert "--file" in capsys.readouterr().err


def test_a_key_that_is_written_as_a_table_is_left_to_people(keys_file, capsys):
    made = new_key("table", ["agent"])
    key_id, _, fields = made.line.partition(" = ")
    table = f"[{key_id}]\n" + "\n".join(fields.strip("{}").split(", "))
    keys_file.write_text(keys_file.read_text() + table + "\n")
    before = keys_file.read_bytes()
    assert main(["gateway", "keys", "revoke", key_id]) == 1
    assert "by hand" in capsys.readouterr().err
    assert keys_file.read_bytes() == before
