"""``parley gateway keys``."""

import pytest

from parley_client.cli import main
from parley_gateway.security.keys import KeyRing, read_keys
from parley_gateway.security.watched import WatchedFile


def test_a_new_key_is_shown_once_and_its_line_can_be_appended(tmp_path, capsys):
    assert main(["gateway", "keys", "new", "--name", "kiosk", "--scope", "agent", "--days", "30"]) == 0
    shown = capsys.readouterr()
    file = tmp_path / "keys.toml"
    file.write_text(shown.out)
    key = shown.err.strip().rpartition(" ")[2]
    principal = KeyRing(WatchedFile(file, read_keys)).verify(key)
    assert principal.scopes == {"agent"}
    (entry,) = read_keys(shown.out.encode()).values()
    assert entry.name == "kiosk"
    assert entry.expires is not None
    assert key not in shown.out


def test_a_key_may_do_everything_but_administrate_by_default(capsys):
    assert main(["gateway", "keys", "new"]) == 0
    (entry,) = read_keys(capsys.readouterr().out.encode()).values()
    assert entry.scopes == {"agent", "transcribe", "speak", "chat"}
    assert entry.expires is None


@pytest.mark.parametrize("days", ["0", "-1", "x", "1e9"])
def test_days_have_to_be_a_number(capsys, days):
    with pytest.raises(SystemExit):
        main(["gateway", "keys", "new", "--days", days])
    assert "number of days" in capsys.readouterr().err
