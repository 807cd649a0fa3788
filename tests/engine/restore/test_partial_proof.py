"""A restore that is proved in part says so, finds what it looks for, and leaves doubtful streams to the whole proof."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jsbackup as api
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read.consume import read_messages
from jsbackup.engine.restore.proof import (
    SentMarks,
    SubjectTally,
    Window,
    sample_agrees,
    state_agrees,
    subjects_agree,
    windows_of,
)
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject, StreamState
from jsbackup.progress import ignored
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.stores.local import LocalStore
from scripts.bench_load import fill, request
from tests.engine.restores import connection_to
from tests.harness.backups import CREATED, FIRST, make_repository, store_stream
from tests.harness.batches import Message, batch_of, messages_of
from tests.harness.commands import environment, jsbackup
from tests.harness.servers import NEWEST, NatsServer

MANY = 12_000  # enough for a sample


def _marks_of(sequences: Sequence[int]) -> SentMarks:
    marks = SentMarks()
    batches = [sequences[at : at + 3_000] for at in range(0, len(sequences), 3_000)]
    for _ in marks.watch(batch_of(map(Message, batch)) for batch in batches):
        pass
    return marks


@given(st.integers(10_000, 10**9), st.integers(0, 10**15), st.integers(1, 10**6), st.floats(1, 3), st.integers(0, 9))
def test_a_sample_is_a_tenth(messages: int, size: int, first: int, sparse: float, seed: int) -> None:
    last = first + int(messages * sparse) - 1
    state = StreamState(messages=messages, bytes=size, first_seq=first, last_seq=last)
    marks = [first + (last - first + 1) * number // 5_000 for number in range(5_000)]
    windows = windows_of(state, marks, random.Random(seed))
    assert 2 <= len(windows) <= 20
    assert windows == sorted(windows) and len(set(windows)) == len(windows)
    assert all(first <= begin <= end <= last for begin, end in windows)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(windows))
    part = sum(end - begin + 1 for begin, end in windows) / (last - first + 1)
    assert 0.09 < part < 0.11


@pytest.mark.parametrize(
    "sequences",
    [
        [*range(1, 12_000), 10**9],  # a bucket of which one key is written again and again
        [1, *range(10**9, 10**9 + 20_000)],
        [*range(5, 15_000), *range(200_000, 220_000, 7), *range(400_000, 410_000)],
    ],
)
def test_a_sample_is_a_tenth_of_the_messages_wherever_they_are(sequences: Sequence[int]) -> None:
    state = StreamState(messages=len(sequences), first_seq=sequences[0], last_seq=sequences[-1])
    marks = _marks_of(sequences).marks
    for seed in range(10):
        windows = windows_of(state, marks, random.Random(seed))
        read = sum(any(first <= sequence <= last for first, last in windows) for sequence in sequences)
        assert 0.09 < read / len(sequences) < 0.11


def test_sequences_are_marked_at_equal_distances_anew_for_each_attempt() -> None:
    marks = _marks_of(range(1, 40_001))
    found = marks.marks
    assert found == list(range(1, 40_001, found[1] - found[0])) and 4_000 < len(found) < 9_000
    assert list(marks.watch([batch_of([Message(7), Message(9)])])) and marks.marks == [7, 9]


def test_a_small_stream_has_no_sample() -> None:
    state = StreamState(messages=9_999, first_seq=1, last_seq=20_000)
    assert windows_of(state, list(range(1, 20_000)), random.Random(1)) == []


def test_subjects_are_counted_from_zero_for_each_attempt() -> None:
    tally = SubjectTally()
    batches = [batch_of([Message(1, subject="a"), Message(2, subject="b")]), batch_of([Message(3, subject="a")])]
    given_up = iter(tally.watch(batches))
    next(iter(given_up))
    assert list(tally.watch(batches)) == batches
    assert tally.counts == {"a": 2, "b": 1}


def test_many_subjects_are_not_counted() -> None:
    tally = SubjectTally()
    parts = [[Message(n, subject=f"s.{n}") for n in range(at, at + 20_001)] for at in range(0, 120_000, 20_001)]
    assert len(list(tally.watch(map(batch_of, parts)))) == 6
    assert tally.counts is None


# --- on a server ---

SUBJECTS = ("a", "a", "b")


def _publish(url: str, count: int, **config: Any) -> None:
    request(url, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["a", "b"], **config})
    fill(url, lambda number: SUBJECTS[number % 3], lambda number: b"%d" % number, range(count))


async def _held(js: JetStream) -> list[Message]:
    info = await js.stream("ORDERS")
    return messages_of([batch async for batch in read_messages(js, info, ignored)])


def _asked(url: str, messages: list[Message], windows: list[Window]) -> tuple[bool, bool]:
    """Whether subjects and sample agree with these messages."""

    def read(_windows: list[Window]) -> Iterable[pa.RecordBatch]:
        return (batch_of(messages[at : at + 500]) for at in range(0, len(messages), 500))

    async def ask() -> tuple[bool, bool]:
        async with connect_jetstream(connection_to(url)) as js:
            info, tally = await js.stream("ORDERS"), SubjectTally()
            for _ in tally.watch(read([])):
                pass
            return (
                await subjects_agree(js, info, tally),
                await sample_agrees(js, info, windows, read, advance=ignored),
            )

    return asyncio.run(ask())


@pytest.mark.nats
def test_what_differs_is_found_where_it_is_looked_for() -> None:
    async def held(url: str) -> list[Message]:
        async with connect_jetstream(connection_to(url)) as js:
            return await _held(js)

    with NatsServer(NEWEST) as server:
        _publish(server.url, 3_000)
        messages = asyncio.run(held(server.url))
        windows = [(101, 400), (1_501, 1_700)]
        assert _asked(server.url, messages, windows) == (True, True)
        for index, change in {
            150: {"data": b"other"},
            300: {"timestamp_ns": 1},
            399: {"headers": b"NATS/1.0\r\nA: b\r\n\r\n"},
        }.items():
            changed = list(messages)
            changed[index] = changed[index]._replace(**change)  # type: ignore[arg-type]
            assert _asked(server.url, changed, windows) == (True, False), change
        beside = list(messages)
        beside[500] = beside[500]._replace(data=b"other")
        assert _asked(server.url, beside, windows) == (True, True)
        swapped = list(messages)
        swapped[501] = swapped[501]._replace(subject="b")
        assert _asked(server.url, swapped, windows) == (False, True)
        assert _asked(server.url, [*messages[:200], *messages[201:]], windows) == (False, False)


def test_what_the_server_reports_is_compared() -> None:
    class Info:
        state = StreamState(messages=5, first_seq=3, last_seq=9)

    def agrees(**fields: int) -> bool:
        return state_agrees(Info(), StreamState(**{"messages": 5, "first_seq": 3, "last_seq": 9} | fields))  # type: ignore[arg-type]

    assert agrees()
    assert not agrees(messages=4) and not agrees(messages=6)
    assert not agrees(first_seq=2) and not agrees(last_seq=10)


# --- restores ---


def _backed_up(folder: Path, count: int, **config: Any) -> Path:
    with NatsServer(NEWEST) as server:
        _publish(server.url, count, **config)
        jsbackup("backup", "-s", server.url, "-r", folder / "repo").ok()
    return folder / "repo"


def _restored(server: NatsServer, repo: Path, *options: str) -> JsonObject:
    done = jsbackup("restore", "latest", "-s", server.url, "-r", repo, *options).ok()
    (stream,) = done.document["streams"]
    return dict(stream)


@pytest.mark.nats
@pytest.mark.parametrize("options", [("--subject", "a"), ("--until", "11000", "--map-subject", "b=>c")])
def test_the_output_says_how_much_was_compared(tmp_path: Path, options: tuple[str, ...]) -> None:
    repo = _backed_up(tmp_path, MANY)
    with NatsServer(NEWEST) as server:
        for number, level in enumerate(("full", "quick", "none", "sample")):
            again = () if not number else ("--if-exists", "replace")
            # A third of the messages is not enough for a sample: then all are compared.
            proof = "full" if level == "sample" and options[:1] == ("--subject",) else level
            found = _restored(server, repo, "--verify", level, *options, *again)
            assert (found["proof"], found["verified"]) == (proof, proof == "full"), (level, found)
            assert found["digest"] and found["messages"] > 7_000


@pytest.mark.nats
def test_a_sample_needs_no_numpy(tmp_path: Path) -> None:
    """Nothing that jsbackup installs brings it."""
    repo = _backed_up(tmp_path, MANY)
    program = "import sys; sys.modules['numpy'] = None; from jsbackup.cli.main import main; main()"
    with NatsServer(NEWEST) as server:
        words = ("restore", "latest", "-s", server.url, "-r", str(repo), "--verify", "sample")
        line = [sys.executable, "-c", program, *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment())
    assert (done.returncode, "  a tenth verified\n" in done.stdout) == (0, True), done.stderr


@pytest.mark.nats
def test_what_has_expired_is_told_by_the_whole_proof(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "repo")
    repository = make_repository(store)
    kept = store_stream(repository.objects, "ORDERS", [Message(sequence, sequence) for sequence in (1, 2)])
    kept = replace(kept, config={"name": "ORDERS", "subjects": ["a"], "max_age": 60 * 10**9}, consumers=())
    repository.commit(Manifest(FIRST, CREATED, "jsbackup tests", Source(NEWEST), BackupResult.COMPLETE, (kept,)))
    with NatsServer(NEWEST) as server:
        found = _restored(server, tmp_path / "repo", "--verify", "quick")
    assert found["proof"] == "full" and any("gone already" in note for note in found["notes"])


@pytest.mark.nats
def test_a_queue_in_memory_is_proved_by_a_sample(tmp_path: Path) -> None:
    repo = _backed_up(tmp_path, MANY, retention="workqueue", storage="memory")
    with NatsServer(NEWEST) as server:
        assert _restored(server, repo, "--verify", "sample")["proof"] == "sample"


@pytest.mark.nats
def test_a_user_who_may_not_read_can_compare_counts(tmp_path: Path) -> None:
    repo = _backed_up(tmp_path, 100)
    rights = 'permissions: { publish: { deny: ["$JS.API.STREAM.SNAPSHOT.>", "$JS.API.CONSUMER.CREATE.>"] } }'
    with NatsServer(NEWEST, config=f"authorization {{ users: [{{ user: u, password: p, {rights} }}] }}") as server:
        url = server.url.replace("nats://", "nats://u:p@")
        found = jsbackup("restore", "latest", "-s", url, "-r", repo, "--verify", "quick").ok().document["streams"]
    assert [one["proof"] for one in found] == ["quick"]


@pytest.mark.nats
def test_python_has_the_same(tmp_path: Path) -> None:
    backup = api.open(_backed_up(tmp_path, 100)).latest()
    with NatsServer(NEWEST) as server:
        stream = api.restore(backup, server.url, verify="quick").streams["ORDERS"]
    assert (stream.proof, stream.verified) == ("quick", False)
    with pytest.raises(UsageError, match="one of full, sample, quick, none"):
        api.restore(backup, "nats://127.0.0.1:1", verify="half")  # type: ignore[arg-type]
