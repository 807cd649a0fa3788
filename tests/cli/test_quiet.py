"""`--quiet`: nothing where all went well; where not, all there is to say, on stderr. Cron mails what is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Typed
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup

Type = Callable[..., Typed]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repository: Repository = make_repository(LocalStore(tmp_path / "repo"))
    store_backup(repository, FIRST)
    store_backup(repository, SECOND, count=80)
    return tmp_path / "repo"


def _damage(repo: Path) -> None:
    segment = sorted(repo.glob("segments/*/*"))[0]
    segment.chmod(0o600)
    segment.write_bytes(b"x" + segment.read_bytes()[1:])


def test_nothing_is_said_where_all_went_well(repo: Path, typed: Type) -> None:
    for line in (["verify"], ["status"], ["forget", "--keep-last", "2"], ["list"], ["diff", FIRST, FIRST]):
        assert typed(*line, "-q", "-r", repo) == Typed(0, "", "")


def _untimed(text: str) -> str:
    return re.sub(r"\d\d:\d\d:\d\dZ", "00:00:00Z", re.sub(r"\d+\.\d s", "0.0 s", text))


def test_damage_is_told_on_stderr(repo: Path, typed: Type) -> None:
    _damage(repo)
    loud, quiet = typed("verify", "-r", repo), typed("verify", "-q", "-r", repo)
    assert (quiet.code, quiet.out) == (14, "")
    assert "SHA-256 differs" in quiet.err
    assert _untimed(quiet.err) == _untimed(loud.out)


def test_a_breach_is_told_on_stderr(repo: Path, typed: Type) -> None:
    told = typed("status", "-q", "--min-backups", "30", "-r", repo)
    assert (told.code, told.out) == (17, "")
    assert "BREACH      few-backups: found 2 complete backups; at least 30 required" in told.err


def test_what_cannot_be_written_beside_a_result_is_told(repo: Path, typed: Type) -> None:
    told = typed("status", "-q", "--push", "http://127.0.0.1:1", "-r", repo)
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("error: cannot push metrics to http://127.0.0.1:1/")


def test_a_document_is_printed_as_ever(repo: Path, typed: Type) -> None:
    told = typed("status", "-q", "--json", "--min-backups", "30", "-r", repo)
    assert told.code == 17 and told.err == ""
    assert json.loads(told.out)["breaches"][0]["rule"] == "few-backups"


def test_lines_of_the_log_stay_json(repo: Path, typed: Type) -> None:
    told = typed("status", "-q", "--log-format", "json", "--min-backups", "30", "-r", repo)
    assert (told.code, told.out) == (17, "")
    entries = [json.loads(line) for line in told.err.splitlines()]
    assert {entry["level"] for entry in entries} == {"error"}
    assert any(entry["message"].startswith("BREACH ") for entry in entries)


def test_each_profile_tells_of_itself_only(repo: Path, tmp_path: Path, typed: Type) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[defaults]\nrepo = "{repo}"\n[profiles.good]\n[profiles.bad.status]\nmin-backups = 30\n')
    told = typed("status", "-q", "--config", config, "--profile", "good", "--profile", "bad")
    assert (told.code, told.out) == (17, "")
    assert told.err.startswith("profile bad\nrepository ") and "profile good" not in told.err


def test_that_two_backups_differ_is_an_answer_and_nothing_wrong(repo: Path, typed: Type) -> None:
    assert typed("diff", "-q", FIRST, SECOND, "-r", repo) == Typed(1, "", "")
