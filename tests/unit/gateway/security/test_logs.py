"""What logs may hold."""

import io
import json
import logging

import pytest

from parley_gateway.security.audit import audit, write_audit_to
from parley_gateway.security.keys import new_key
from parley_gateway.security.principal import ANONYMOUS, Principal
from parley_gateway.security.redaction import RedactingFilter, redact
from parley_gateway.security.tokens import SessionTokens

KEY = new_key("x", ["agent"]).secret
TOKEN = SessionTokens(b"x" * 32).issue(ANONYMOUS, ttl_s=60, scopes=["agent"]).token


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"key {KEY} was refused", KEY.split("_", 2)[2]),
        (f"Authorization: Bearer {TOKEN}", TOKEN.rsplit(".", 1)[1]),
        (f"token {TOKEN.removeprefix('ek_')}", TOKEN.rsplit(".", 1)[1]),
        ('"GET /v1/listen?model=x&api_key=s3cret&y=1 HTTP/1.1"', "s3cret"),
        ("GET /v1/listen?token=s3cret", "s3cret"),
        ("Sec-WebSocket-Protocol: token, 0123456789abcdef0123", "0123456789abcdef0123"),
        ("realtime, openai-insecure-api-key.0123456789abcdef0123", "0123456789abcdef0123"),
    ],
)
def test_secrets_are_cut_out(text, secret):
    assert secret not in redact(text)
    assert redact(text)[:3] == text[:3]


def test_the_id_of_a_key_may_be_seen():
    assert redact(KEY) == KEY[: KEY.index("_", 7) + 1] + "…"


def test_other_text_stays():
    text = "10.0.0.1 - GET /v1/sessions/2f6f1c1e-3a52-4c57-9c39-2d8a9dd3a3f4/status 200 (a token is needed)"
    assert redact(text) == text


def test_a_handler_with_the_filter_writes_no_secrets():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("test_logs")
    logger.addHandler(handler)
    logger.warning("refused %s of %d", KEY, 7)
    logger.removeHandler(handler)
    assert stream.getvalue() == f"refused {redact(KEY)} of 7\n"


def test_the_audit_log_is_a_file_of_json_lines(tmp_path):
    handler = write_audit_to(str(tmp_path / "audit.jsonl"))
    try:
        audit(
            "session_opened",
            Principal(id="k1", scopes=frozenset()),
            session="s-1",
            note=KEY,
            long="x" * 1_000,
        )
        audit("refused", None, code="unauthorized", seconds=1.5)
    finally:
        logging.getLogger("parley.audit").removeHandler(handler)
        logging.getLogger("parley.audit").propagate = True
        handler.close()
    first, second = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert (first["event"], first["who"], first["session"]) == ("session_opened", "k1", "s-1")
    assert KEY not in first["note"]
    assert len(first["long"]) == 200
    assert (second["who"], second["seconds"]) == (None, 1.5)
    assert first["at"] > 1_700_000_000
