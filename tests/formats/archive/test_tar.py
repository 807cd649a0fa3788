from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats.archive.tar import TAR_END, TarReader, header_name, tar_header, tar_padding

Members = list[tuple[str, bytes]]


def ours(members: Members) -> bytes:
    return b"".join(tar_header(name, len(data)) + data + tar_padding(len(data)) for name, data in members) + TAR_END


def pythons(members: Members, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """As Python's `tarfile` writes it, with a modification time below a second, as Go's does."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1795247728.687664
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def read(pieces: Iterable[bytes]) -> Members:
    reader = TarReader()
    found: dict[str, bytes] = {}
    for piece in pieces:
        for part in reader.feed(piece):
            assert part.offset == len(found.get(part.name, b""))
            found[part.name] = found.get(part.name, b"") + part.data
            assert part.is_last == (len(found[part.name]) == part.size)
    reader.finish()
    return list(found.items())


SAMPLE: Members = [
    ("meta.inf", b"{}"),
    ("msgs/1.blk", b"x" * 512),
    ("msgs/2.blk", b""),
    (f"obs/{'n' * 250}/meta.inf", b"y" * 513),
    ("obs/größe-日本/o.dat", b"\x00" * 1500),
]
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=150)
member_lists = st.lists(st.tuples(names, st.binary(max_size=1100)), max_size=5, unique_by=lambda member: member[0])


@pytest.mark.parametrize("make", [ours, pythons], ids=["ours", "python's"])
def test_members_come_back_whole_and_byte_by_byte(make) -> None:  # type: ignore[no-untyped-def]
    archive = make(SAMPLE)
    assert read([archive]) == SAMPLE
    assert read(archive[at : at + 1] for at in range(len(archive))) == SAMPLE


def test_pythons_tarfile_reads_what_we_write() -> None:
    with tarfile.open(fileobj=io.BytesIO(ours(SAMPLE))) as tar:
        assert [(info.name, tar.extractfile(info).read()) for info in tar] == SAMPLE  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None)
@given(member_lists, st.randoms(use_true_random=False))
def test_any_members_come_back_from_pieces_of_any_size(members: Members, chance: random.Random) -> None:
    archive = ours(members)
    cuts = sorted(chance.randrange(len(archive) + 1) for _ in range(6))
    assert read(archive[a:b] for a, b in zip([0, *cuts], [*cuts, len(archive)], strict=True)) == members


def test_a_tar_cut_short_anywhere_is_refused() -> None:
    archive = ours(SAMPLE)
    for size in range(len(archive)):
        with pytest.raises(FormatError):
            read([archive[:size]])


def test_zeros_after_the_end_are_padding_and_anything_else_is_refused() -> None:
    assert read([ours(SAMPLE), bytes(10240)]) == SAMPLE
    with pytest.raises(FormatError, match="more after its end"):
        read([ours(SAMPLE), ours(SAMPLE)])


def test_a_flipped_header_bit_is_noticed_or_means_nothing() -> None:
    archive = bytearray(ours([("meta.inf", b"12345")]))
    refused = 0
    for bit in range(512 * 8):
        archive[bit // 8] ^= 1 << bit % 8
        try:
            assert read([bytes(archive)]) == [("meta.inf", b"12345")]
        except FormatError:
            refused += 1
        archive[bit // 8] ^= 1 << bit % 8
    assert refused > 512 * 8 - 10  # but for the blanks that end the checksum


def header(**changes: bytes) -> bytes:
    """A sound header with fields replaced, its checksum right again."""
    fields = {"name": slice(0, 100), "size": slice(124, 136), "kind": slice(156, 157), "magic": slice(257, 265)}
    block = bytearray(tar_header("meta.inf", 0))
    for name, value in changes.items():
        place = fields[name]
        block[place] = value.ljust(place.stop - place.start, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "block",
    [
        header(kind=b"2"),  # a symbolic link
        header(kind=b"5"),  # a directory
        header(kind=b"g"),  # PAX records for all that follows
        header(kind=b"L"),  # GNU's long name
        header(size=b"-0000000001"),
        header(size=b"0000000000x"),
        header(size=b"\x80" + b"\xff" * 11),  # base 256
        header(size=b""),
        header(magic=b"ustar  \0"),
        header(name=b"\xff\xfe"),
        header(kind=b"x", size=b"00000000000"),
        header(kind=b"x", size=b"77777777777"),
    ],
)
def test_hostile_headers_are_refused(block: bytes) -> None:
    with pytest.raises(FormatError):
        read([block + TAR_END])


@pytest.mark.parametrize(
    "records",
    [
        b"path=x\n",
        b"9 path=xx",
        b"99 path=x\n",
        b"3 a\n",
        b"0 a=b\n",
        b"999999 a=b\n",
        b"11 path=\xff\xfe\n",
        b"8 size=9\n",
        b"27 GNU.sparse.major=1234567\n",
        b"-9 path=x\n",
    ],
)
def test_hostile_pax_records_are_refused(records: bytes) -> None:
    block = header(kind=b"x", size=b"%011o" % len(records)) + records + tar_padding(len(records))
    with pytest.raises(FormatError):
        read([block + tar_header("meta.inf", 0) + TAR_END])


def test_pax_records_without_a_member_are_refused() -> None:
    records = b"10 path=xx\n"
    block = header(kind=b"x", size=b"%011o" % len(records)) + records + tar_padding(len(records))
    with pytest.raises(FormatError):
        read([block + block + tar_header("meta.inf", 0) + TAR_END])
    with pytest.raises(FormatError):
        read([block + TAR_END])


def test_a_header_tells_the_name() -> None:
    assert header_name(tar_header("meta.inf", 3)) == "meta.inf"
    assert header_name(bytes(512)) is None
    assert header_name(b"NATSARC1" + bytes(504)) is None
    assert header_name(tar_header("meta.inf", 3)[:511]) is None


def test_a_member_too_large_for_its_header_is_refused() -> None:
    with pytest.raises(FormatError, match="too large"):
        tar_header("meta.inf", 8**11)
