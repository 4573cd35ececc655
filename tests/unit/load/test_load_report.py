"""What locust has written, and the command that makes it write."""

import pytest
from load import cli
from load.report import read_report, tables
from load.state import LostError, NoAnswerError, RefusedError
from rich.console import Console

STATS = "Type,Name,Request Count,Failure Count,Median Response Time,Max Response Time,50%,95%,99%"
FAILURES = "Method,Name,Error,Occurrences,First Seen,Last Seen"
EXCEPTIONS = "Count,Message,Traceback,Nodes"


@pytest.fixture
def written(tmp_path):
    def write(stats=(), failures=(), exceptions=()):
        for name, head, lines in (
            ("stats", STATS, stats),
            ("failures", FAILURES, failures),
            ("exceptions", EXCEPTIONS, exceptions),
        ):
            (tmp_path / f"load_{name}.csv").write_text("\n".join([head, *lines]) + "\n")
        return read_report(tmp_path)

    return write


CALLS = (
    "grpc,call,12,2,41000,60123.4,41000,60000,60000",
    "websocket,call,8,0,40000,50000.0,40000,50000,50000",
    "websocket,first audio,30,1,410.0,1234.5,410,1100,1200",
    "grpc,error,1,1,0,0,N/A,N/A,N/A",
    ",Aggregated,51,4,0,0,1,2,3",
)


def test_lost_and_refused_calls_are_counted(written):
    report = written(
        CALLS,
        [
            f'grpc,call,"{LostError("idle")!r}",1,,',
            f'grpc,call,"{RefusedError("too_many_sessions")!r}",1,,',
            f'websocket,first audio,"{NoAnswerError("no answer")!r}",1,,',
        ],
    )
    assert (report.calls, report.lost, report.refused) == (20, 1, 1)
    assert report.problem == "1 calls were lost"
    assert [(one.kind, one.text) for one in report.failures][:2] == [
        ("LostError", "idle"),
        ("RefusedError", "too_many_sessions"),
    ]


def test_refused_calls_and_missing_answers_fail_no_run(written):
    report = written(CALLS, [f'grpc,call,"{RefusedError("overloaded")!r}",2,,'])
    assert report.problem == ""


def test_a_run_without_calls_or_with_a_broken_driver_fails(written):
    assert written().problem == "no call ended"
    refused = [f'grpc,call,"{RefusedError("model_unavailable")!r}",20,,']
    assert written(CALLS, refused).problem == "no call was accepted"
    assert "division by zero" in written(CALLS, (), ["1,division by zero,…,node"]).problem


def test_the_table_has_every_row_and_the_errors(written):
    report = written(CALLS, [f'grpc,call,"{LostError("idle")!r}",2,,'])
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        for table in tables(report):
            console.print(table)
    text = capture.get()
    assert "Aggregated" not in text
    for words in (
        ("first audio", "websocket", "30", "410", "1100"),
        ("call", "grpc", "LostError", "idle", "2"),
    ):
        assert any(all(word in line for word in words) for line in text.splitlines())


def command(*argv, **addresses):
    return cli.locust_command(cli.parse(argv), addresses or {"grpc": "h:1", "websocket": "http://h:2"}, 5_000)


def option(found, name):
    return found[found.index(name) + 1]


def test_users_are_given_to_both_kinds_of_callers():
    found = command("--users", "10", "--minutes", "0.5")
    assert option(found, "--users") == "10"
    assert option(found, "--minutes") == "0.5"
    assert found[-2:] == ["GrpcCaller", "WebSocketCaller"]
    assert (option(found, "--server"), option(found, "--gateway")) == ("h:1", "http://h:2")
    assert "--cancel-streams" not in found


def test_with_a_rate_every_worker_has_one_source_of_each_kind():
    found = command("--arrivals-per-minute", "30", "--workers", "3", "--users", "100")
    assert option(found, "--users") == "6"
    assert option(found, "--arrivals-per-minute") == "30.0"


def test_one_kind_of_callers_alone():
    found = command("--cancel-streams", grpc="h:1")
    assert found[-1] == "GrpcCaller"
    assert "--gateway" not in found
    assert "--cancel-streams" in found


def test_what_is_said_depends_on_the_profile():
    assert option(command(), "--recordings").endswith("tests/data/conversation")
    assert option(command("--profile", "open"), "--recordings").endswith("tests/data/open_conversation")
    mine = str(cli.ROOT / "tests" / "data" / "open_conversation")
    assert option(command("--recordings", mine), "--recordings") == mine


@pytest.mark.parametrize(
    "wrong",
    [
        ["--users", "0"],
        ["--minutes", "0"],
        ["--workers", "0"],
        ["--turns", "5-2"],
        ["--turns", "many"],
        ["--vanish", "2"],
        ["--arrivals-per-minute", "-1"],
        ["--only", "grpc", "--gateway", "http://h:2"],
        ["--recordings", "/nonexistent"],
    ],
)
def test_wrong_options_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.parse(wrong)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
