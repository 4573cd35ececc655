"""What becomes of a probe's answer, of a failure and of a crash."""

from __future__ import annotations

import asyncio

import pytest
from triton_check import probes
from triton_check.cli import main
from triton_check.probes import PROBES, Answer, Probe, lock_header, run

from parley.errors import ModelUnavailableError, ParleyError


class Server:
    """A server that crashes, does not start, or does neither."""

    address = "127.0.0.1:9"

    def __init__(self, *, crashes=False, starts=True):
        self.crashes = crashes
        self.starts = starts
        self.stopped = 0

    def start(self):
        if not self.starts:
            raise ParleyError("tritonserver did not become ready: no memory")

    def has_ended(self):
        return self.crashes

    def stop(self):
        self.stopped += 1


def ask(answer, server, *, is_workaround=False, rounds=1, least=0):
    async def probe(asked):
        if isinstance(answer, Answer):
            return answer
        if callable(answer):
            return Answer(True, answer(asked))
        if answer is None:
            await asyncio.sleep(60)
        raise answer

    with asyncio.Runner() as runner:
        return run(Probe("one", "a reason", probe, is_workaround, least), server, rounds, runner)


@pytest.mark.parametrize(
    ("is_workaround", "works"), [(False, True), (False, False), (True, True), (True, False)]
)
def test_what_is_relied_on_holds_and_what_is_avoided_is_needed(is_workaround, works):
    server = Server()
    found = ask(Answer(works, "seen"), server, is_workaround=is_workaround)
    verdicts = {
        (False, True): "holds",
        (False, False): "broken",
        (True, True): "not seen",
        (True, False): "needed",
    }
    assert (found.verdict, found.detail) == (verdicts[is_workaround, works], "seen")
    assert server.stopped == (not works), "the next probe gets a server of its own"


@pytest.mark.parametrize(
    ("works", "rounds", "verdict"),
    [(True, 299, "undecided"), (True, 300, "not seen"), (False, 20, "needed")],
)
def test_a_fault_of_timing_is_absent_only_after_enough_rounds(works, rounds, verdict):
    found = ask(Answer(works, "seen"), Server(), is_workaround=True, rounds=rounds, least=300)
    assert found.verdict == verdict


def test_the_header_of_the_lock_is_read_from_the_flag():
    assert lock_header("--grpc-restricted-protocol=a,b:locked:has-no-key=none") == (
        "locked:has-no-key",
        "none",
    )


def test_an_error_is_an_answer():
    found = ask(ModelUnavailableError("no such model"), Server())
    assert (found.verdict, found.detail) == ("broken", "no such model")


def test_a_probe_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(probes, "_LIMIT_S", 0.01)
    monkeypatch.setattr(probes, "_ROUND_S", 0.01)
    assert ask(None, Server(), is_workaround=True).verdict == "needed"


def test_the_limit_grows_with_the_rounds():
    """500 rounds take about two minutes with a Triton that is well."""
    limits = [float(ask(lambda asked: str(asked.limit_s), Server(), rounds=n).detail) for n in (1, 500)]
    assert limits == [61.0, 560.0]


@pytest.mark.parametrize("rounds", ["0", "-3", "many", "1.5"])
def test_rounds_that_prove_nothing_are_refused(rounds, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--rounds", rounds])
    assert "--rounds: a whole number above 0 expected" in capsys.readouterr().err


def test_a_crash_counts_more_than_an_answer():
    found = ask(Answer(True, "all well"), Server(crashes=True))
    assert (found.verdict, found.detail) == ("broken", "tritonserver has ended; all well")


def test_a_server_that_does_not_start_again_is_an_answer():
    assert "no memory" in ask(Answer(True, ""), Server(starts=False)).detail


def test_names_are_unique():
    assert len({probe.name for probe in PROBES}) == len(PROBES)
