"""Archives in folders become committed backups: everything in them, or an error that names the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError, UnsupportedError
from jsbackup.exchange import importing
from jsbackup.exchange.importing import ImportReport
from jsbackup.failure import Failure
from jsbackup.formats.archive.consumer_state import encode_state
from jsbackup.formats.archive.tar import TAR_END, tar_header, tar_padding
from jsbackup.formats.digest import Digester
from jsbackup.model import ArchivedConsumer, ConsumerState, Fidelity, PendingAck, SequencePair
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.manifest import ArchiveFormat, BackupResult
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.repository.write.stream_objects import INLINE_ENTRIES, load_consumer
from jsbackup.stores.memory import MemoryStore
from jsbackup.tool import TOOL
from tests.exchange.folders import (
    V1,
    V2,
    config_of,
    describe,
    golden_folder,
    imported,
    state_with,
    stored_messages,
    stream_folder,
    take_in,
)
from tests.formats.archives import CONSUMERS, CREATED, as_stored, in_s2, state_of
from tests.formats.test_archive_v1 import TOMBSTONE, block, meta
from tests.harness.backups import make_repository
from tests.harness.batches import Message, batch_of, message_lists, some_messages
from tests.harness.servers import VERSIONS

MESSAGES = some_messages(200, 300)
BOTH = pytest.mark.parametrize("form", ["v1", "v2"])


@pytest.fixture
def repository() -> Repository:
    return make_repository(MemoryStore())


def only_failure(report: ImportReport) -> Failure:
    assert report.manifest is None
    (failure,) = report.failures
    return failure


@BOTH
def test_everything_in_an_archive_is_in_the_backup(tmp_path: Path, repository: Repository, form: str) -> None:
    stream_folder(tmp_path, MESSAGES, form=form)
    report = take_in(tmp_path, repository, env="prod")
    stream = imported(report)["ORDERS"]
    assert stored_messages(repository.store, stream) == as_stored(MESSAGES)
    digester = Digester()
    digester.update(batch_of(MESSAGES))
    assert stream.digest == digester.stream_digest
    assert stream.archive_format is ArchiveFormat(form)
    assert stream.config == config_of("ORDERS")
    assert stream.created == (CREATED if form == "v1" else "0001-01-01T00:00:00Z")
    assert [(c.name, c.fidelity, c.config, c.reason) for c in stream.consumers] == [
        (c.name, Fidelity.EXACT, c.config, "") for c in sorted(CONSUMERS, key=lambda c: c.name)
    ]
    states = {c.name: c.state for c in stream.consumers}
    assert states == {c.name: c.state for c in CONSUMERS}
    assert stream.warnings == ()
    manifest = repository.manifest(repository.resolve("latest"))
    assert manifest == report.manifest
    assert (manifest.result, manifest.tags, manifest.tool) == (BackupResult.COMPLETE, {"env": "prod"}, TOOL)
    assert list(verify_backup(repository.objects, manifest, Level.DATA)) == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=message_lists(), tail=st.integers(0, 5), form=st.sampled_from(["v1", "v2"]))
def test_any_messages_come_back(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Message], tail: int, form: str
) -> None:
    repository = make_repository(MemoryStore())
    last = (messages[-1].sequence if messages else 0) + tail
    folder = stream_folder(tmp_path_factory.mktemp("folder"), messages, form=form, last_seq=last, consumers=())
    stream = imported(take_in(folder, repository))["ORDERS"]
    assert stored_messages(repository.store, stream) == as_stored(messages)
    assert stream.state.last_seq == last
    assert stream.captured.messages == len(messages)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", [V1, V2])
def test_snapshots_of_real_servers_come_back(tmp_path: Path, repository: Repository, version: str, file: str) -> None:
    golden = golden_folder(tmp_path, version, file)
    stream = imported(take_in(tmp_path, repository))["GOLDEN"]
    assert stored_messages(repository.store, stream) == golden.messages
    assert stream.config == golden.config
    assert (stream.state.first_seq, stream.state.last_seq) == (golden.state["first_seq"], golden.state["last_seq"])
    assert stream.warnings == ()
    assert {c.name for c in stream.consumers} == golden.consumers.keys()
    for consumer in stream.consumers:
        info = golden.consumers[consumer.name]
        assert consumer.state is not None
        if consumer.fidelity is Fidelity.EXACT:
            assert consumer.state.delivered.stream == info["delivered"]["stream_seq"]
            assert consumer.state.ack_floor.stream == info["ack_floor"]["stream_seq"]
            assert len(consumer.state.pending) == info["num_ack_pending"]
        else:
            # 2.10 does not store where a consumer starts.
            assert (version, consumer.name) == ("2.10.26", "größe")
            assert "before 2.11" in consumer.reason


def test_what_an_archive_v1_calls_deleted_is_never_stored(tmp_path: Path, repository: Repository) -> None:
    files = [*meta(), block(1, 1, 2, 3, 4, 5, 2 | TOMBSTONE), block(2, 6, 4 | TOMBSTONE, 6 | TOMBSTONE, 7)]
    archive = b"".join(tar_header(n, len(d)) + d + tar_padding(len(d)) for n, d in files) + TAR_END
    (tmp_path / V1).write_bytes(in_s2(archive))
    describe(tmp_path, config_of("ORDERS"), {"messages": 4, "first_seq": 1, "last_seq": 7})
    report = take_in(tmp_path, repository)
    stream = imported(report)["ORDERS"]
    assert [message.sequence for message in stored_messages(repository.store, stream)] == [1, 3, 5, 7]
    assert [info.key for info in repository.store.list("segments/")] == [ref.key for ref in stream.segments]


def test_an_account_becomes_one_backup(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path / "B", MESSAGES, name="B", form="v2", file=V2)
    stream_folder(tmp_path / "A", MESSAGES[:10], name="A")
    report = take_in(tmp_path, repository)
    assert [stream.stream.name for stream in report.streams] == ["A", "B"]
    assert report.manifest is not None
    assert report.manifest.result is BackupResult.COMPLETE
    assert report.manifest.source.imported["from"] == "nats account backup"
    assert str(tmp_path) not in repr(report.manifest)


def test_importing_again_stores_nothing_twice(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES)
    (first,) = take_in(tmp_path, repository).streams
    objects = [info.key for info in repository.store.list("segments/")]
    assert (first.segments_reused, first.stored_bytes > 0) == (0, True)

    report = take_in(tmp_path, repository, seconds=2 * 10**9)
    (second,) = report.streams
    assert (second.segments_reused, second.stored_bytes) == (1, 0)
    assert [info.key for info in repository.store.list("segments/")] == objects
    assert report.manifest is not None
    assert report.manifest.previous == repository.backups()[0]


@BOTH
def test_importing_a_stream_that_has_grown_stores_what_is_new(
    tmp_path: Path, repository: Repository, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SegmentWriter.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(SegmentWriter.__init__.__kwdefaults__, "segment_bytes", 20_000)
    file = V1 if form == "v1" else V2
    stream_folder(tmp_path, MESSAGES[:190], form=form, file=file)
    (first,) = take_in(tmp_path, repository).streams
    stream_folder(tmp_path, MESSAGES[:50] + MESSAGES[51:], form=form, file=file)
    (second,) = take_in(tmp_path, repository, seconds=2 * 10**9).streams
    assert stored_messages(repository.store, second.stream) == MESSAGES[:50] + MESSAGES[51:]
    kept = [ref for ref in first.stream.segments if ref in second.stream.segments]
    assert second.segments_reused == len(kept) == len(first.stream.segments) - 1 > 2
    added = [ref for ref in second.stream.segments if ref not in kept]
    assert second.stored_bytes == sum(ref.size for ref in added)


# --- damage ---


@BOTH
def test_an_archive_cut_short_anywhere_is_damage_and_nothing_is_committed(
    tmp_path: Path, repository: Repository, form: str
) -> None:
    stream_folder(tmp_path, some_messages(40, 50), form=form)
    whole = (tmp_path / V1).read_bytes()
    for size in {0, 1, 9, 10, 14, len(whole) // 3, len(whole) // 2, len(whole) - 5, len(whole) - 1}:
        (tmp_path / V1).write_bytes(whole[:size])
        error = only_failure(take_in(tmp_path, repository)).error
        assert isinstance(error, FormatError)
        assert error.message.startswith(f"{V1}: ")
    assert repository.backups() == []


@BOTH
def test_any_flipped_bit_is_damage_or_changes_nothing(tmp_path: Path, form: str) -> None:
    messages = some_messages(20, 30)
    stream_folder(tmp_path, messages, form=form)
    whole = (tmp_path / V1).read_bytes()
    chance = random.Random(7)
    for _ in range(60):
        at = chance.randrange(len(whole))
        (tmp_path / V1).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        repository = make_repository(MemoryStore())
        report = take_in(tmp_path, repository)
        if report.manifest is None:
            assert only_failure(report).error.exit_code in (13, 14)
        else:
            assert stored_messages(repository.store, imported(report)["ORDERS"]) == as_stored(messages)


@BOTH
def test_more_bytes_behind_an_archive_are_damage(tmp_path: Path, repository: Repository, form: str) -> None:
    stream_folder(tmp_path, MESSAGES, form=form)
    with (tmp_path / V1).open("ab") as file:
        file.write(in_s2(b"more"))
    assert isinstance(only_failure(take_in(tmp_path, repository)).error, FormatError)


def test_an_archive_of_an_unknown_format_is_unsupported(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES)
    (tmp_path / V1).write_bytes(in_s2(b"NATSARC9" + bytes(2000)))
    error = only_failure(take_in(tmp_path, repository)).error
    assert isinstance(error, UnsupportedError)
    assert error.message.startswith(f"{V1}: unknown archive format")


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08" + bytes(100), bytes(1000), b"PAR1" * 9])
def test_other_files_in_the_place_of_an_archive_are_damage(
    tmp_path: Path, repository: Repository, content: bytes
) -> None:
    stream_folder(tmp_path, MESSAGES)
    (tmp_path / V1).write_bytes(content)
    assert only_failure(take_in(tmp_path, repository)).error.exit_code == 14


def test_a_damaged_stream_of_an_account_does_not_hide_the_others(tmp_path: Path, repository: Repository) -> None:
    for name in ("A", "B", "C"):
        stream_folder(tmp_path / name, MESSAGES, name=name)
    archive = tmp_path / "B" / V1
    archive.write_bytes(archive.read_bytes()[:-100])
    (tmp_path / "D").mkdir()
    report = take_in(tmp_path, repository)
    assert list(imported(report)) == ["A", "C"]
    assert report.manifest is not None
    assert report.manifest.result is BackupResult.PARTIAL
    first, second = report.manifest.skipped
    assert (first.name, first.reason.startswith(f"B/{V1}: s2 stream: cut short")) == ("B", True)
    assert (second.name, second.reason) == ("D", "D holds no backup of the nats CLI")


def test_an_archive_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream_folder(tmp_path, MESSAGES)
    other = stream_folder(tmp_path / "other", MESSAGES[:-1], last_seq=MESSAGES[-1].sequence)
    read = importing._read_archive
    reads = []

    def exchanged(*arguments: object, **more: object) -> object:
        reads.append(1)
        if len(reads) == 2:
            (other / V1).rename(tmp_path / V1)
        return read(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(importing, "_read_archive", exchanged)
    (tmp_path / "only").mkdir()
    error = only_failure(take_in(tmp_path, repository)).error
    assert error.message == f"{V1} changed while it was read"


# --- a backup.json that does not belong to its archive ---


def test_an_archive_v1_of_another_stream_is_refused(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES)
    describe(tmp_path, config_of("OTHER"), state_with(state_of(MESSAGES)))
    error = only_failure(take_in(tmp_path, repository)).error
    assert isinstance(error, FormatError)
    assert error.message == f"{V1}: the archive is of stream ORDERS, backup.json of OTHER"


def test_an_archive_v1_that_ends_too_early_is_refused(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES)
    last = MESSAGES[-1].sequence
    describe(tmp_path, config_of("ORDERS"), state_with(state_of(MESSAGES), last_seq=last + 1))
    error = only_failure(take_in(tmp_path, repository)).error
    assert error.message == f"{V1} ends at sequence {last}, backup.json reports {last + 1}"


def test_the_state_inside_an_archive_v2_counts(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES, form="v2")
    describe(tmp_path, config_of("ORDERS"), state_with(state_of(MESSAGES), first_seq=77, last_seq=99_999, messages=5))
    stream = imported(take_in(tmp_path, repository))["ORDERS"]
    first, last = MESSAGES[0].sequence, MESSAGES[-1].sequence
    assert (stream.state.first_seq, stream.state.last_seq) == (first, last)
    assert stored_messages(repository.store, stream) == as_stored(MESSAGES)
    assert stream.warnings == (
        f"backup.json reports sequences 77 to 99999, its archive {first} to {last}; the archive's are used",
        "messages in the archive: 200, in backup.json: 5",
    )


def test_messages_below_the_reported_first_sequence_are_gone_in_v1(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES)
    first = MESSAGES[50].sequence
    state = state_with(state_of(MESSAGES), first_seq=first, messages=150, consumer_count=2)
    describe(tmp_path, config_of("ORDERS"), state)
    stream = imported(take_in(tmp_path, repository))["ORDERS"]
    assert stored_messages(repository.store, stream) == as_stored(MESSAGES[50:])
    assert stream.warnings == ()


def test_a_config_edited_in_backup_json_is_taken_and_said(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES, max_msgs=10, discard="new")
    stream = imported(take_in(tmp_path, repository))["ORDERS"]
    assert stream.config == {**config_of("ORDERS"), "max_msgs": 10, "discard": "new"}
    used = "the value of backup.json was used"
    assert stream.warnings == (f"backup.json and the archive differ in max_msgs, discard; {used}",)


def test_what_an_older_cli_dropped_comes_from_the_archive(tmp_path: Path, repository: Repository) -> None:
    stream_folder(tmp_path, MESSAGES)
    described = {key: value for key, value in config_of("ORDERS").items() if key != "subjects"}
    described |= {"metadata": {"_nats.ver": "2.14.6"}, "compression": "none", "sealed": False}
    describe(tmp_path, described, {**state_with(state_of(MESSAGES)), "consumer_count": 2})
    stream = imported(take_in(tmp_path, repository))["ORDERS"]
    assert stream.config == {**described, "subjects": ["orders.>"]}
    assert stream.warnings == ("backup.json lacks subjects, which was taken from the archive",)


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_consumers_that_are_missing_are_told(tmp_path: Path, repository: Repository, form: str) -> None:
    stream_folder(tmp_path, MESSAGES, form=form, consumers=())
    describe(tmp_path, config_of("ORDERS"), {**state_with(state_of(MESSAGES)), "consumer_count": 3})
    (warning,) = imported(take_in(tmp_path, repository))["ORDERS"].warnings
    assert warning.startswith("consumers in the archive: 0, in backup.json: 3; ")
    assert ("held in memory" in warning) is (form == "v1")


# --- consumers ---


def consumer(name: str, state: ConsumerState | None, **config: object) -> ArchivedConsumer:
    return ArchivedConsumer(name, {"name": name, "ack_policy": "explicit", **config}, state, CREATED)


def test_a_large_pending_set_is_stored_beside_the_segments(tmp_path: Path, repository: Repository) -> None:
    messages = some_messages(INLINE_ENTRIES + 1, 1)
    last = messages[-1].sequence
    pending = {m.sequence: PendingAck(n + 1, 10**18) for n, m in enumerate(messages)}
    state = ConsumerState(SequencePair(len(messages), last), SequencePair(), pending, {messages[0].sequence: 3})
    stream_folder(tmp_path, messages, consumers=[consumer("wide", state)])
    (wide,) = imported(take_in(tmp_path, repository))["ORDERS"].consumers
    assert wide.pending is not None
    assert load_consumer(repository.objects, wide).state == state


def test_a_consumer_ahead_of_the_captured_messages_is_cut(tmp_path: Path, repository: Repository) -> None:
    last = MESSAGES[-1].sequence
    ahead = ConsumerState(
        SequencePair(9, last + 5), SequencePair(1, 1), {last: PendingAck(8, 0), last + 5: PendingAck(9, 0)}
    )
    stream_folder(tmp_path, MESSAGES, consumers=[consumer("ahead", ahead)])
    (cut,) = imported(take_in(tmp_path, repository))["ORDERS"].consumers
    assert cut.state == ConsumerState(SequencePair(9, last), SequencePair(1, 1), {last: PendingAck(8, 0)})


@pytest.mark.parametrize("config", [{"num_replicas": 3}, {"placement": {"cluster": "C"}}])
def test_a_clusters_archive_v2_may_have_rolled_a_consumer_back(
    tmp_path: Path, repository: Repository, config: dict[str, object]
) -> None:
    rolled = ConsumerState(SequencePair(3, 4), SequencePair(3, 4))
    ahead = ConsumerState(SequencePair(9, 20), SequencePair(3, 4))
    consumers = [consumer("a", rolled), consumer("b", ahead), consumer("c", rolled, ack_policy="none")]
    stream_folder(tmp_path, MESSAGES, form="v2", consumers=consumers, **config)
    found = imported(take_in(tmp_path, repository))["ORDERS"].consumers
    assert [c.fidelity for c in found] == [Fidelity.FLOOR, Fidelity.EXACT, Fidelity.EXACT]
    assert "contains only the ack floor" in found[0].reason


def test_a_consumer_twice_is_refused(tmp_path: Path, repository: Repository) -> None:
    files = [*meta(), block(1, 1)]
    for _ in range(2):
        files += [*meta({"name": "c"}, "ORDERS/c", "obs/c/"), ("obs/c/o.dat", encode_state(ConsumerState()))]
    archive = b"".join(tar_header(n, len(d)) + d + tar_padding(len(d)) for n, d in files) + TAR_END
    (tmp_path / V1).write_bytes(in_s2(archive))
    describe(tmp_path, config_of("ORDERS"), {"messages": 1, "first_seq": 1, "last_seq": 1})
    assert only_failure(take_in(tmp_path, repository)).error.message == f"{V1}: consumer c appears twice"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (meta({**config_of("ORDERS"), "Created": "yesterday"}), "creation time of the stream: not in RFC 3339"),
        (
            [*meta(), *meta({"Created": "now"}, "ORDERS/c", "obs/c/"), ("obs/c/o.dat", b"")],
            "creation time of consumer c: not in RFC 3339",
        ),
        (
            [*meta(), *meta({"x": "\ud800"}, "ORDERS/c", "obs/c/"), ("obs/c/o.dat", b"")],
            "meta.inf of consumer c is not JSON: it has half a surrogate pair",
        ),
    ],
)
def test_what_no_manifest_can_hold_fails_the_stream_and_not_the_backup(
    tmp_path: Path, repository: Repository, files: list[tuple[str, bytes]], message: str
) -> None:
    stream_folder(tmp_path / "GOOD", MESSAGES, name="GOOD")
    (tmp_path / "BAD").mkdir()
    archive = b"".join(tar_header(n, len(d)) + d + tar_padding(len(d)) for n, d in files) + TAR_END
    (tmp_path / "BAD" / V1).write_bytes(in_s2(archive))
    describe(tmp_path / "BAD", config_of("ORDERS"), {})
    report = take_in(tmp_path, repository)
    assert list(imported(report)) == ["GOOD"]
    (failure,) = report.failures
    assert isinstance(failure.error, JsBackupError)
    assert message in failure.error.message


# --- configs ---


def test_config_files_become_a_backup_without_messages(tmp_path: Path, repository: Repository) -> None:
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "A.json").write_text('{"name":"A","max_age":5}')
    (tmp_path / "consumers" / "A").mkdir(parents=True)
    (tmp_path / "consumers" / "A" / "c.json").write_text('{"durable_name":"c"}')
    report = take_in(tmp_path, repository)
    stream = imported(report)["A"]
    assert (stream.archive_format, stream.config, stream.segments) == (
        ArchiveFormat.CONFIG,
        {"name": "A", "max_age": 5},
        (),
    )
    (found,) = stream.consumers
    assert (found.name, found.config, found.fidelity, found.state) == (
        "c",
        {"durable_name": "c"},
        Fidelity.CONFIG_ONLY,
        None,
    )
    assert report.manifest is not None
    assert report.manifest.source.imported == {"from": "config files"}
    assert list(verify_backup(repository.objects, report.manifest, Level.DATA)) == []
