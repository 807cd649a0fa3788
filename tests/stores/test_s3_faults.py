"""S3 that is slow, refuses, breaks off, lies and ignores: nothing is lost, nothing is wrong, each put happens once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.model import S3Settings
from jsbackup.stores import s3 as s3_upload
from jsbackup.stores import s3_client
from jsbackup.stores.base import Store
from jsbackup.stores.probe import probe_store
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.s3 import S3Store
from tests.harness.s3peer import Answer, Fault, S3Peer, Trouble
from tests.harness.s3server import BUCKET, SECRET_KEY, S3Server
from tests.stores.s3_bench import settings_of

pytestmark = pytest.mark.s3

DATA = bytes(range(256)) * 10
SLOW_DOWN = Answer(503, "SlowDown")
_NUMBERS = itertools.count()


class Bench:
    """A store behind a peer, a retrying one over it, and one that goes straight to the server to see what is there."""

    def __init__(self, server: S3Server, peer: S3Peer) -> None:
        self.peer = peer
        self.server = server
        self.prefix = f"faults/{next(_NUMBERS)}"
        self.bare = S3Store(BUCKET, self.prefix, settings_of(peer.url))
        self.slept: list[float] = []
        self.store = RetryingStore(self.bare, sleep=self.slept.append, delays=(1.0, 2.0, 3.0))
        self.truth = S3Store(BUCKET, self.prefix, settings_of(server.url))
        list(self.bare.list())  # a store that never answered gets no second chance

    def uploads(self) -> int:
        found = self.server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=self.prefix)
        return len(found.get("Uploads", []))


@pytest.fixture
def bench(s3_server: S3Server) -> Iterator[Bench]:
    with S3Peer(s3_server.port) as peer:
        yield Bench(s3_server, peer)


BAD_MOMENTS: list[Trouble] = [
    SLOW_DOWN,
    Fault.RESET_AFTER,
    Fault.ERROR_AFTER,
]
OPERATIONS: dict[str, tuple[str, Callable[[Store], object], object]] = {
    "put": ("PUT", lambda store: store.put("a/new", DATA), None),
    "put looks": ("HEAD", lambda store: store.put("a/new", DATA), None),
    "get": ("GET", lambda store: store.get("a/old"), DATA),
    "get_range": ("GET", lambda store: store.get_range("a/old", 5, 10), DATA[5:15]),
    "head": ("HEAD", lambda store: store.head("a/old").size, len(DATA)),
    "list": ("LIST", lambda store: [info.key for info in store.list("a/o")], ["a/old"]),
    "delete": ("DELETE", lambda store: store.delete("a/gone"), None),
}


@pytest.mark.parametrize("trouble", BAD_MOMENTS, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_a_bad_moment_it_is_as_if_nothing_had_been(bench: Bench, operation: str, trouble: Trouble) -> None:
    kind, work, expected = OPERATIONS[operation]
    bench.truth.put("a/old", DATA)
    bench.truth.put("a/gone", DATA)
    bench.peer.meet(trouble, kind, times=2)
    assert work(bench.store) == expected
    assert bench.slept[0] == 1.0 and len(bench.slept) in (1, 2)
    there = {info.key: bench.truth.get(info.key) for info in bench.truth.list()}
    wanted = {"put": {"a/new", "a/old", "a/gone"}, "delete": {"a/old"}}.get(operation.split()[0], {"a/old", "a/gone"})
    assert there == dict.fromkeys(wanted, DATA)


def test_a_store_that_does_not_answer_is_asked_again(bench: Bench) -> None:
    impatient = S3Store(BUCKET, bench.prefix, settings_of(bench.peer.url, read_seconds=2.0))
    bench.peer.meet(Fault.HANG, "PUT")
    RetryingStore(impatient, sleep=bench.slept.append).put("a", DATA)
    assert bench.slept and bench.truth.get("a") == DATA
    bench.peer.always(Fault.HANG, "PUT")
    with pytest.raises(StoreError, match="did not answer in time") as caught:
        impatient.put("b", DATA)
    assert impatient.is_temporary(caught.value)


@pytest.mark.parametrize("trouble", [Fault.RESET_AFTER, Fault.ERROR_AFTER], ids=str)
def test_a_put_whose_answer_was_lost_is_not_taken_for_anothers(bench: Bench, trouble: Fault) -> None:
    bench.peer.meet(trouble, "PUT")
    bench.store.put("a", DATA)
    assert bench.peer.count("PUT") == 1  # the look before the second try found it
    with pytest.raises(ObjectExists):
        bench.store.put("a", DATA)


def test_an_object_that_came_meanwhile_is_not_taken_for_our_own(bench: Bench) -> None:
    bench.peer.meet(SLOW_DOWN, "PUT")
    bench.store = RetryingStore(bench.bare, sleep=lambda seconds: bench.truth.put("a", b"theirs"))
    with pytest.raises(ObjectExists):
        bench.store.put("a", DATA)
    assert bench.truth.get("a") == b"theirs"


def test_the_store_says_how_long_to_wait(bench: Bench) -> None:
    bench.peer.meet(Answer(503, "SlowDown", {"Retry-After": "7"}), "PUT")
    bench.peer.meet(Answer(503, "SlowDown", {"Retry-After": "999999999"}), "PUT")
    bench.peer.meet(Answer(503, "SlowDown", {"Retry-After": "Sat, 21 Nov 2026 11:00:00 GMT"}), "PUT")
    bench.store.put("a", DATA)
    assert bench.slept == [7.0, 60.0, 3.0]


@pytest.mark.parametrize("trouble", [Fault.TRUNCATE, Fault.RESET_BEFORE])
def test_a_listing_of_many_pages_is_whole_and_goes_on_where_it_broke(
    bench: Bench, trouble: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_small(settings: S3Settings) -> Any:
        client = s3_client.make_client(settings)
        client.list_objects_v2 = partial(client.list_objects_v2, MaxKeys=7)
        return client

    monkeypatch.setattr("jsbackup.stores.s3.make_client", make_small)
    store = RetryingStore(S3Store(BUCKET, bench.prefix, settings_of(bench.peer.url)), sleep=bench.slept.append)
    for number in range(20):
        bench.truth.put(f"k/{number:02}", b"")
    bench.peer.meet(trouble, "LIST", after=1)
    assert [info.key for info in store.list("k/")] == [f"k/{number:02}" for number in range(20)]
    assert bench.peer.count("LIST") >= 4 and bench.slept


# --- damaged bytes ---


@pytest.mark.parametrize("read", [lambda s: s.get("a"), lambda s: s.get_range("a", 0, len(DATA) + 1)])
@pytest.mark.parametrize("trouble", [Fault.TRUNCATE, Fault.FLIP], ids=str)
def test_damage_on_the_way_from_the_store_is_noticed_and_read_again(
    bench: Bench, trouble: Fault, read: Callable[[Store], bytes]
) -> None:
    bench.truth.put("a", DATA)
    bench.peer.meet(trouble, "GET", times=2)
    assert read(bench.store) == DATA
    bench.peer.always(trouble, "GET")
    with pytest.raises(StoreError, match=r"cannot read a in s3://"):
        read(bench.store)


def test_damage_on_the_way_to_the_store_is_noticed_and_sent_again(bench: Bench) -> None:
    bench.peer.meet(Fault.FLIP_UPLOAD, "PUT")
    bench.store.put("a", DATA)
    assert bench.slept == [1.0]
    assert bench.truth.get("a") == DATA


def test_what_lies_there_damaged_is_given_as_it_lies_there(bench: Bench) -> None:
    """The caller knows from the manifest what it should be, and can say what is lost."""
    bench.truth.put("a", DATA)
    metadata = bench.server.client.head_object(Bucket=BUCKET, Key=f"{bench.prefix}/a")["Metadata"]
    bench.server.client.put_object(Bucket=BUCKET, Key=f"{bench.prefix}/a", Body=DATA[:-1] + b"X", Metadata=metadata)
    assert bench.store.get("a") == DATA[:-1] + b"X"
    assert (bench.slept, bench.peer.count("GET")) == ([], 2)


# --- parts ---


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An object of three parts; five MiB is the least that S3 takes."""
    monkeypatch.setattr(s3_upload, "SINGLE_BYTES", 6 << 20)
    monkeypatch.setattr(s3_upload, "PART_BYTES", 5 << 20)
    return random.Random(3).randbytes(11 << 20)


@pytest.mark.parametrize("trouble", [Fault.RESET_BEFORE, Fault.ERROR_AFTER], ids=str)
@pytest.mark.parametrize("kind", ["BEGIN", "PART", "COMPLETE"])
def test_an_upload_in_parts_survives_a_bad_moment(
    bench: Bench, small_parts: bytes, kind: str, trouble: Trouble
) -> None:
    bench.peer.meet(trouble, kind, after=2 if kind == "PART" else 0)
    bench.store.put("a", memoryview(small_parts))
    assert bench.slept == [1.0]
    assert bench.store.get("a") == small_parts
    # An upload whose beginning was answered by nothing is known to nobody; `abort_stale_uploads` finds it.
    orphans = 1 if kind == "BEGIN" and trouble in (Fault.RESET_AFTER, Fault.ERROR_AFTER) else 0
    assert bench.uploads() == orphans
    assert bench.store.abort_stale_uploads(3600) == 0
    assert bench.store.abort_stale_uploads(0) == orphans
    assert bench.uploads() == 0
    assert [(info.key, info.size) for info in bench.truth.list()] == [("a", len(small_parts))]


def test_an_upload_in_parts_replaces_nothing(bench: Bench, small_parts: bytes) -> None:
    def theirs(seconds: float) -> None:
        bench.truth.put("a", b"theirs")

    bench.peer.meet(SLOW_DOWN, "COMPLETE")
    with pytest.raises(ObjectExists):
        RetryingStore(bench.bare, sleep=theirs).put("a", small_parts)
    bench.server.client.delete_object(Bucket=BUCKET, Key=f"{bench.prefix}/a")
    bench.peer.meet(Answer(412, "PreconditionFailed"), "COMPLETE")
    with pytest.raises(ObjectExists):
        bench.bare.put("a", small_parts)
    assert bench.uploads() == 0


# --- stores without conditions ---


def test_a_store_that_ignores_conditions_is_found_out_and_nothing_is_replaced(bench: Bench) -> None:
    bench.peer.always(Fault.UNCONDITIONAL, "PUT")
    probe = probe_store(bench.store, "probe/1")
    assert (probe.conditional_writes, probe.checksums) == (False, True)
    bench.store.put("a", DATA)
    for _ in range(2):
        with pytest.raises(ObjectExists):
            bench.store.put("a", b"other")
    bench.peer.meet(Fault.RESET_AFTER, "PUT")
    bench.store.put("b", DATA)
    assert {info.key: bench.truth.get(info.key) for info in bench.truth.list()} == {"a": DATA, "b": DATA}


def test_a_store_that_refuses_conditions_is_asked_without(bench: Bench, small_parts: bytes) -> None:
    bench.peer.meet(Answer(501, "NotImplemented"), "PUT")
    bench.store.put("a", DATA)
    assert "If-None-Match" not in bench.peer.headers[-1]
    with pytest.raises(ObjectExists):
        bench.store.put("a", b"other")
    bench.store.put("b", small_parts)
    assert (bench.truth.get("a"), bench.truth.get("b") == small_parts) == (DATA, True)
    assert probe_store(bench.store, "probe/1").conditional_writes is False


# --- answers that make no sense ---

HTML = Answer(200, headers={"Content-Type": "text/html"}, body=b"<html><body>It works!</body></html>")


@pytest.mark.parametrize("answer", [HTML, Answer(200), Answer(404, body=b"nothing here")], ids=str)
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "list"])
def test_a_server_that_is_no_s3_store_is_not_believed(bench: Bench, operation: str, answer: Answer) -> None:
    """Whatever it says, nothing but a store error comes of it, and nothing is taken for absent."""
    bench.peer.always(answer)
    stranger = S3Store(BUCKET, bench.prefix, settings_of(bench.peer.url))
    try:
        found = OPERATIONS[operation][1](stranger)
    except (StoreError, UnsupportedError) as error:
        assert not isinstance(error, ObjectNotFound)
        assert SECRET_KEY not in error.message
    else:
        assert operation in ("delete", "get"), found  # DELETE has no answer to judge, and GET may give any bytes


@pytest.mark.parametrize(
    "page",
    [
        "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>",
        "<IsTruncated>true</IsTruncated>",
        "<Contents><Key>a</Key><Size>many</Size><LastModified>2026-11-21T11:00:00Z</LastModified></Contents>",
        "<Contents><Key>a</Key><Size>1</Size><LastModified>yesterday</LastModified></Contents>",
        "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-11-21T11:00:00Z</LastModified></Contents>"
            for key in ("b", "a")
        ),
    ],
)
def test_a_listing_that_makes_no_sense_ends_with_an_error(s3_server: S3Server, page: str) -> None:
    with S3Peer(s3_server.port) as peer:
        peer.always(Answer(200, body=f"<?xml version='1.0'?><ListBucketResult>{page}</ListBucketResult>".encode()))
        with pytest.raises(StoreError, match=f"cannot list s3://{BUCKET}"):
            list(S3Store(BUCKET, "", settings_of(peer.url)).list())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Range": "bytes 0-9/100"}, b"0123456789"),
        ({"Content-Range": "bytes five"}, b"0123456789"),
        ({}, b"x" * 1000),
    ],
)
def test_another_range_than_was_asked_for_is_refused(bench: Bench, headers: dict[str, str], body: bytes) -> None:
    bench.peer.meet(Answer(206 if headers else 200, headers=headers, body=body), "GET")
    with pytest.raises(UnsupportedError, match="another range than requested"):
        bench.bare.get_range("a", 5, 10)
