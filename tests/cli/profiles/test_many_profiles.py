"""One command for several profiles: each on its own, one document, one exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_json import check
from tests.cli.typed import Shop, Typed

Type = Callable[..., Typed]


@pytest.mark.nats
def test_several_accounts_are_backed_up_in_one_run(shop: Shop, typed: Type, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
        [defaults.backup]
        streams = ["ORDERS"]
        [profiles.a]
        repo = "{tmp_path / "a"}"
        server = "{shop.url}"
        [profiles.b]
        repo = "{tmp_path / "b"}"
        server = "{shop.url}"
        [profiles.b.backup]
        exclude = ["x"]
        config-only = true
        [profiles.away]
        repo = "{tmp_path / "c"}"
        server = "nats://127.0.0.1:1"
        [profiles.wrong]
        rpo = "x"
        """
    )
    line = ["backup", "--config", config, "--profile", "a", "--profile", "b", "--profile", "a"]
    both = typed(*line, "--json")
    assert both.code == 0
    first, second = check("profiles", both)["profiles"]
    assert (first["profile"], first["code"], first["error"]) == ("a", 0, None)
    assert [stream["archive_format"] for stream in first["result"]["streams"]] != ["config"]
    assert [stream["archive_format"] for stream in second["result"]["streams"]] == ["config"]
    for folder, outcome in (("a", first), ("b", second)):
        assert (
            typed("list", "-r", tmp_path / folder, "--json").document["backups"][0]["backup"]
            == (outcome["result"]["backup"])
        )

    text = typed(*line)
    lines = text.out.splitlines()
    assert text.code == 0
    assert [one for one in lines if one.startswith("profile")] == ["profile a", "profile b"]
    assert lines[-1] == "2 profiles: a done, b done"
    assert typed(*line, "-q").out == ""

    mixed = [
        "--config",
        config,
        "--json",
        "backup",
        *(w for p in ("away", "a", "wrong", "no") for w in ("--profile", p)),
    ]
    done = typed(*mixed)
    assert done.code == 3
    outcomes = check("profiles", Typed(0, done.out, done.err))["profiles"]
    assert [(one["profile"], one["code"], one["result"] is None) for one in outcomes] == [
        ("away", 20, True),
        ("a", 0, False),
        ("wrong", 2, True),
        ("no", 2, True),
    ]
    assert "unknown key 'rpo'" in outcomes[2]["error"]["message"]
    told = typed(*(word for word in mixed if word != "--json"))
    assert told.code == 3
    assert told.out.splitlines()[-1] == (
        "4 profiles: away failed (exit code 20), a done, wrong failed (exit code 2), no failed (exit code 2)"
    )
    assert "error: profile away: cannot connect" in told.err

    verified = typed("verify", "--config", config, "--profile", "a", "--profile", "b", "--json")
    assert verified.code == 0
    assert all(one["result"]["coverage"] for one in check("profiles", verified)["profiles"])
    next((tmp_path / "a").glob("segments/*/*.parquet")).unlink()
    assert typed("verify", "--config", config, "--profile", "a", "--profile", "b").code == 14


def test_a_file_that_cannot_be_read_is_one_error(typed: Type, tmp_path: Path) -> None:
    done = typed("backup", "--config", tmp_path / "nothing", "--profile", "a", "--profile", "b")
    assert (done.code, done.out) == (2, "") and "cannot read the config file" in done.err


def test_a_glob_stands_for_its_profiles_however_many(typed: Type, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[defaults]\nserver = "nats://127.0.0.1:1"\nrepo = "{tmp_path}/repo"\n'
        "[profiles.prod-b]\n[profiles.prod-a]\n[profiles.test]\n"
    )

    def profiles(*names: str) -> list[str]:
        done = typed("backup", "--config", config, *(word for name in names for word in ("--profile", name)), "--json")
        assert done.code == 20
        return [one["profile"] for one in check("profiles", Typed(0, done.out, done.err))["profiles"]]

    assert profiles("prod-*") == ["prod-a", "prod-b"]
    assert profiles("test", "prod-*", "prod-a") == ["test", "prod-a", "prod-b"]
    assert profiles("prod-a*") == ["prod-a"]  # in the same form as for several
    told = typed("backup", "--config", config, "--profile", "t*")
    assert told.out == "profile test\n\n1 profile: test failed (exit code 20)\n"
    nothing = typed("backup", "--config", config, "--profile", "x-*")
    assert nothing.code == 2 and "has no profile 'x-*'" in nothing.err
    several = typed("follow", "--config", config, "--profile", "prod-*")
    assert several.code == 2 and "'follow' runs for one profile at a time" in several.err


def test_a_file_that_is_for_one_profile_is_not_written_over_by_the_next(typed: Type, tmp_path: Path) -> None:
    config, metrics = tmp_path / "config.toml", tmp_path / "m.prom"
    config.write_text(f'[profiles.a]\nrepo = "{tmp_path}/a"\n[profiles.b]\nrepo = "{tmp_path}/b"\n')
    assert typed("init", "-r", tmp_path / "b").code == 0
    line = ["status", "--config", config, "--profile", "a", "--profile", "b", "--metrics", metrics]
    done = typed(*line)
    assert "jsbackup_status_up 0" in metrics.read_text()
    assert f"error: profile b: {metrics} has what profile a says\n" in done.err
    assert "2 profiles: a failed (exit code 10), b failed (exit code 2)\n" in done.out and done.code == 1
