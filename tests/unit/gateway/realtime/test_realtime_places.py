"""Places of connections that may have no call yet."""

from __future__ import annotations

import pytest

from parley_gateway.calls import CallSettings
from parley_gateway.doors.realtime.places import Places
from parley_gateway.errors import TooManyCallsError
from parley_gateway.security.principal import ANONYMOUS, Principal

ONE, OTHER = (Principal(id=name, scopes=frozenset({"agent"})) for name in ("key-1", "key-2"))


def test_one_key_cannot_have_all_places():
    places = Places(CallSettings(limit=3, per_key=1), "connections")
    with places.take(ONE):
        with pytest.raises(TooManyCallsError, match="all that a key may have"), places.take(ONE):
            pass
        with places.take(OTHER):
            pass
    with places.take(ONE):
        pass


def test_who_comes_without_a_key_is_not_one():
    places = Places(CallSettings(limit=2, per_key=1), "connections")
    full = pytest.raises(TooManyCallsError, match="all this gateway takes")
    with places.take(ANONYMOUS), places.take(ANONYMOUS), full, places.take(OTHER):
        pass
