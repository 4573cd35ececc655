"""SIP by sofia-sip: the user agent ``nua`` of ``libsofia-sip-ua`` (LGPL), called through ctypes.

The library does the protocol: transports, transactions, dialogs and authentication. It has a loop and a
thread of its own; only that thread calls it. It does not read session descriptions: its parser never returns
from some (``sdp_parse`` of 1.12.11 allocates without end where a format of ``m=`` is no token).
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import logging
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, c_char, c_char_p, c_int, c_long, c_short, c_ssize_t, c_uint, c_void_p
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

from parley_gateway.errors import GatewaySettingsError

_log = logging.getLogger("parley.gateway")
_LIBRARY = "libsofia-sip-ua.so.0"
_STEP_MS = 500
_CLOSE_STEP_MS = 50
_CLOSE_S = 3.0
"""What peers get to answer when calls are ended, and then the library to stop."""
_ALLOW = "INVITE, ACK, BYE, CANCEL, OPTIONS, NOTIFY"
_SDP = "application/sdp"
_REFUSED_CREDENTIALS = 904
"""Status of the library itself."""
_MOST_AUTHENTICATIONS = 2
"""Of one dialog in a row: wrong credentials end it."""
_MOST_BYTES = 65_536
"""Of a message."""
_MOST_CHARS = 512
"""Of a header that is passed on; a body may be as long as a message."""
_AF_INET = 2
_NETWORKS = {_AF_INET: slice(4, 8), 10: slice(8, 24)}
"""Where a ``sockaddr`` of a family has its address (10: IPv6)."""

# nua_event_t, in the order of nua.h.
_EVENTS = (
    "error invite cancel ack fork active terminated state outbound bye options refer publish prack info "
    "update message chat subscribe subscription notify method media_error set_params_response "
    "get_params_response shutdown_response notifier_response terminate_response authorize_response "
    "register_response unregister_response invite_response cancel_response bye_response options_response "
    "refer_response"
).split()
# enum nua_callstate, in the order of nua_tag.h.
_STATES = (
    "init authenticating calling proceeding completing received early completed ready terminating terminated"
).split()

_Tags: TypeAlias = dict[str, str | int]


class _Tag(ctypes.Structure):
    _fields_ = (("tag", c_void_p), ("value", c_void_p))


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", c_int), ("events", c_short), ("revents", c_short))


_OnEvent = ctypes.CFUNCTYPE(
    None, c_int, c_int, c_char_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(_Tag)
)
_OnWake = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_PollFd), c_void_p)


@dataclass(frozen=True, slots=True)
class SipEvent:
    """What the library tells about a dialog."""

    name: str
    """Of ``nua_event_t``: ``invite``, ``state``, ``notify``; with ``_response`` for those to own requests."""
    dialog: int
    """Which dialog; never 0."""
    status: int
    """Of SIP, such as 200."""
    phrase: str
    state: str = ""
    """With ``state``: of ``nua_callstate``, such as ``ready``."""
    caller: str = ""
    """The header ``From``."""
    called: str = ""
    """The header ``To``."""
    body: str = ""
    remote_sdp: str = ""
    """The body, where it is a session description."""
    source: str = ""
    """The address that a request came from."""


@dataclass(frozen=True, slots=True)
class SipAddress:
    """Where the library listens, and how it proves itself."""

    url: str
    """``sip:10.0.0.5:5060``, ``sip:10.0.0.5:5061;transport=tls``."""
    contact: str
    """The same, as peers reach it."""
    certificates: str = ""
    """Folder with ``agent.pem`` (certificate and key) and ``cafile.pem``. Empty: no TLS."""
    username: str = ""
    password: str = ""


def load_library() -> ctypes.CDLL:
    """The library, with the functions that are called declared.

    Raises:
        GatewaySettingsError: it is not installed.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise GatewaySettingsError(
            f"telephone calls by SIP need {_LIBRARY} ({error}); on Debian and Ubuntu: "
            "sudo apt-get install libsofia-sip-ua0"
        ) from error
    # Those with tags are variadic; only the arguments before the tags are declared.
    for name, result, arguments in (
        ("su_root_create", c_void_p, (c_void_p,)),
        ("su_root_threading", c_int, (c_void_p, c_int)),
        ("su_root_step", c_long, (c_void_p, c_long)),
        ("su_root_destroy", None, (c_void_p,)),
        ("su_root_register", c_int, (c_void_p, POINTER(_PollFd), _OnWake, c_void_p, c_int)),
        ("su_root_deregister", c_int, (c_void_p, c_int)),
        ("su_log_set_level", None, (c_void_p, c_uint)),
        ("su_free", None, (c_void_p, c_void_p)),
        ("nua_create", c_void_p, (c_void_p, _OnEvent, c_void_p)),
        ("nua_shutdown", None, (c_void_p,)),
        ("nua_destroy", None, (c_void_p,)),
        ("nua_handle", c_void_p, (c_void_p, c_void_p)),
        ("nua_handle_bind", None, (c_void_p, c_void_p)),
        ("nua_handle_destroy", None, (c_void_p,)),
        ("nua_respond", None, (c_void_p, c_int, c_char_p)),
        ("nua_current_request", c_void_p, (c_void_p,)),
        ("msg_addr", c_void_p, (c_void_p,)),
        ("msg_header_access", c_void_p, (c_void_p, c_void_p)),
        ("sip_header_as_string", c_void_p, (c_void_p, c_void_p)),
        *((f"nua_{method}", None, (c_void_p,)) for method in _METHODS),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for log in _LOGS:
        library.su_log_set_level(ctypes.addressof(c_char.in_dll(library, log)), 1)
    return library


_LOGS = ("su_log_default", "nua_log", "nta_log", "tport_log")
"""What the library writes to stderr: errors only, since strangers cause the rest."""
_METHODS = ("invite", "register", "unregister", "authenticate", "refer", "bye", "cancel")


def _ends_registration(event: SipEvent) -> bool:
    if event.name == "unregister_response":
        return event.status >= 200
    return event.name == "register_response" and event.status >= 300


class SofiaStack:
    """One user agent.

    Args:
        address: Where it listens.
        on_event: Called with every event, in the event loop that calls :meth:`start`.
        admit: Whether calls from an address are taken; called in the library's thread.
        limit: Dialogs at once; further calls are refused with 503.
    """

    def __init__(
        self,
        address: SipAddress,
        on_event: Callable[[SipEvent], None],
        *,
        admit: Callable[[str], bool],
        limit: int,
    ) -> None:
        self._address = address
        self._on_event = on_event
        self._admit = admit
        self._limit = limit
        self._library = load_library()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._numbers = count(1)
        # Of the library's thread alone:
        self._handles: dict[int, int] = {}
        self._authentications: dict[int, int] = {}
        self._nua = 0
        self._is_shut = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            GatewaySettingsError: the address cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        listens: asyncio.Future[bool] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(listens,), name="sip", daemon=True)
        self._thread.start()
        if not await listens:
            raise GatewaySettingsError(
                f"cannot listen on {self._address.url}: the address is not this machine's or is taken, "
                "or the certificate cannot be used"
            )

    async def close(self) -> None:
        """End all dialogs, and wait until the library has stopped."""
        if self._thread is None:
            return
        self._closing.set()
        self._do(lambda: None)
        await asyncio.to_thread(self._thread.join)
        self._wake.close()
        self._woken.close()

    # --- requests and responses; from any thread -----------------------------------------------

    def invite(self, url: str, sdp: str, *, caller: str, route: str = "") -> int:
        """Call an address; returns the dialog."""
        dialog = next(self._numbers)
        tags: _Tags = {"nutag_url": url, "siptag_to_str": f"<{url}>", "siptag_from_str": caller}
        if route:
            tags["nutag_initial_route_str"] = f"<{route};lr>"
        self._do(lambda: self._begin(dialog, "nua_invite", tags, self._session(sdp)))
        return dialog

    def register(self, registrar: str, account: str, expires_s: int) -> int:
        """Register an account, and go on doing so; returns the dialog."""
        dialog = next(self._numbers)
        tags: _Tags = {"siptag_to_str": account, "siptag_from_str": account}
        options: _Tags = {
            "nutag_registrar": registrar,
            "siptag_expires_str": str(expires_s),
            "siptag_contact_str": f"<{self._address.contact}>",
        }
        self._do(lambda: self._begin(dialog, "nua_register", tags, options))
        return dialog

    def respond(self, dialog: int, status: int, phrase: str, sdp: str = "") -> None:
        """Answer an INVITE; ``sdp`` accepts or renews the session."""
        tags: _Tags = self._session(sdp) if sdp else {}
        self._do(lambda: self._call("nua_respond", dialog, tags, status, phrase.encode()))

    def refer(self, dialog: int, target: str) -> None:
        """Ask the peer to call another address; ``notify`` events say how far it is."""
        self._do(lambda: self._call("nua_refer", dialog, {"siptag_refer_to_str": f"<{target}>"}))

    def bye(self, dialog: int) -> None:
        """Hang up."""
        self._do(lambda: self._call("nua_bye", dialog, {}))

    def cancel(self, dialog: int) -> None:
        """Give up a call that was not answered."""
        self._do(lambda: self._call("nua_cancel", dialog, {}))

    def unregister(self, dialog: int) -> None:
        """End a registration."""
        self._do(lambda: self._call("nua_unregister", dialog, {}))

    def _session(self, sdp: str) -> _Tags:
        return {
            "siptag_content_type_str": _SDP,
            "siptag_payload_str": sdp,
            "siptag_contact_str": f"<{self._address.contact}>",
        }

    def _do(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        with suppress(BlockingIOError):  # full: it is awake
            self._wake.send(b"\0")

    # --- the library's thread ------------------------------------------------------------------

    def _run(self, listens: asyncio.Future[bool]) -> None:
        library = self._library
        on_event, on_wake = _OnEvent(self._handle), _OnWake(self._wake_up)
        library.su_init()
        root = library.su_root_create(None)
        library.su_root_threading(root, 0)
        waited = _PollFd(self._woken.fileno(), 1, 0)  # POLLIN
        registration = library.su_root_register(root, ctypes.byref(waited), on_wake, None, 0)
        try:
            try:
                self._nua = library.nua_create(root, on_event, None, *self._pack(self._parameters())) or 0
            finally:
                self._loop.call_soon_threadsafe(listens.set_result, bool(self._nua))
            while self._nua and not self._closing.is_set():
                library.su_root_step(root, _STEP_MS)
            if self._nua:
                self._shut_down(root)
        finally:
            library.su_root_deregister(root, registration)
            if not self._nua:
                library.su_root_destroy(root)

    def _shut_down(self, root: int) -> None:
        """Hang up and unregister. What a peer leaves without an answer is left as it is.

        The library aborts the process (``nua_dialog_usage_remove``) where a dialog is destroyed that waits
        for an ACK and the answer to its BYE.
        """
        library, ends_s = self._library, time.monotonic() + _CLOSE_S
        for handle in self._handles.values():
            library.nua_bye(handle, *self._pack({}))
        while self._handles and time.monotonic() < ends_s:
            library.su_root_step(root, _CLOSE_STEP_MS)
        if self._handles:
            return
        library.nua_shutdown(self._nua)
        while not self._is_shut and time.monotonic() < ends_s + _CLOSE_S:
            library.su_root_step(root, _CLOSE_STEP_MS)
        if self._is_shut:
            library.nua_destroy(self._nua)
            self._nua = 0

    def _parameters(self) -> _Tags:
        address = self._address
        tags: _Tags = {
            # The library listens for TLS under `sips` only, which many peers do not know: see `_session`.
            "nutag_url": address.url.replace("sip:", "sips:", 1) if address.certificates else address.url,
            "siptag_allow_str": _ALLOW,  # in the place of the library's own
            "siptag_supported_str": "",
            "nutag_media_enable": 0,
            "ntatag_maxsize": _MOST_BYTES,
            "nutag_autoanswer": 0,
            "nutag_autoack": 1,
            "nutag_user_agent": "Parley",
        }
        if address.certificates:
            tags["nutag_certificate_dir"] = address.certificates
            tags["tptag_tls_verify_policy"] = 0xA  # outgoing: by the authority, and for the name
        return tags

    def _wake_up(self, _root: int, _waited: Any, _argument: int) -> int:
        with suppress(BlockingIOError):
            self._woken.recv(4_096)
        while not self._work.empty():
            try:
                self._work.get_nowait()()
            except Exception:  # noqa: BLE001 - it must not reach the library
                _log.exception("a request of SIP could not be made")
        return 0

    def _begin(self, dialog: int, function: str, tags: _Tags, options: _Tags) -> None:
        handle = self._library.nua_handle(self._nua, dialog, *self._pack(tags))
        if not handle:
            self._tell(SipEvent("state", dialog, 400, "the address cannot be used", state="terminated"))
            return
        self._handles[dialog] = handle
        getattr(self._library, function)(handle, *self._pack(options))

    def _call(self, function: str, dialog: int, tags: _Tags, *arguments: Any) -> None:
        if (handle := self._handles.get(dialog)) is not None:  # else it has ended meanwhile
            getattr(self._library, function)(handle, *arguments, *self._pack(tags))

    def _pack(self, tags: _Tags) -> list[Any]:
        """Tags as variadic arguments; the library copies what they point to."""
        packed: list[Any] = []
        for name, value in tags.items():
            packed.append(c_void_p(self._address_of(name)))
            packed.append(c_char_p(value.encode()) if isinstance(value, str) else c_ssize_t(value))
        return [*packed, c_void_p(0), c_void_p(0)]

    def _address_of(self, name: str) -> int:
        return ctypes.addressof(c_char.in_dll(self._library, name))

    def _handle(  # noqa: PLR0917 - the library's
        self,
        number: int,
        status: int,
        phrase: bytes | None,
        _nua: int,
        _magic: int,
        handle: int | None,
        dialog: int | None,
        sip: int | None,
        tags: Any,
    ) -> None:
        """Every event of the library; an exception must not reach it."""
        try:
            name = _EVENTS[number] if number < len(_EVENTS) else "other"
            if name == "shutdown_response":
                self._is_shut = status >= 200
            elif handle:
                event = self._read(name, status, phrase, dialog or 0, sip, tags)
                self._on_handle(handle, event, sip)
        except Exception:  # noqa: BLE001
            _log.exception("an event of SIP could not be handled")

    def _on_handle(self, handle: int, event: SipEvent, sip: int | None) -> None:
        if not event.dialog:
            if event.name == "invite":
                self._on_invite(handle, event)
            elif event.name != "state":  # of a call that was refused
                self._library.nua_handle_destroy(handle)
            return
        if event.status in (401, 407) and event.name.endswith("_response"):
            if self._authenticate(event, sip):
                return
            if event.name == "invite_response":  # the library goes on waiting for credentials
                event = replace(event, name="state", state="terminated")
        if event.status // 100 == 2:
            self._authentications.pop(event.dialog, None)
        self._tell(event)
        if event.state == "terminated" or _ends_registration(event):
            self._handles.pop(event.dialog, None)
            self._authentications.pop(event.dialog, None)
            self._library.nua_handle_destroy(handle)

    def _on_invite(self, handle: int, event: SipEvent) -> None:
        """A new call: refused here already where its address is not allowed, before it costs more."""
        refusal = None
        if not self._admit(event.source):
            refusal = (403, b"Forbidden")
            _log.warning("a call from %s is refused: the address is not in sip.allow", event.source)
        elif len(self._handles) >= self._limit:
            refusal = (503, b"Too many calls")
        if refusal is not None:
            self._library.nua_respond(handle, *refusal, *self._pack({}))
            self._library.nua_handle_destroy(handle)
            return
        dialog = next(self._numbers)
        self._handles[dialog] = handle
        self._library.nua_handle_bind(handle, dialog)
        self._tell(replace(event, dialog=dialog))

    def _authenticate(self, event: SipEvent, sip: int | None) -> bool:
        """Send the request again with the password; False: there is none, or it was refused."""
        tried = self._authentications.get(event.dialog, 0)
        self._authentications[event.dialog] = tried + 1
        challenge = self._header(sip, "www_authenticate") or self._header(sip, "proxy_authenticate")
        _, found, rest = challenge.partition('realm="')
        if not found or not self._address.username or tried >= _MOST_AUTHENTICATIONS:
            return False
        address, realm = self._address, rest.partition('"')[0]
        credentials = f'Digest:"{realm}":{address.username}:{address.password}'
        self._call("nua_authenticate", event.dialog, {"nutag_auth": credentials})
        return True

    def _tell(self, event: SipEvent) -> None:
        self._loop.call_soon_threadsafe(self._on_event, event)

    def _read(  # noqa: PLR0917
        self, name: str, status: int, phrase: bytes | None, dialog: int, sip: int | None, tags: Any
    ) -> SipEvent:
        state = self._find(tags, "nutag_callstate") if name == "state" else None
        body = self._header(sip, "payload", _MOST_BYTES)
        return SipEvent(
            name=name,
            dialog=dialog,
            status=407 if status == _REFUSED_CREDENTIALS else status,
            phrase=(phrase or b"").decode(errors="replace"),
            state="" if state is None else _STATES[state],
            caller=self._header(sip, "from"),
            called=self._header(sip, "to"),
            body=body,
            remote_sdp=body if self._header(sip, "content_type").lower().startswith(_SDP) else "",
            source=self._source() if name == "invite" else "",
        )

    def _find(self, tags: Any, name: str) -> int | None:
        wanted, at = self._address_of(name), 0
        while tags and tags[at].tag:
            if tags[at].tag == wanted:
                return tags[at].value or 0
            at += 1
        return None

    def _header(self, sip: int | None, name: str, most_chars: int = _MOST_CHARS) -> str:
        """The first header of a kind; empty: there is none."""
        library = self._library
        if not sip or not (header := library.msg_header_access(sip, self._address_of(f"sip_{name}_class"))):
            return ""
        if not (text := library.sip_header_as_string(None, header)):
            return ""
        try:
            return ctypes.string_at(text).decode(errors="replace")[:most_chars]
        finally:
            library.su_free(None, text)

    def _source(self) -> str:
        message = self._library.nua_current_request(self._nua)
        if not message or not (address := self._library.msg_addr(message)):
            return ""
        raw = ctypes.string_at(address, 28)
        place = _NETWORKS.get(int.from_bytes(raw[:2], sys.byteorder))
        return "" if place is None else str(ipaddress.ip_address(raw[place]))
