"""Of many streams the same is said once: its reason, how many they are, and the first names. JSON names each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.cli.output.output import Output
from jsbackup.cli.output.progress import _FewAlike
from jsbackup.cli.output.result import Said, said_lines
from jsbackup.repository.checks.verify import Problem, ProblemKind
from tests.cli.typed import Typed
from tests.harness.api import call, connected
from tests.harness.servers import NEWEST, NatsServer

Type = Callable[..., Typed]

COUNT = 30
MOST = ", ".join(f"S-{number:03}" for number in range(4)) + " and 26 more"


def _told(capsys: pytest.CaptureFixture[str], *said: Said) -> list[str]:
    Output().blocks(said_lines(said))
    return capsys.readouterr().out.splitlines()


def _refused(count: int) -> list[Said]:
    return [Said("refused", f"S{number}", "is there", "Take another.") for number in range(count)]


def test_a_few_have_a_line_each_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    one, *others = _refused(4)
    lines = _told(capsys, one, Said("refused", "S0", "is too large"), *others)
    assert lines[:3] == ["refused: S0: is there", "hint: Take another.", "refused: S0: is too large"]
    assert lines[3::2] == [f"refused: S{number}: is there" for number in (1, 2, 3)]


def test_many_have_one_line_and_one_hint(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _told(capsys, *_refused(2000), Said("refused", "S7", "is too large"))
    assert lines == [
        "refused: each of 2,000 streams (S0, S1, S2, S3 and 1,996 more): is there",
        "hint: Take another.",
        "refused: S7: is too large",
    ]


def test_a_reason_is_the_same_with_the_name_of_another_stream(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a", "b.c", "b", "b-c", "x\x1b[31m", "S(1"]
    said = [Said("failed", name, f"may not publish to $JS.{name}", f"See '{name}'.") for name in names]
    assert _told(capsys, *said) == [
        "failed: each of 6 streams (a, b.c, b, b-c and 2 more): may not publish to $JS.<stream>",
        "hint: See '<stream>'.",
    ]
    other = [Said("failed", name, f"may not read {name}-x") for name in names]
    assert _told(capsys, *other)[2] == "failed: b: may not read b-x"


def test_one_stream_with_many_problems_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(_told(capsys, *(Said("lost", "S", "is gone") for _ in range(9)))) == 9


def test_what_is_lost_of_many_is_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem(ProblemKind.MISSING, f"S{n}", f"k/{n}", f"k/{n} has {n} bytes", 1, 2, 2) for n in range(5)]
    said = [Said("  ", problem.stream, problem.problem, lost=problem) for problem in problems]
    assert _told(capsys, *said[:1]) == ["  S0: k/0 has 0 bytes (lost: 2 messages, sequences 1 to 2)"]
    assert _told(capsys, *said) == [
        "  each of 5 streams (S0, S1, S2, S3 and 1 more): … has … bytes (lost: 10 messages)"
    ]


def _overlaps(count: int, name: str = "S{}") -> list[Said]:
    reason = "its subject s{0}.> overlaps with s{0}.> of stream S{0}"
    hint = "Leave {0} out."
    names = [name.format(number) for number in range(count)]
    return [
        Said("refused", one, reason.format(number), hint.format(one), rule="subject-overlap")
        for number, one in enumerate(names)
    ]


def test_many_reasons_of_one_rule_have_one_line_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    example = "its subject s0.> overlaps with s0.> of stream S0"
    other = Said("refused", "S7", "is too large", rule="max-storage")
    assert _told(capsys, *_overlaps(500), other) == [
        f"refused: 500 streams (S0, S1, S2, S3 and 496 more): for example S0: {example}",
        "hint: Leave <stream> out.",
        "refused: S7: is too large",
    ]
    wide = _told(capsys, *_overlaps(500, "WIDE"))
    assert wide[:2] == [f"refused: WIDE: {example}", "hint: Leave WIDE out."] and len(wide) == 10
    assert wide[8:] == [
        f"refused: WIDE: {example.replace('0', '4')} (and 495 more reasons)",
        "hint: Leave <stream> out.",
    ]
    assert len(_told(capsys, *_overlaps(4))) == 8


async def _make_streams(url: str) -> None:
    async with connected(url) as nc:
        for number in range(COUNT):
            config = {"name": f"S-{number:03}", "subjects": [f"s.{number}"], "storage": "file", "num_replicas": 1}
            await call(nc, f"STREAM.CREATE.S-{number:03}", {**config, "retention": "limits"})
            await nc.publish(f"s.{number}", b"x")


@pytest.mark.nats
def test_a_reason_is_named_once_by_every_command(
    nats_server: Callable[..., NatsServer], typed: Type, tmp_path: Path
) -> None:
    denied = ", ".join(f'"$JS.API.STREAM.SNAPSHOT.S-{number:03}"' for number in range(COUNT - 1))
    users = f"{{user: u, password: p}}, {{user: blind, password: p, permissions: {{publish: {{deny: [{denied}]}}}}}}"
    config = f"accounts {{ A {{ jetstream: enabled, users: [{users}] }} }}\nno_auth_user: u"
    server = nats_server(NEWEST, config=config)
    asyncio.run(_make_streams(server.url))
    repo, half = tmp_path / "repo", tmp_path / "half"

    blind = ("-s", server.url, "--user", "blind", "--password", "p", "-r", half)
    done = typed("backup", *blind)
    reason = f"nats://127.0.0.1:{server.port} does not allow publishing to $JS.API.STREAM.SNAPSHOT.<stream>"
    failed = f"failed: each of 29 streams ({MOST.replace('26', '25')}): {reason}"
    assert done.code == 3 and failed in done.out.splitlines()
    assert done.err.count("warning: stream S-") == 4 and "warning: more streams have the same problem; -v" in done.err
    assert typed("backup", *blind, "--log-format", "json").err.count('"warning"') == 29
    assert typed("backup", *blind, "-v").err.count("warning: stream S-") == 29
    assert failed.replace("failed", "skipped") in typed("show", "latest", "-r", half).out.splitlines()
    assert len(typed("backup", *blind, "--json").document["skipped"]) == 29

    assert typed("backup", "-s", server.url, "-r", repo).code == 0
    again = ("latest", "-s", server.url, "-r", repo)
    planned = typed("plan", *again)
    assert planned.code == 16 and planned.out.count("exists at the target") == 1 == planned.out.count("hint: ")
    assert f"refused: each of 30 streams ({MOST}): exists at the target" in planned.out.splitlines()
    assert "for 1 reason" in planned.out.splitlines()[-1]
    assert len(typed("plan", *again, "--json").document["refusals"]) == 30
    beside = ("--rename", "*=x_*")
    planned = typed("plan", *again, *beside)
    example = "its subject s.0 overlaps with s.0 of stream S-000 at the target"
    refused = [line for line in planned.out.splitlines() if line.startswith(("refused: ", "hint: "))]
    assert refused[0] == f"refused: 30 streams ({MOST}): for example S-000: {example}" and len(refused) == 3
    assert typed("plan", *again, *beside, "--json").document["refusals"][29]["stream"] == "S-029"
    restored = typed("restore", *again, *beside)
    message = f"error: nothing was restored: 30 streams ({MOST}): for example stream S-000: {example}"
    assert restored.code == 16 and restored.err.splitlines()[-2] == message and len(restored.err.splitlines()) <= 5
    skipping = typed("restore", *again, "--if-exists", "skip")
    assert f"skipped: each of 30 streams ({MOST}): exists at the target" in skipping.out.splitlines()

    for segment in repo.glob("segments/*/*"):
        segment.unlink()
    verified = typed("verify", "-r", repo)
    assert verified.code == 14
    assert f"  each of 30 streams ({MOST}): object … is missing (lost: 30 messages)" in verified.out.splitlines()
    left = typed("restore", "latest", "-s", nats_server(NEWEST).url, "-r", repo, "--partial")
    assert left.code == 3
    assert f"lost: each of 30 streams ({MOST}): object … is missing (lost: 30 messages)" in left.out.splitlines()


def test_what_is_logged_again_and_again_is_news_after_a_while() -> None:
    few = _FewAlike()

    def logged(moment: float, *arguments: object, message: str = "%s: %s") -> str | None:
        record = logging.LogRecord("jsbackup", logging.WARNING, "", 0, message, arguments, None)
        record.created = moment
        return record.getMessage() if few.filter(record) else None

    told = [logged(1000.0, f"S{number}", f"S{number} is away") for number in range(9)]
    assert told[:4] == [f"S{number}: S{number} is away" for number in range(4)]
    assert told[4:] == ["more streams have the same problem; -v logs all", *[None] * 4]
    assert logged(1001.0, "S0", "S0 is away") is None and logged(1001.0, "S9", "is late") == "S9: is late"
    assert logged(1062.0, "S8", "S8 is away") == "S8: S8 is away"
    assert [logged(1062.0, number, message="attempt %d") for number in range(9)][-1] == "attempt 8"
