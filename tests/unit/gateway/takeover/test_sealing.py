"""Encryption of sessions, and the file of its keys."""

import base64

import pytest

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.watched import WatchedFile
from parley_gateway.takeover.sealing import OVERHEAD_BYTES, Sealer, SealError, read_seal_keys

BOUND = {"name": "gw_1", "owner": "key a", "epoch": 1}
OLD, NEW, OTHER = (base64.b64encode(bytes([number]) * 32) for number in (1, 2, 3))


class Keys:
    """As much of a watched file as is needed."""

    def __init__(self, *lines):
        self.lines = lines

    def get(self):
        return read_seal_keys(b"\n".join(self.lines))


def seal(*lines, content=b"what was said", **bound):
    return Sealer(Keys(*lines)).seal(content, **(BOUND | bound))


def opened(sealed, *lines, **bound):
    return Sealer(Keys(*lines)).open(sealed, **(BOUND | bound))


def test_sealed_record_opens_and_is_unreadable():
    sealed = seal(NEW)
    assert b"said" not in sealed
    assert len(sealed) == len(b"what was said") + OVERHEAD_BYTES
    assert opened(sealed, NEW) == b"what was said"
    assert seal(NEW) != sealed


def test_the_first_key_seals_and_all_of_them_open():
    before = seal(OLD)
    assert opened(before, NEW, OLD) == b"what was said"
    after = seal(NEW, OLD)
    assert opened(after, NEW) == b"what was said"
    for keys in ((OLD,), (OTHER, OLD)):
        with pytest.raises(SealError):
            opened(after, *keys)


@pytest.mark.parametrize(
    "changed",
    [{"name": "gw_2"}, {"owner": "key b"}, {"name": "gw_1\0k", "owner": "ey a"}, {"epoch": 0}, {"epoch": 2}],
)
def test_sealed_record_is_bound_to_session_owner_and_epoch(changed):
    with pytest.raises(SealError):
        opened(seal(NEW), NEW, **changed)


def test_every_changed_byte_is_noticed():
    sealed = seal(NEW)
    for place in range(len(sealed)):
        changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        with pytest.raises(SealError):
            opened(changed, NEW)
    for length in range(len(sealed)):
        with pytest.raises(SealError):
            opened(sealed[:length], NEW)


def test_a_file_that_was_rotated_is_read_again(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(OLD)
    now = 0.0
    sealer = Sealer(WatchedFile(file, read_seal_keys, clock=lambda: now))
    before = sealer.seal(b"one", **BOUND)
    file.write_bytes(b"# new\n" + NEW + b"\n" + OLD + b"\n")
    now = 2.0
    assert sealer.open(before, **BOUND) == b"one"
    with pytest.raises(SealError):
        opened(sealer.seal(b"two", **BOUND), OLD)


@pytest.mark.parametrize(
    "content",
    [b"", b"# only a comment\n", b"short", base64.b64encode(bytes(31)), b"\xff" * 44, b"\n".join([NEW] * 17)],
)
def test_files_without_good_keys_are_refused(content):
    with pytest.raises(GatewaySettingsError) as refused:
        read_seal_keys(content)
    assert NEW.decode() not in str(refused.value)
