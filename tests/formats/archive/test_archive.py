from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from jsbackup.errors import FormatError, JsBackupError, UnknownArchiveFormat
from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveV2Writer, late_deletions
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.archive.tar import TAR_END, tar_header
from jsbackup.model import ConsumerState, SequencePair
from tests.formats.archives import CONFIG, CONSUMERS, CREATED, Content, in_s2, read, state_of, written
from tests.formats.golden_archives import Golden
from tests.harness.batches import Message, batch_of
from tests.harness.oracle import normal_config
from tests.harness.servers import VERSIONS

V1_VERSIONS = [version for version in VERSIONS if version < "2.15"]
MESSAGES = [
    Message(5, 10, "orders.new", None, b"x" * 40),
    Message(6, 11, "orders.größe", b"NATS/1.0\r\nA: 1\r\n\r\n", b""),
    Message(20, 12, "orders.new", None, b"y"),
]


def small_archives() -> dict[str, bytes]:
    state = state_of(MESSAGES, 25)
    return {
        "v1": written(ArchiveV1Writer(CONFIG, CREATED, state, CONSUMERS), [batch_of(MESSAGES)]),
        "v2": written(ArchiveV2Writer(state, CONSUMERS), [batch_of(MESSAGES)]),
    }


def decode(raw: bytes, *cuts: int) -> Content:
    return read(ArchiveDecoder(), [raw[a:b] for a, b in zip((0, *cuts), (*cuts, len(raw)), strict=True)])


def state_in_words(info: dict[str, Any]) -> ConsumerState:
    """The part of a consumer's info that says where it is."""
    pairs = (SequencePair(info[key]["consumer_seq"], info[key]["stream_seq"]) for key in ("delivered", "ack_floor"))
    return ConsumerState(*pairs)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("forewarned", [True, False])
def test_real_snapshots_hold_what_their_server_said(version: str, forewarned: bool) -> None:
    golden = Golden(version)
    decoder = ArchiveDecoder(golden.state["first_seq"], golden.deleted) if forewarned else ArchiveDecoder()
    content = read(decoder, [golden.raw])
    late = late_deletions(content.end)
    assert not late.doubtful
    if forewarned:
        assert not late.certain
    assert [one for one in content.messages if one.sequence not in late.certain] == golden.messages
    assert content.end.last_seq == golden.state["last_seq"]
    if content.end.format == "v1":
        assert content.meta.config is not None
        assert normal_config(content.meta.config, {}) == normal_config(golden.config, {})
        assert content.meta.created == golden.created
        index = content.end.index
        assert index is not None
        assert (index.messages, index.bytes) == (golden.state["messages"], golden.state["bytes"])
        assert (index.first_seq, index.last_seq, index.last_ns) == (3, 21, golden.last_ns)
    else:
        state = content.meta.state
        assert state is not None
        assert (state.messages, state.bytes) == (golden.state["messages"], golden.state["bytes"])
        assert (state.first_seq, state.last_seq, state.last_ns) == (3, 21, golden.last_ns)


@pytest.mark.parametrize("version", VERSIONS)
def test_real_snapshots_hold_their_consumers(version: str) -> None:
    golden = Golden(version)
    consumers = {one.name: one for one in read(ArchiveDecoder(), [golden.raw]).consumers}
    assert consumers.keys() == golden.consumers.keys()
    for name, info in golden.consumers.items():
        # Before 2.12 the name of a durable consumer is not part of the stored config.
        config = {"name": name, **normal_config(consumers[name].config, {})}
        assert config == {"name": name, **normal_config(info["config"], {})}
        state = consumers[name].state
        assert state is not None
        assert len(state.pending) == info["num_ack_pending"]
        assert len(state.redelivered) == info["num_redelivered"]
        # 2.10 does not store where a consumer starts that begins with the last message.
        expected = state_in_words(info) if (version, name) != ("2.10.26", "größe") else ConsumerState()
        assert (state.delivered, state.ack_floor) == (expected.delivered, expected.ack_floor)
    pull = consumers["pull"].state
    assert pull is not None
    assert list(pull.pending) == [18]
    assert pull.redelivered == {18: 1}


@pytest.mark.parametrize("version", V1_VERSIONS)
def test_deletions_without_a_tombstone_are_known_from_the_index_alone(version: str) -> None:
    end = read(ArchiveDecoder(first_seq=3), [Golden(version).raw]).end
    assert end.index is not None
    assert set(end.index.removed) - set(end.tombstoned) >= {9, 10}
    assert 16 in end.tombstoned


@pytest.mark.parametrize("version", VERSIONS)
def test_real_snapshots_are_the_same_in_pieces_of_any_size(version: str) -> None:
    raw = Golden(version).raw
    whole = decode(raw)
    assert decode(raw, *range(1, len(raw))) == whole
    chance = random.Random(7)
    for _ in range(20):
        assert decode(raw, *sorted(chance.randrange(len(raw)) for _ in range(5))) == whole


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_a_stream_cut_short_anywhere_is_refused(name: str) -> None:
    raw = in_s2(small_archives()[name])
    for size in range(len(raw)):
        with pytest.raises(FormatError):
            decode(raw[:size])


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1", "v2"])
def test_an_archive_cut_short_anywhere_within_a_whole_s2_stream_is_refused(name: str) -> None:
    archive = small_archives()[name]
    for size in range(len(archive)):
        with pytest.raises(FormatError):
            decode(in_s2(archive[:size]))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flipped_bit_of_a_real_snapshot_changes_nothing_or_is_noticed(version: str) -> None:
    raw = bytearray(Golden(version).raw)
    whole = decode(bytes(raw))
    chance = random.Random(11)
    for bit in [chance.randrange(len(raw) * 8) for _ in range(1500)]:
        raw[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(JsBackupError):
            assert decode(bytes(raw)) == whole
        raw[bit // 8] ^= 1 << bit % 8


@pytest.mark.slow
def test_a_flipped_bit_below_s2_is_noticed_in_v1_but_for_what_is_not_covered_by_a_checksum() -> None:
    archive = bytearray(small_archives()["v1"])
    whole = decode(in_s2(bytes(archive)))
    chance = random.Random(5)
    for bit in [chance.randrange(len(archive) * 8) for _ in range(3000)]:
        archive[bit // 8] ^= 1 << bit % 8
        try:
            content = decode(in_s2(bytes(archive)))
        except JsBackupError:
            pass
        else:
            assert content.meta == whole.meta
            assert content.messages == whole.messages
            assert content.end == whole.end
        archive[bit // 8] ^= 1 << bit % 8


def test_any_damage_below_s2_gives_content_or_an_error_of_ours_in_v2() -> None:
    archive = small_archives()["v2"]
    chance = random.Random(6)
    for _ in range(3000):
        damaged = bytearray(archive)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with contextlib.suppress(JsBackupError):
            decode(in_s2(bytes(damaged)))


@pytest.mark.parametrize(
    "start",
    [
        b"PK\x03\x04" + bytes(600),
        b"NATSARC2" + bytes(600),
        bytes(1024),
        tar_header("backup.json", 3) + b"{}\n" + bytes(509) + TAR_END,
    ],
)
def test_other_formats_are_unknown_and_not_damage(start: bytes) -> None:
    decoder = ArchiveDecoder()
    with pytest.raises(UnknownArchiveFormat) as caught:
        list(decoder.feed(in_s2(start)))
    assert caught.value.prefix[:8] == start[:8]
    with pytest.raises(UnknownArchiveFormat):
        decoder.finish()
    with pytest.raises(UnknownArchiveFormat):
        list(decoder.feed(b""))


@pytest.mark.parametrize("start", [b"", b"NATS", b"NATSARC1", b"PK", tar_header("meta.inf", 3)[:511]])
def test_too_little_is_an_archive_cut_short(start: bytes) -> None:
    with pytest.raises(FormatError, match="cut short"):
        decode(in_s2(start))


def test_a_refused_stream_stays_refused() -> None:
    raw = in_s2(small_archives()["v1"])
    decoder = ArchiveDecoder()
    with pytest.raises(FormatError) as caught:
        list(decoder.feed(raw[:200] + b"\xff" + raw[201:]))
    for again in (decoder.finish, lambda: list(decoder.feed(raw))):
        with pytest.raises(FormatError) as repeated:
            again()
        assert repeated.value is caught.value
