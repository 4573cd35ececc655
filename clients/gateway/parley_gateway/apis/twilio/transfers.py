"""Transfers: how a call goes on whose stream the agent has ended, as TwiML.

The stream and the webhook that Twilio calls after it are connections of their own, which may reach two
gateways. What the agent wants stays at the one that had the stream, by the call's id (``CallSid``), which the
webhook's signature covers. The summary for the person who is called goes through Twilio, encrypted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from parley.protocol import Transfer
from parley_gateway.apis.twilio.signature import TwilioSignatures

XML = '<?xml version="1.0" encoding="UTF-8"?>'
ENDED = "/v1/twilio/ended"
WHISPER = "/v1/twilio/whisper"
DIALLED = "/v1/twilio/dialled"
HANGUP = f"{XML}<Response><Hangup/></Response>"
"""TwiML that ends a call."""
_CONNECTED = ("completed", "answered")
_MAX_SUMMARY_BYTES = 1_500
"""Of a summary that is in an URL, which Twilio limits to some thousand characters."""
_SPOKEN = {
    "da": "da-DK",
    "de": "de-DE",
    "es": "es-ES",
    "fr": "fr-FR",
    "it": "it-IT",
    "nl": "nl-NL",
    "pl": "pl-PL",
    "pt": "pt-PT",
    "sv": "sv-SE",
}
"""Twilio's names of languages that have no region here."""


class Transfers:
    """The TwiML of transfers that Twilio has not asked for yet.

    Each is owned by the request that has served the call's stream, so there are no more than streams.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, asyncio.Event]] = {}

    @contextmanager
    def offer(self, call_sid: str, twiml: str) -> Iterator[asyncio.Event]:
        """Keep the TwiML of a call; the event is set when it was taken."""
        taken = asyncio.Event()
        offered = self._waiting[call_sid] = (twiml, taken)
        try:
            yield taken
        finally:
            if self._waiting.get(call_sid) is offered:
                del self._waiting[call_sid]

    def take(self, call_sid: str) -> str | None:
        """The TwiML of a call, once; None: there is none here."""
        twiml, taken = self._waiting.pop(call_sid, (None, None))
        if taken is not None:
            taken.set()
        return twiml


def dial(transfer: Transfer, signatures: TwilioSignatures) -> str:
    """TwiML that connects a call with the target, which has a number or an address."""
    noun = "Number" if transfer.to.startswith("+") else "Sip"
    url = ""
    if transfer.warm and transfer.summary:
        # XML has no place for control characters, which a language model may write.
        printable = "".join(char for char in " ".join(transfer.summary.split()) if char.isprintable())
        summary = printable.encode()[:_MAX_SUMMARY_BYTES].decode(errors="ignore")
        sealed = signatures.seal(f"{transfer.language}\n{summary}")
        url = f" url={quoteattr(f'{signatures.base_url}{WHISPER}?text={quote(sealed)}')}"
    action = quoteattr(signatures.base_url + DIALLED)
    return (
        f"{XML}<Response><Dial action={action}><{noun}{url}>{escape(transfer.to)}</{noun}></Dial></Response>"
    )


def after_dial(status: str, voice_url: str) -> str:
    """TwiML after a transfer with this ``DialCallStatus``: a caller whom no person answers gets the agent."""
    if status in _CONNECTED:
        return HANGUP
    return f"{XML}<Response><Redirect>{escape(voice_url)}</Redirect></Response>"


def whisper(sealed: str, signatures: TwilioSignatures) -> str:
    """TwiML that speaks a summary to the person who is called; raises UnauthorizedError."""
    language, _, summary = signatures.unseal(sealed).partition("\n")
    spoken = language if "-" in language else _SPOKEN.get(language, "en-US")
    return f"{XML}<Response><Say language={quoteattr(spoken)}>{escape(summary)}</Say></Response>"
