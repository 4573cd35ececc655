"""Places of connections that may have no call yet."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from parley_gateway.apis.realtime.places import ConnectionSlots
from parley_gateway.calls import CallSettings
from parley_gateway.errors import TooManyCallsError
from parley_gateway.security.principal import ANONYMOUS, Principal

ONE, OTHER = (Principal(id=name, scopes=frozenset({"agent"})) for name in ("key-1", "key-2"))


def test_one_key_cannot_have_all_places():
    places = ConnectionSlots(CallSettings(limit=3, per_key=1), "connections")
    with places.take(ONE):
        with pytest.raises(TooManyCallsError, match="of this key are open"), places.take(ONE):
            pass
        with places.take(OTHER):
            pass
    with places.take(ONE):
        pass


def test_callers_without_a_key_are_counted_by_their_addresses():
    places = ConnectionSlots(CallSettings(limit=4, per_key=1), "connections")
    one, other = (replace(ANONYMOUS, address=address) for address in ("192.0.2.1", "192.0.2.2"))
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(places.take(one))
        with pytest.raises(TooManyCallsError, match="its share"):
            held.enter_context(places.take(one))
        held.enter_context(places.take(other))
        with pytest.raises(TooManyCallsError, match="all this gateway takes"):
            held.enter_context(places.take(OTHER))
