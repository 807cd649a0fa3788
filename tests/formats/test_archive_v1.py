from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError, UnsupportedError
from jsbackup.formats import kernels
from jsbackup.formats.archive import archive_v1_reader, archive_v1_writer
from jsbackup.formats.archive.archive import ArchiveEnd, IndexState, SealedBlock, late_deletions
from jsbackup.formats.archive.archive_v1_reader import ArchiveV1Reader
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.archive.tar import TAR_END, TarReader, tar_header, tar_padding
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, ConsumerState, StreamState
from tests.formats.archives import CONFIG, CONSUMERS, CREATED, Content, as_stored, read, state_of, written
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists, some_messages

STREAM = "ORDERS"
ERASED, TOMBSTONE = 1 << 63, 1 << 62
Members = list[tuple[str, bytes]]


def write(messages: list[Message], last_seq: int | None = None, last_ns: int = 0, **config: Any) -> bytes:
    state = state_of(messages, last_seq, last_ns)
    return written(ArchiveV1Writer({**CONFIG, **config}, CREATED, state, CONSUMERS), [batch_of(messages)])


def members(archive: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for piece in TarReader().feed(archive):
        found[piece.name] = found.get(piece.name, b"") + piece.data
    return found


def tar(files: Iterable[tuple[str, bytes]]) -> bytes:
    return b"".join(tar_header(name, len(data)) + data + tar_padding(len(data)) for name, data in files) + TAR_END


def hash64(key: str, *data: bytes) -> bytes:
    hasher = kernels.HighwayHash(sha256(key.encode()).digest())
    for part in data:
        hasher.update(part)
    return hasher.digest64()


def meta(config: object = None, key: str = STREAM, prefix: str = "") -> Members:
    content = json.dumps({**CONFIG, "Created": CREATED} if config is None else config).encode()
    return [(f"{prefix}meta.inf", content), (f"{prefix}meta.sum", hash64(key, content).hex().encode())]


def block(number: int, *sequences: int) -> tuple[str, bytes]:
    """A block of small messages, tombstones (sequence | TOMBSTONE) and erased ones."""
    out = b""
    for sequence in sequences:
        plain = sequence & ~(ERASED | TOMBSTONE)
        body = f"s.{plain}".encode() if plain == sequence else b""
        head = struct.pack("<QqH", sequence, 1000 + plain, len(body))
        out += struct.pack("<I", 30 + len(body)) + head + body + hash64(f"{STREAM}-{number}", head[:16], body)
    return f"msgs/{number}.blk", out


def sequences(content: Content) -> list[int]:
    return [message.sequence for message in content.messages]


def decode(archive: bytes, first_seq: int = 0, deleted: Iterable[int] = ()) -> Content:
    return read(ArchiveV1Reader(first_seq, SequenceSet(deleted)), [archive])


# --- there and back ---


@settings(max_examples=80, deadline=None)
@given(message_lists(binary=True), st.integers(0, 5), st.randoms(use_true_random=False))
def test_any_messages_come_back(messages: list[Message], tail: int, chance: random.Random) -> None:
    last = messages[-1].sequence + tail if messages else tail
    writer = ArchiveV1Writer(CONFIG, CREATED, state_of(messages, last, 77), CONSUMERS)
    archive = written(writer, cut_anywhere(batch_of(messages), chance))
    cuts = sorted(chance.randrange(len(archive)) for _ in range(5))
    pieces = [archive[a:b] for a, b in zip([0, *cuts], [*cuts, len(archive)], strict=True)]
    content = read(ArchiveV1Reader(), pieces)
    assert content.messages == as_stored(messages)
    assert content.consumers == list(CONSUMERS)
    assert (content.meta.config, content.meta.created) == (CONFIG, CREATED)
    assert (content.end.last_seq, content.end.messages) == (last, len(messages))
    late = late_deletions(content.end)
    assert not late.certain
    assert not late.doubtful


@pytest.mark.parametrize("kernel", ["compiled", "python"])
def test_both_kernels_write_and_read_the_same(kernel: Any) -> None:
    before: Any = kernels.active()
    messages = some_messages(50, 30)
    archive = write(messages, 1000, 5)
    try:
        kernels.use(kernel)
    except UnsupportedError:
        pytest.skip("no compiled kernel here")
    try:
        assert write(messages, 1000, 5) == archive
        assert decode(archive).messages == messages
    finally:
        kernels.use(before)


def test_blocks_and_batches_are_bounded() -> None:
    data = os.urandom(1 << 20)
    messages = [Message(n, n, "s", None, data) for n in range(1, 25)]
    messages += [Message(25, 1, "s", None, os.urandom(20 << 20)), Message(26, 1, "s", None, b"")]
    batches = [batch_of(messages[at : at + 4]) for at in range(0, len(messages), 4)]
    archive = written(ArchiveV1Writer(CONFIG, None, state_of(messages)), batches)
    blocks = {name: data for name, data in members(archive).items() if name.endswith(".blk")}
    assert [name for name, data in blocks.items() if len(data) > 8 << 20] == ["msgs/5.blk"]
    assert len(blocks) == 6
    reader = ArchiveV1Reader()
    found = [item for item in reader.feed(archive) if isinstance(item, pa.RecordBatch)]
    assert {batch.num_rows for batch in found if batch.nbytes > 1 << 20} == {1}
    assert sum(batch.num_rows for batch in found) == 26


def test_large_gaps_end_a_block_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_v1_writer, "_BLOCK_DELETIONS", 10)
    messages = [Message(n) for n in (3, 4, 9, 11, 20, 26, 27, 50, 51, 1000)]
    for cut in range(1, len(messages)):
        batches = [batch_of(messages[:cut]), batch_of(messages[cut:])]
        archive = written(ArchiveV1Writer(CONFIG, None, state_of(messages)), batches)
        assert decode(archive).messages == messages
        sizes = [len(data) // 31 for name, data in members(archive).items() if name.endswith(".blk")]
        # 4 + 1 deletions, then 8 would be too many; 5 follow, then 22 and 948
        assert sizes == [4, 3, 2, 1]


def test_a_block_never_starts_like_a_compressed_one() -> None:
    size = int.from_bytes(b"cmp\0", "little")
    messages = [Message(1, 1, "s", None, bytes(size - 31)), Message(2, 1, "s", b"H", bytes(size - 36))]
    archive = written(ArchiveV1Writer(CONFIG, None, state_of(messages)), map(batch_of, ([m] for m in messages)))
    files = members(archive)
    assert [name for name in files if name.endswith(".blk")] == ["msgs/1.blk", "msgs/2.blk"]
    assert not any(data.startswith(b"cmp") for data in files.values())
    content = decode(archive)
    assert content.messages == messages
    assert not late_deletions(content.end).certain


def test_an_emptied_stream_keeps_its_last_sequence_in_a_block_of_its_own() -> None:
    files = members(write([], 99, 1234))
    assert files["msgs/1.blk"] == block(1, 99 | TOMBSTONE)[1].replace(struct.pack("<q", 1099), struct.pack("<q", 1234))[
        :-8
    ] + hash64(f"{STREAM}-1", struct.pack("<Qq", 99 | TOMBSTONE, 1234))
    end = decode(write([], 99)).end
    assert (end.messages, end.last_seq) == (0, 99)


def test_a_stream_never_used_has_no_block() -> None:
    assert set(members(write([]))) - {"meta.inf", "meta.sum"} == {
        f"obs/{consumer.name}/{file}" for consumer in CONSUMERS for file in ("meta.inf", "meta.sum", "o.dat")
    }


def test_a_deleted_tail_gets_the_time_of_the_state_or_of_the_last_message() -> None:
    for last_ns, expected in ((55, 55), (0, 9)):
        tail = members(write([Message(1, 9)], 4, last_ns))["msgs/2.blk"]
        assert struct.unpack_from("<Qq", tail, 4) == (4 | TOMBSTONE, expected)


def test_consumers_carry_what_is_known_and_no_more() -> None:
    consumer = ArchivedConsumer("c", {"durable_name": "c", "x": "unknown to us"}, None, None)
    files = members(written(ArchiveV1Writer(CONFIG, None, StreamState(), [consumer]), []))
    assert set(files) == {"meta.inf", "meta.sum", "obs/c/meta.inf", "obs/c/meta.sum"}
    assert json.loads(files["obs/c/meta.inf"]) == {"durable_name": "c", "x": "unknown to us", "Name": "c"}
    assert json.loads(files["meta.inf"]) == CONFIG


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a/b", "..", "a*", "a>", "a\\b", "\ud800", "n" * 256, 3, None])
def test_names_that_no_server_takes_are_not_written(name: Any) -> None:
    with pytest.raises(FormatError, match="name"):
        ArchiveV1Writer({"name": name}, None, StreamState())
    if isinstance(name, str):
        with pytest.raises(FormatError, match="name"):
            ArchiveV1Writer(CONFIG, None, StreamState(), [ArchivedConsumer(name, {}, None)])


def test_two_consumers_of_one_name_are_not_written() -> None:
    with pytest.raises(FormatError, match="consumer names"):
        ArchiveV1Writer(CONFIG, None, StreamState(), [CONSUMERS[0], CONSUMERS[0]])


@pytest.mark.parametrize("last_seq", [-1, 1 << 62])
def test_states_beyond_a_servers_numbers_are_not_written(last_seq: int) -> None:
    with pytest.raises(FormatError, match=r"last sequence -1|no server can have the sequence 4611686018427387904 "):
        ArchiveV1Writer(CONFIG, None, StreamState(last_seq=last_seq))


@pytest.mark.parametrize("config", [{"x": float("nan")}, {"x": b"bytes"}])
def test_a_config_that_is_not_json_is_not_written(config: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="not JSON"):
        ArchiveV1Writer({**CONFIG, **config}, None, StreamState()).begin()


def test_messages_out_of_order_or_beyond_the_state_are_not_written() -> None:
    for later in ([5], [4], [0], [-3], [11]):
        writer = ArchiveV1Writer(CONFIG, None, StreamState(first_seq=5, last_seq=10))
        writer.write(batch_of([Message(5)]))
        with pytest.raises(FormatError, match="out of order or range"):
            writer.write(batch_of(Message(sequence) for sequence in later))


def test_a_message_that_no_server_reads_back_is_not_written() -> None:
    fits = Message(1, 0, "s", None, bytes((32 << 20) - 31))
    assert decode(write([fits])).messages == [fits]
    with pytest.raises(FormatError, match="too large"):
        write([fits._replace(data=bytes((32 << 20) - 30))])


# --- deletions ---


def test_what_is_known_to_be_deleted_is_left_out_at_once() -> None:
    archive = tar([*meta(), block(1, 1, 2, 3, 4, 5, 2 | TOMBSTONE)])
    content = decode(archive, first_seq=2, deleted=[2, 4])
    assert sequences(content) == [3, 5]
    assert not content.end.tombstoned
    assert sequences(decode(archive)) == [1, 2, 3, 4, 5]


def test_tombstones_of_given_messages_are_reported_wherever_they_are() -> None:
    archive = tar(
        [
            *meta(),
            block(1, 1, 2, 3, 4, 5, 2 | TOMBSTONE),
            block(4, 1 | TOMBSTONE, 20 | ERASED, 30, 4 | TOMBSTONE, 17 | TOMBSTONE),
            block(5, 99 | TOMBSTONE),
        ]
    )
    content = decode(archive)
    assert sequences(content) == [1, 2, 3, 4, 5, 30]
    assert list(content.end.tombstoned) == [1, 2, 4]
    assert content.end.last_seq == 99
    assert list(late_deletions(content.end).certain) == [1, 2, 4]
    # below the first sequence there is nothing to take out
    assert list(decode(archive, first_seq=3).end.tombstoned) == [4]
    assert list(decode(archive, deleted=[4]).end.tombstoned) == [1, 2]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_tombstone_is_forgotten_when_there_are_many(chance: random.Random) -> None:
    alive, blocks, expected, last = [], [], set(), 0
    for number in range(1, 8):
        records = []
        for _ in range(chance.randrange(1, 12)):
            if alive and chance.random() < 0.5:
                gone = chance.choice([*alive, chance.randrange(1, last + 1)])
                records.append(gone | TOMBSTONE)
                expected |= {gone} & set(alive)
            else:
                last += chance.choice([1, 1, 3])
                records.append(last)
                alive.append(last)
        blocks.append(block(number, *records))
    before = archive_v1_reader._MANY_TOMBSTONES
    try:
        for archive_v1_reader._MANY_TOMBSTONES in (before, 2):
            assert set(decode(tar([*meta(), *blocks])).end.tombstoned) == expected
    finally:
        archive_v1_reader._MANY_TOMBSTONES = before


def test_the_last_sequence_is_proved_by_whatever_is_left_of_it() -> None:
    for files, first_seq, expected in (
        ([], 0, 0),
        ([], 8, 7),
        ([block(1, 5)], 0, 5),
        ([block(1, 5, 9 | ERASED)], 0, 9),
        ([block(1, 5, 5 | TOMBSTONE), block(2, 12 | TOMBSTONE)], 6, 12),
        ([block(1, 5)], 8, 7),
    ):
        assert decode(tar([*meta(), *files]), first_seq).end.last_seq == expected


def end_of(last_seq: int, tombstoned: Iterable[int], index_last: int | None, removed: Iterable[int] = ()) -> ArchiveEnd:
    index = None if index_last is None else IndexState(4, 0, 0, 0, 0, index_last, 0, SequenceSet(removed))
    return ArchiveEnd("v1", 9, last_seq, SequenceSet(tombstoned), index)


def test_the_index_is_exact_if_nothing_came_after_the_blocks() -> None:
    late = late_deletions(end_of(10, [3], 10, [3, 4, 5]))
    assert (list(late.certain), list(late.doubtful)) == ([3, 4, 5], [])


def test_what_a_newer_index_misses_is_doubtful_unless_a_tombstone_says_so_too() -> None:
    late = late_deletions(end_of(10, [3], 11, [3, 4, 5]))
    assert (list(late.certain), list(late.doubtful)) == ([3], [4, 5])


def test_without_an_index_only_tombstones_count() -> None:
    late = late_deletions(end_of(10, [3], None))
    assert (list(late.certain), list(late.doubtful)) == ([3], [])


# --- what is not an archive ---


def test_the_server_saying_that_it_failed_ends_in_its_words() -> None:
    words = b"Could not read message block [2]: no data\n\x1b[31m"
    for files in ([("errors.txt", words)], [*meta(), block(1, 1), ("errors.txt", words)]):
        reader = ArchiveV1Reader()
        items = list(reader.feed(tar(files)))
        assert len(items) == (2 if len(files) > 1 else 0)
        with pytest.raises(FormatError, match=r"gave up: Could not read message block \[2\]: no data\?\?\[31m"):
            reader.finish()


def consumer_files(name: str = "c", key: str | None = None, **config: Any) -> Members:
    files = meta({"Name": name, **config}, f"{STREAM}/{key or name}", f"obs/{name}/")
    return [*files, (f"obs/{name}/o.dat", bytes((22, 2, 0, 0, 0, 0, 0, 0)))]


def test_a_consumer_never_used_has_a_state() -> None:
    files = consumer_files()
    assert decode(tar([*meta(), *files])).consumers == [ArchivedConsumer("c", {}, ConsumerState())]
    files[2] = (files[2][0], b"")
    assert decode(tar([*meta(), *files])).consumers == [ArchivedConsumer("c", {}, ConsumerState())]


C = consumer_files()
INDEX = ("msgs/index.db", members(write([Message(1)]))["msgs/index.db"])


@pytest.mark.parametrize(
    "files",
    [
        [],
        meta()[:1],
        meta()[::-1],
        [*meta(), *meta()],
        [block(1, 1)],
        [*meta(), block(2, 1), block(1, 2)],
        [*meta(), block(1, 1), block(1, 1)],
        [*meta(), INDEX, block(1, 1)],
        [*meta(), block(1, 1), INDEX, INDEX],
        [*meta(), *C, INDEX],
        [*meta(), *C, block(1, 1)],
        [*meta(), *C[:2]],
        [*meta(), C[0], C[2], C[1]],
        [*meta(), *C[1:]],
        [*meta(), C[0], *consumer_files("d")],
        [C[0], *meta()],
        [*meta(), C[0], C[1], C[1], C[2]],
    ],
)
def test_files_missing_doubled_or_in_another_order_are_refused(files: Members) -> None:
    with pytest.raises(FormatError):
        decode(tar(files))


@pytest.mark.parametrize(
    "name",
    [
        "../meta.inf",
        "/meta.inf",
        "./meta.inf",
        "meta.inf/",
        "meta.key",
        "msgs/01.blk",
        "msgs/1.blk/../2.blk",
        "msgs/99999999999.blk",
        "msgs/١.blk",
        "msgs/thw.db",
        "obs/c/x",
        "obs/a/b/meta.inf",
        "obs//meta.inf",
        "obs/../meta.inf",
        "obs/a.b/meta.inf",
        "obs/a\x00b/meta.inf",
        "obs/" + "n" * 256 + "/meta.inf",
        "x" * 60_000,
        "\u202emeta.inf\n",
    ],
)
def test_other_names_are_refused_and_quoted_safely(name: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode(tar([*meta(), (name, b"")]))
    assert len(caught.value.message) < 400
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("name", ["msgs/1.idx", "msgs/1.fss"])
def test_an_archive_of_a_server_before_2_10_is_unsupported(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"older than 2\.10"):
        decode(tar([*meta(), (name, b"")]))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("meta.inf", (16 << 20) + 1),
        ("meta.sum", 17),
        ("msgs/1.blk", (128 << 20) + 1),
        ("obs/c/o.dat", (64 << 20) + 1),
        ("errors.txt", (64 << 10) + 1),
        ("msgs/index.db", 7),
    ],
)
def test_sizes_are_bounded_before_anything_is_kept(name: str, size: int) -> None:
    start = tar([] if name == "meta.inf" else meta())[: -len(TAR_END)]
    with pytest.raises(FormatError):
        list(ArchiveV1Reader().feed(start + tar_header(name, size) + bytes(8)))


@pytest.mark.parametrize(
    "config",
    [
        [],
        {},
        {"name": 5},
        {"name": ""},
        {"name": "a/b"},
        {"name": "\ud800"},
        {"name": "n" * 300},
    ],
)
def test_a_meta_inf_without_a_sound_name_is_refused(config: Any) -> None:
    with pytest.raises(FormatError):
        decode(tar(meta(config)))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b'{"name": NaN}', b"\xff\xfe", b'{"a":' + b"9" * 5000 + b"}"]
)
def test_a_meta_inf_that_is_not_json_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError, match="JSON"):
        decode(tar([("meta.inf", content), ("meta.sum", b"0" * 16)]))


def test_checksums_of_configs_are_checked() -> None:
    with pytest.raises(FormatError, match="wrong checksum"):
        decode(tar(meta(key="OTHER")))
    with pytest.raises(FormatError, match="wrong checksum"):
        decode(tar([*meta(), *consumer_files(key="d")]))
    files = dict(consumer_files("c"))
    with pytest.raises(FormatError, match="another one"):
        decode(
            tar(
                [
                    *meta(),
                    *((n.replace("/c/", "/d/"), d) for n, d in meta({"Name": "c"}, f"{STREAM}/d", "obs/c/")),
                    ("obs/d/o.dat", files["obs/c/o.dat"]),
                ]
            )
        )


def test_damage_in_a_block_or_a_state_is_named() -> None:
    name, data = block(1, 1, 2)
    with pytest.raises(FormatError, match=r"msgs/1\.blk: .*checksum"):
        decode(tar([*meta(), (name, data[:-1] + b"\0")]))
    with pytest.raises(FormatError, match=r"msgs/2\.blk: .*checksum"):
        decode(tar([*meta(), ("msgs/2.blk", data)]))
    with pytest.raises(FormatError, match="consumer c: consumer state"):
        decode(tar([*meta(), *consumer_files()[:2], ("obs/c/o.dat", b"\x16\x09")]))


def test_a_block_without_any_record_may_be_encrypted() -> None:
    name, data = block(1, 1, 2)
    noise = random.Random(1).randbytes(len(data))
    with pytest.raises(SealedBlock, match=r"msgs/1\.blk: nothing in it is a record"):
        decode(tar([*meta(), (name, noise)]))
    for damaged in (bytes(len(data)), data[: len(data) // 2] + noise[len(data) // 2 :], noise[:10] + data[10:]):
        with pytest.raises(FormatError) as caught:
            decode(tar([*meta(), (name, damaged)]))
        assert not isinstance(caught.value, SealedBlock)


def lenient(archive: bytes, first_seq: int = 0, deleted: Iterable[int] = ()) -> tuple[list[int], list[str]]:
    """Sequences and flaws."""
    reader = ArchiveV1Reader(first_seq, SequenceSet(deleted), lenient=True)
    return sequences(read(reader, [archive])), reader.flaws


def test_a_lenient_reader_takes_what_is_proved_and_says_what_is_not() -> None:
    (name, first), (other, second) = block(1, 1, 2, 3, 5), block(2, 6, 7)
    size = len(first) // 4
    archive = tar([*meta(), (name, first[: size + 9] + b"\1" + first[size + 10 :]), (other, second)])
    flaw = f"msgs/1.blk is damaged at bytes {size} to {2 * size - 1}: a record fails its checksum"
    assert lenient(archive) == ([1, 3, 5, 6, 7], [flaw])
    assert lenient(archive, 3, [7])[0] == [3, 5, 6]
    gone = tar([*meta(), (name, first[: 2 * size + 5]), (other, bytes(len(second)))])
    found, flaws = lenient(gone)
    assert found == [1, 2] and len(flaws) == 2 and flaws[1].endswith("there are only zeros")


def test_a_lenient_reader_reads_on_where_the_server_gave_up() -> None:
    archive = tar([*meta(), block(1, 1, 2), ("errors.txt", b"no space left")])
    assert lenient(archive) == ([1, 2], ["the server gave up: no space left"])
    with pytest.raises(FormatError, match="no space left"):
        lenient(tar([("errors.txt", b"no space left")]))


def test_a_lenient_reader_does_without_a_damaged_index() -> None:
    archive = tar([*meta(), block(1, 1, 2), ("msgs/index.db", INDEX[1][:-1] + b"\0")])
    found, flaws = lenient(archive)
    assert found == [1, 2] and len(flaws) == 1 and flaws[0].startswith("index.db cannot be used")


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_mutation_ends_in_content_or_an_error_of_ours(chance: random.Random) -> None:
    archive = bytearray(write([Message(5, 1, "a.b", b"NATS/1.0\r\n\r\n", b"x"), Message(9)], 12))
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(archive))
        match chance.randrange(3):
            case 0:
                archive[at] = chance.randrange(256)
            case 1:
                del archive[at : at + chance.randrange(1, 600)]
            case 2:
                archive[at:at] = archive[chance.randrange(len(archive)) :][: chance.randrange(1, 600)]
    try:
        decode(bytes(archive))
    except JsBackupError:
        return
