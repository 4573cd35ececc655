"""API keys."""

import hmac
import logging
import os
from datetime import UTC, datetime, timedelta

import pytest

from parley_gateway.apis.twilio.signature import TWILIO
from parley_gateway.errors import GatewaySettingsError, UnauthorizedError
from parley_gateway.security import keys
from parley_gateway.security.keys import KeyRing, new_key, read_keys
from parley_gateway.security.principal import ANONYMOUS, RESERVED_IDS
from parley_gateway.security.watched import WatchedFile


class Ticks:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def ticks():
    return Ticks()


@pytest.fixture
def ring(keys_file, ticks):
    return KeyRing(WatchedFile(keys_file.path, read_keys, clock=ticks))


@pytest.mark.parametrize("key_id", ["anonymous", "twilio"])
def test_the_ids_of_principals_without_a_key_are_refused(key_id):
    line = f'{key_id} = {{scopes = ["agent"], sha256 = "{"0" * 64}"}}'
    with pytest.raises(GatewaySettingsError, match="the gateway itself uses it"):
        read_keys(line.encode())


def test_a_new_key_never_has_such_an_id():
    assert TWILIO.id in RESERVED_IDS
    assert ANONYMOUS.id in RESERVED_IDS
    for _ in range(100):
        key_id = new_key("x", ["agent"]).line.partition(" ")[0]
        assert len(key_id) == 10
    assert 10 not in map(len, RESERVED_IDS)


def test_a_key_opens(ring, keys_file):
    principal = ring.verify(keys_file.key)
    assert principal.id == keys_file.id
    assert principal.scopes == {"agent", "chat", "speak", "transcribe"}
    assert principal.kind == "key"


def test_the_file_does_not_hold_the_key(keys_file):
    assert keys_file.key.split("_", 2)[2] not in keys_file.path.read_text()


def test_two_keys_have_nothing_in_common():
    first, second = new_key("a", ["agent"]), new_key("a", ["agent"])
    assert first.secret.split("_", 2)[1:] != second.secret.split("_", 2)[1:]
    assert len(first.secret) > 50


@pytest.mark.parametrize("name", ['say "hi"', "line\nbreak", "ünïcode", ""])
def test_any_name_can_be_written(name):
    made = new_key(name, ["agent"], datetime(2031, 1, 2, tzinfo=UTC))
    (entry,) = read_keys(made.line.encode()).values()
    assert entry.name == name
    assert entry.expires == datetime(2031, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("change", [lambda key: key + "x", lambda key: key[:-1], lambda key: key.upper()])
def test_a_key_that_is_almost_right_is_wrong(ring, keys_file, change):
    with pytest.raises(UnauthorizedError, match="not valid"):
        ring.verify(change(keys_file.key))


def test_a_hash_is_of_no_use_under_another_id(keys_file, ticks):
    keys_file.write(keys_file.line.replace(keys_file.id, "otherid234", 1))
    ring = KeyRing(WatchedFile(keys_file.path, read_keys, clock=ticks))
    with pytest.raises(UnauthorizedError):
        ring.verify(keys_file.key.replace(keys_file.id, "otherid234", 1))


@pytest.mark.parametrize("known", [True, False])
def test_known_and_unknown_ids_are_compared_the_same_way(ring, keys_file, monkeypatch, known):
    compared, original = [], hmac.compare_digest

    def compare(one, other):
        compared.append((len(one), len(other)))
        return original(one, other)

    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    with pytest.raises(UnauthorizedError):
        ring.verify(f"parley_{keys_file.id if known else 'nosuchid22'}_wrong")
    assert compared == [(64, 64)]


def test_an_expired_key_is_refused(tmp_path, ticks):
    made = new_key("old", ["agent"], datetime.now(UTC) - timedelta(seconds=2))
    (tmp_path / "keys.toml").write_text(made.line)
    ring = KeyRing(WatchedFile(tmp_path / "keys.toml", read_keys, clock=ticks))
    with pytest.raises(UnauthorizedError, match="expired"):
        ring.verify(made.secret)


def test_a_changed_file_counts_without_a_restart(ring, keys_file, ticks):
    other = new_key("other", ["chat"])
    keys_file.write(other.line)
    with pytest.raises(UnauthorizedError):
        ring.verify(other.secret)  # it is not looked at more than once a second
    ticks.now += 1.0
    assert ring.verify(other.secret).scopes == {"chat"}
    with pytest.raises(UnauthorizedError):
        ring.verify(keys_file.key)


def test_a_file_that_was_replaced_by_another_of_the_same_time_and_size_is_seen(
    keys_file, ring, ticks, tmp_path
):
    other = new_key("other", ["agent", "chat", "speak", "transcribe"])
    stamp = keys_file.path.stat()
    new = tmp_path / "new.toml"
    new.write_text(keys_file.path.read_text().replace(keys_file.line, other.line))
    os.utime(new, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    new.replace(keys_file.path)
    ticks.now += 1.0
    assert ring.verify(other.secret)


@pytest.mark.parametrize("ruin", [lambda path: path.write_text("k = {"), lambda path: path.unlink()])
def test_a_file_that_cannot_be_read_any_more_changes_nothing(ring, keys_file, ticks, caplog, ruin):
    ruin(keys_file.path)
    ticks.now += 1.0
    with caplog.at_level(logging.ERROR):
        assert ring.verify(keys_file.key)
    assert "keeping what was read before" in caplog.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("k4fz = 1", "Expected `object`"),
        ('k4fz = {scopes = ["agent"]}', "sha256"),
        ('k4fz = {scopes = ["root"], sha256 = "%s"}', "root"),
        ('k4fz = {scopes = ["agent"], sha256 = "%s", limit = 1}', "unknown field"),
        ('K4FZ = {scopes = ["agent"], sha256 = "%s"}', "not the id"),
        ('k4fz = {scopes = ["agent"], sha256 = "%s", expires = 2030-01-01T00:00:00}', "offset"),
        ('k4fz = {scopes = ["agent"], sha256 = "%s", limits = {requests = "often"}}', "not a rate"),
        ("k4fz", "not a file of API keys"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start(tmp_path, text, why):
    path = tmp_path / "keys.toml"
    path.write_text(text.replace("%s", "0" * 64))
    with pytest.raises(GatewaySettingsError, match=why) as caught:
        WatchedFile(path, read_keys)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused_at_the_start(tmp_path):
    with pytest.raises(GatewaySettingsError, match="cannot be read"):
        WatchedFile(tmp_path / "none.toml", read_keys)
