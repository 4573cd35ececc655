"""What logs may hold."""

import io
import json
import logging

import pytest

from parley.logs import MAX_LINE_BYTES
from parley_gateway.security.audit import (
    GatewayJsonFormatter,
    LogFormatter,
    audit,
    redact,
    redact_cut,
    write_audit_to,
)
from parley_gateway.security.keys import new_key
from parley_gateway.security.principal import ANONYMOUS, Principal
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
        ("WS /v1/realtime?session_id=sess_0123456789abcdefABCDE", "0123456789abcdefABCDE"),
        ("Sec-WebSocket-Protocol: token, 0123456789abcdef0123", "0123456789abcdef0123"),
        ("realtime, openai-insecure-api-key.0123456789abcdef0123", "0123456789abcdef0123"),
    ],
    # Keys and tokens are others in each process; names of tests are not.
    ids=["key", "authorization", "token", "api_key", "query", "session", "protocol", "openai"],
)
def test_secrets_are_cut_out(text, secret):
    assert secret not in redact(text)
    assert redact(text)[:3] == text[:3]


def test_the_id_of_a_key_may_be_seen():
    assert redact(KEY) == KEY[: KEY.index("_", 7) + 1] + "…"


def test_other_text_stays():
    text = "10.0.0.1 - GET /v1/sessions/2f6f1c1e-3a52-4c57-9c39-2d8a9dd3a3f4/status 200 (a token is needed)"
    assert redact(text) == text


@pytest.fixture
def written():
    """What a handler with the formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter())
    logger = logging.getLogger("test_logs")
    logger.addHandler(handler)
    yield stream.getvalue
    logger.removeHandler(handler)


def test_a_handler_with_the_formatter_writes_no_secrets(written):
    logging.getLogger("test_logs").warning("refused %s of %d", KEY, 7)
    assert written().endswith(f" WARNING test_logs: refused {redact(KEY)} of 7\n")


def test_tracebacks_and_stacks_hold_no_secrets_either(written):
    def fail():
        error = ValueError(f"bad {KEY}")
        error.add_note(f"token={KEY}")
        raise error

    try:
        try:
            fail()
        except ValueError as cause:
            raise OSError(f"Bearer {TOKEN}") from cause
    except OSError:
        logging.getLogger("test_logs").exception("failed", stack_info=True)
    assert "Traceback" in written()
    assert "Stack (most recent call last)" in written()
    for secret in (KEY.split("_", 2)[2], TOKEN.rsplit(".", 1)[1]):
        assert secret not in written()


def test_a_traceback_that_another_handler_has_formatted_holds_no_secrets_either(written):
    record = logging.LogRecord("test_logs", logging.ERROR, "x.py", 1, "failed", (), None)
    record.exc_text = f"ValueError: {KEY}"
    logging.getLogger("test_logs").handle(record)
    assert KEY.split("_", 2)[2] not in written()


CONTROLS = [
    "\x00", "\x07", "\x08", "\t", "\n", "\x0b", "\r", "\x1b", "\x7f", "\x80", "\x85", "\x9b", "\x9f",
    "\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\ufeff",
]  # fmt: skip


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_control_characters_are_escaped(written, control):
    logging.getLogger("test_logs").warning("path %s", f"a{control}b")
    (line,) = written().split("\n")[:-1]
    assert control not in line
    assert "path a\\" in line


def test_half_of_a_surrogate_pair_is_escaped():
    # Not logged: pytest passes what is logged on between its processes, which is not possible with this.
    record = logging.LogRecord("test_logs", logging.WARNING, "x.py", 1, "path %s", ("a\ud800b",), None)
    line = LogFormatter().format(record)
    assert "path a\\" in line
    assert line.encode()


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_the_message_of_an_exception_forges_no_line(written, control):
    error = ValueError(f"x{control}2026-01-01 00:00:00,000 INFO parley: forged")
    logging.getLogger("test_logs").error("failed", exc_info=error)
    first, *others = written().removesuffix("\n").split("\n")
    assert first.endswith("failed")
    assert all(line.startswith("  ") for line in others)
    assert control == "\n" or control not in written().replace("\n", "")


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_an_audit_line_is_one_line_of_json(monkeypatch, control):
    messages = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: messages.append(record.getMessage()))
    logger = logging.getLogger("parley.audit")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel(logging.INFO)
    audit("refused", None, path=f"/v1/{control}x")
    (message,) = messages
    assert control not in message
    assert json.loads(message)["path"] in (f"/v1/{control}x", f"/v1/\\u{ord(control):04x}x")


def test_a_long_message_and_a_long_traceback_are_cut(written):
    error = ValueError("x" * 1_000_000 + "the end")
    logging.getLogger("test_logs").error("y" * 1_000_000, exc_info=error)
    assert len(written()) < 50_000
    assert "the end" in written()


@pytest.mark.parametrize(
    "secret", [KEY, TOKEN, f"Bearer {'0123456789abcdef' * 4}"], ids=["key", "token", "bearer"]
)
def test_a_cut_leaves_no_part_of_a_secret(secret):
    hidden = secret.removeprefix(redact(secret).removesuffix("…"))
    pieces = [hidden[at : at + 6] for at in range(len(hidden) - 5)]
    for before in range(120):
        cut = redact_cut("key=abcdefghij&" + "/" * before + secret + "x" * 200, 100)
        assert len(cut) <= 100
        assert not [piece for piece in (*pieces, "abcdef") if piece in cut]


@pytest.mark.parametrize(
    "secret",
    [KEY, TOKEN, f"Bearer ,, {'0123456789abcdef' * 4}", f"ey{'Jabcde' * 2_000}"],
    ids=["key", "token", "bearer", "jwt"],
)
def test_no_part_of_a_secret_stays_where_a_traceback_is_cut(written, secret):
    hidden = secret.removeprefix(redact(secret).removesuffix("…"))
    pieces = {hidden[at : at + 6] for at in range(len(hidden) - 5)}
    record = logging.LogRecord("test_logs", logging.ERROR, "x.py", 1, "failed", (), None)
    for before in range(1, len(secret), 1 + len(secret) // 100):
        shown = "/" * (16_384 - before)
        record.exc_text = f"{shown}{secret}{'/' * 40_000}{secret}{shown} the end"
        logging.getLogger("test_logs").handle(record)
    text = written()
    assert "characters are left out" in text
    assert "the end" in text
    assert not [piece for piece in pieces if piece in text]


def test_the_end_of_a_traceback_is_whole(written):
    record = logging.LogRecord("test_logs", logging.ERROR, "x.py", 1, "failed", (), None)
    record.exc_text = "/" * 100_000 + f"{KEY} " + "ab " * 5_000 + "the end"
    logging.getLogger("test_logs").handle(record)
    assert written().endswith(f"/{redact(KEY)} {'ab ' * 5_000}the end\n")


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


def test_json_lines_have_no_secrets():
    message = f"refused {KEY} of {TOKEN}"
    error = ValueError(f"Bearer {TOKEN}" + " and more" * 2_000 + f" Bearer {TOKEN}")
    failure = (ValueError, error, None)
    record = logging.LogRecord("parley.gateway", logging.ERROR, __file__, 1, message, (), failure)
    line = GatewayJsonFormatter().format(record)
    assert KEY.split("_", 2)[2] not in line
    assert TOKEN.rsplit(".", 1)[1] not in line
    said = json.loads(line)
    assert (said["source"], said["level"]) == ("gateway", "error")
    assert said["message"] == redact(message)
    assert said["exception"].startswith("ValueError: Bearer")


def test_json_lines_of_secrets_and_escapes_fit_into_one_write():
    error = ValueError(f"\x1b Bearer {TOKEN}\n" * 2_000)
    record = logging.LogRecord(
        "parley.gateway", logging.ERROR, __file__, 1, "\x1b" * 9_000, (), (ValueError, error, None)
    )
    line = GatewayJsonFormatter().format(record)
    assert len(line) < MAX_LINE_BYTES
    assert TOKEN.rsplit(".", 1)[1] not in line
    assert json.loads(line)["exception"].startswith("ValueError: ")
