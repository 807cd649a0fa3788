"""What the keys at hand cannot read is refused once, before, and by the plan too (point 10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.repository.crypto import age
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, count, delete, fill, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

ME = age.age_identity(bytes(range(32)))


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


def test_a_plan_and_a_restore_are_refused_once_where_the_keys_cannot_read(typed: Type, tmp_path: Path) -> None:
    repo, writer, identity = tmp_path / "repo", tmp_path / "writer.key", tmp_path / "my.key"
    assert ME.recipient is not None
    identity.write_text(f"{ME.text}\n")
    assert typed("init", "-r", repo, "--encrypt-to", ME.recipient.label, "--writer-key", writer).code == 0
    with NatsServer(NEWEST, name="C1") as server:
        for name in ("A", "B", "C"):
            fill(server.url, name, 5)
        where = ("-s", server.url, "-r", repo, "--writer-key", writer)
        assert typed("backup", *where, "-q").code == 0
        delete(server.url, *names(server.url))

        planned = typed("plan", "latest", *where, "-o", tmp_path / "plan.json", "--json")
        assert planned.code == 12
        (refusal,) = planned.document["refusals"]
        assert (refusal["rule"], refusal["code"]) == ("key-missing", 12)
        assert "encrypted" in refusal["reason"] and "--identity" in refusal["hint"]
        assert not (tmp_path / "plan.json").exists()
        for more in ((), ("--partial",), ("--subject", "A.*", "--exclude", "B", "--exclude", "C"), ("--until", "3")):
            done = typed("restore", "latest", *where, *more)
            assert (done.code, done.out) == (12, "")
            assert done.err.count("no key that reads them was given") == 1 and "--identity" in done.err
        (runbook := tmp_path / "runbook.toml").write_text('[[restore]]\nbackup = "latest"\n')
        for command in ("plan", "restore"):
            assert typed(command, "--runbook", runbook, *where).code == 12
        assert names(server.url) == []

        able = (*where, "--identity", identity)
        assert typed("plan", "latest", *able).code == 0
        assert typed("restore", "latest", *able, "-q").code == 0
        assert count(server.url, "A") == 5
