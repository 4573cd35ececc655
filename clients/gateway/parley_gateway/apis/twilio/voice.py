"""What Twilio is told to do with a call: TwiML."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

XML = '<?xml version="1.0" encoding="UTF-8"?>'
BUSY = f'{XML}<Response><Reject reason="busy"/></Response>'
"""No further call can be taken."""


NONCE = "nonce"
"""The ``<Parameter>`` that lets one stream begin."""


def connect_to(stream_url: str, nonce: str) -> str:
    """Connect the call with a stream, both ways; when that ends, so does the call."""
    parameter = f"<Parameter name={quoteattr(NONCE)} value={quoteattr(nonce)}/>"
    stream = f"<Stream url={quoteattr(stream_url)}>{parameter}</Stream>"
    return f"{XML}<Response><Connect>{stream}</Connect></Response>"
