"""All sessions of a gateway that another one can take over, and those that it takes over itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec

from parley import protocol
from parley.checkpoint import HistoryState, SessionState
from parley_client.call import Call
from parley_gateway.apis.sessions.kept import KeptSession
from parley_gateway.apis.sessions.record import SessionClaim, SessionRecord, digest_of, name_in, new_token
from parley_gateway.audio.codecs import Encoding
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.metrics import Metrics
from parley_gateway.security.principal import Principal
from parley_gateway.security.watched import WatchedFile
from parley_gateway.takeover.errors import NotResumableError, TakeoverUnavailableError
from parley_gateway.takeover.sealing import Sealer, SealError, read_seal_keys
from parley_gateway.takeover.settings import TakeoverSettings
from parley_gateway.takeover.store import Entry, RedisSessionStore

_REFUSED = "no session can be taken over with this token and these credentials"
# Its owner may write it between the look at a session and the claim, a few times a second.
_CLAIM_ATTEMPTS = 5


class SessionKeeper:
    """All kept sessions of this process."""

    def __init__(
        self,
        settings: TakeoverSettings,
        store: RedisSessionStore | None,
        sealer: Sealer | None,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self._store = store
        self._sealer = sealer
        self._open: weakref.WeakValueDictionary[str, KeptSession] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, settings: TakeoverSettings, metrics: Metrics) -> SessionKeeper:
        """As the settings say.

        Raises:
            GatewaySettingsError: they cannot be used.
        """
        if bool(settings.store) != bool(settings.keys_file):
            raise GatewaySettingsError("takeover.store and takeover.keys_file need each other")
        if not settings.store:
            return cls(settings, None, None, metrics)
        metrics.takeover_available.set(1)
        store = RedisSessionStore(
            settings.store, timeout_s=settings.store_timeout_s, on_change=metrics.takeover_available.set
        )
        sealer = Sealer(WatchedFile(Path(settings.keys_file), read_seal_keys))
        return cls(settings, store, sealer, metrics)

    async def aclose(self) -> None:
        """Drop the connections to the store."""
        if self._store is not None:
            await self._store.aclose()

    def keep(
        self,
        call: Call,
        tell: Callable[[protocol.Checkpoint], None],
        *,
        session_id: str,
        owner: Principal,
        claim: SessionClaim | None,
        encoding: Encoding = "pcm16",
        api_state: Callable[[], bytes] | None = None,
        epoch: int = 1,
    ) -> KeptSession | None:
        """Begin to keep an open session; None: there is no store.

        ``api_state`` makes :attr:`SessionRecord.api_state`; None: a session of ``/v1/sessions``. With it
        ``session_id`` is the token. ``epoch`` is that of a new session.
        """
        if self._store is None or self._sealer is None:
            return None
        if claim is None:
            name = name_in(session_id) if api_state else session_id
            assert name is not None  # the gateway has made the id
            token, digest = (session_id, digest_of(session_id)) if api_state else new_token(session_id)
            empty = SessionRecord(
                settings=protocol.Start(),
                history=HistoryState(),
                state=SessionState(version=0),
                encoding=encoding,
                tokens=[digest],
            )
            claim = SessionClaim(name, epoch, token, [digest], empty)
        kept = KeptSession(
            settings=self.settings,
            metrics=self.metrics,
            store=self._store,
            sealer=self._sealer,
            call=call,
            tell=tell,
            owner=_owner_of(owner),
            claim=claim,
            api_state=api_state,
        )
        self._open[claim.name] = kept
        return kept

    async def look(self, token: str) -> tuple[int, bool]:
        """The epoch of a session, 0 where it is not known, and whether it can go on."""
        name = name_in(token)
        if self._store is None or name is None:
            return 0, False
        try:
            epoch, data = await self._store.look(name)
        except TakeoverUnavailableError:
            return 0, False
        return epoch, data is not None

    async def claim(self, token: str, principal: Principal, *, is_translated: bool = False) -> SessionClaim:
        """Become the owner of a session; its connection elsewhere ends.

        Args:
            token: opens it.
            principal: its owner.
            is_translated: it has a state of an API other than ``/v1/sessions``.

        Raises:
            NotResumableError: the token is wrong, was used, or belongs to another principal; the session is
                gone, or of the other API; another gateway was faster; or this one has no store.
            TakeoverUnavailableError: the store does not answer, or the session was written at each attempt.
        """
        outcome = "refused"
        try:
            claim = await self._claim(token, principal, is_translated=is_translated)
            outcome = "claimed"
        except TakeoverUnavailableError:
            outcome = "unavailable"
            raise
        finally:
            self.metrics.takeovers.labels(outcome).inc()
        return claim

    async def end(self, claim: SessionClaim) -> None:
        """End a session that this gateway has claimed, and whose stream has not been opened.

        Raises:
            TakeoverUnavailableError: the store does not answer; the session may still be there.
        """
        assert self._store is not None  # where there is none, nothing can be claimed
        await self._store.end(claim.name, claim.epoch, is_over=True)

    async def _claim(self, token: str, principal: Principal, *, is_translated: bool) -> SessionClaim:
        store, sealer, settings = self._store, self._sealer, self.settings
        if store is None or sealer is None:
            raise NotResumableError(_REFUSED)  # the next attempt would end alike
        name = name_in(token)
        if name is None:
            raise NotResumableError(_REFUSED)
        owner, digest = _owner_of(principal), digest_of(token)
        epoch: int | None = None
        for _ in range(_CLAIM_ATTEMPTS):
            entry = await store.find(name)
            if entry is None or epoch not in (None, entry.epoch):  # another request has claimed it meanwhile
                raise NotResumableError(_REFUSED)
            epoch = entry.epoch
            record = self._check(entry, name, owner, digest)
            if (bytes(record.api_state) != b"null") != is_translated:
                raise NotResumableError(_REFUSED)
            following, next_digest = (token, digest) if is_translated else new_token(name)
            record = msgspec.structs.replace(record, tokens=[next_digest, digest])
            content = msgspec.json.encode(record)
            sealed = sealer.seal(content, name=name, owner=owner, epoch=epoch + 1)
            # If the owner has written since, the token may not open what it wrote: it is checked again.
            if await store.claim(name, entry, sealed, settings.keep_s):
                if (local := self._open.get(name)) is not None:
                    local.lose()
                return SessionClaim(name, epoch + 1, following, record.tokens, record)
        raise TakeoverUnavailableError("the session is written too often to be taken over; try again")

    def _check(self, entry: Entry, name: str, owner: str, digest: str) -> SessionRecord:
        assert self._sealer is not None
        try:
            content = self._sealer.open(entry.data, name=name, owner=owner, epoch=entry.epoch)
            record = msgspec.json.decode(content, type=SessionRecord)
        except (SealError, msgspec.MsgspecError) as error:
            raise NotResumableError(_REFUSED) from error
        if not record.is_opened_by(digest):
            raise NotResumableError(_REFUSED)
        return record


def _owner_of(principal: Principal) -> str:
    return f"{principal.root} {principal.id}"
