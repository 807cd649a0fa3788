"""What S3 has beyond the contract: locks, versions, unfinished uploads, options; and errors that people can act on."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.errors import ObjectExists, ObjectLocked, ObjectNotFound, StoreError
from jsbackup.model import S3Settings
from jsbackup.stores import s3
from jsbackup.stores import s3 as s3_upload
from jsbackup.stores.base import LockMode, ObjectInfo
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.s3 import S3Store
from tests.engine.identities import Authority
from tests.harness.s3peer import Answer, S3Peer
from tests.harness.s3server import ACCESS_KEY, BUCKET, LOCKED_BUCKET, SECRET_KEY, S3Server
from tests.stores.s3_bench import settings_of

pytestmark = pytest.mark.s3

_NUMBERS = itertools.count()


def prefix() -> str:
    return f"s3/{next(_NUMBERS)}"


@pytest.fixture
def locked(s3_server: S3Server) -> S3Store:
    """A store in a versioned bucket with object lock."""
    return S3Store(LOCKED_BUCKET, prefix(), settings_of(s3_server.url))


def test_what_others_keep_in_the_bucket_is_not_seen(s3_server: S3Server) -> None:
    ours = prefix()
    store = S3Store(BUCKET, ours, settings_of(s3_server.url))
    store.put("a", b"")
    for foreign in (f"{ours}-other/x", f"{ours}/folder/", f"{ours}/größe", f"{ours}/a b", f"{ours}/.hidden/x"):
        s3_server.client.put_object(Bucket=BUCKET, Key=foreign, Body=b"x")
    assert [info.key for info in store.list()] == ["a"]


def test_the_nearest_prefix_above_that_has_an_object_is_found(s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()

    def above(prefix: str) -> str | None:
        return S3Store(bucket, prefix, settings_of(s3_server.url)).enclosing("mark.json")

    S3Store(bucket, "a/b/c", settings_of(s3_server.url)).put("mark.json", b"")
    assert [above("a/b/c"), above("a/b"), above("a/b/c-d"), above("")] == [None, None, None, None]
    assert above("a/b/c/d") == above("a/b/c/d/e/f") == f"s3://{bucket}/a/b/c"
    S3Store(bucket, "", settings_of(s3_server.url)).put("mark.json", b"")
    assert above("a/b") == above("other") == f"s3://{bucket}" and above("") is None
    assert S3Store("no-such-bucket", "a/b", settings_of(s3_server.url)).enclosing("mark.json") is None


def test_a_large_object_goes_in_parts_without_a_copy_of_it(s3_server: S3Server) -> None:
    store = S3Store(BUCKET, prefix(), settings_of(s3_server.url))
    data = random.Random(1).randbytes(s3_upload.SINGLE_BYTES + 1)
    with S3Peer(s3_server.port) as peer:
        S3Store(BUCKET, store.location.removeprefix(f"s3://{BUCKET}/"), settings_of(peer.url)).put("large", data)
        kinds = [kind for kind, _ in peer.log]
    assert kinds.count("PART") == 5 and kinds[-1] == "COMPLETE" and "PUT" not in kinds
    assert store.get("large") == data
    assert store.get_range("large", len(data) - 2, 10) == data[-2:]
    with pytest.raises(ObjectExists):
        store.put("large", data)


def test_objects_are_stored_as_asked_for(s3_server: S3Server) -> None:
    settings = settings_of(s3_server.url, storage_class="STANDARD_IA")
    store = S3Store(BUCKET, prefix(), settings)
    store.put("a", b"data")
    key = f"{store.location.removeprefix(f's3://{BUCKET}/')}/a"
    assert s3_server.client.head_object(Bucket=BUCKET, Key=key)["StorageClass"] == "STANDARD_IA"
    assert store.get("a") == b"data"
    with pytest.raises(StoreError, match="there is no such storage class"):
        S3Store(BUCKET, prefix(), replace(settings, storage_class="SHELF")).put("a", b"data")


@pytest.mark.parametrize("size", [1, 7 << 20])
def test_encryption_by_the_store_is_asked_for_in_every_kind_of_upload(
    s3_server: S3Server, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from the outside: the test server has no keys to encrypt with."""
    monkeypatch.setattr(s3_upload, "SINGLE_BYTES", 6 << 20)
    with S3Peer(s3_server.port) as peer:
        for kind in ("PUT", "BEGIN"):
            peer.always(Answer(400, "KMS.NotFoundException"), kind)
        store = S3Store(BUCKET, prefix(), settings_of(peer.url, sse="aws:kms", sse_kms_key="key-1"))
        with pytest.raises(StoreError, match=r"the store answers 400 KMS\.NotFoundException"):
            store.put("a", bytes(size))
        headers = {name.lower(): value for name, value in peer.headers[-1].items()}
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"


# --- probe ---


# --- versions and locks ---


def versions_of(server: S3Server, store: S3Store) -> list[str]:
    below = store.location.removeprefix(f"s3://{LOCKED_BUCKET}/")
    found = server.client.list_object_versions(Bucket=LOCKED_BUCKET, Prefix=below)
    return [entry["VersionId"] for kind in ("Versions", "DeleteMarkers") for entry in found.get(kind, [])]


def test_a_delete_frees_the_room_of_all_versions(s3_server: S3Server, locked: S3Store) -> None:
    key = f"{locked.location.removeprefix(f's3://{LOCKED_BUCKET}/')}/a"
    locked.put("a", b"1")
    locked.put("a-b", b"another")
    s3_server.client.put_object(Bucket=LOCKED_BUCKET, Key=key, Body=b"2")
    s3_server.client.delete_object(Bucket=LOCKED_BUCKET, Key=key)
    s3_server.client.put_object(Bucket=LOCKED_BUCKET, Key=key, Body=b"3")
    assert len(versions_of(s3_server, locked)) == 5
    locked.delete("a")
    locked.delete("a")
    assert len(versions_of(s3_server, locked)) == 1
    assert [info.key for info in locked.list()] == ["a-b"]
    locked.put("a", b"new")
    assert locked.get("a") == b"new"


def test_versions_are_found_without_the_right_to_ask_for_them(s3_server: S3Server, locked: S3Store) -> None:
    locked.put("a", b"1")
    with S3Peer(s3_server.port) as peer:
        below = locked.location.removeprefix(f"s3://{LOCKED_BUCKET}/")
        peer.meet(Answer(403, "AccessDenied"), "LIST")  # the question about versioning
        S3Store(LOCKED_BUCKET, below, settings_of(peer.url)).delete("a")
    assert versions_of(s3_server, locked) == []


@pytest.mark.parametrize("mode", list(LockMode))
def test_a_locked_object_stays_and_stays_visible(s3_server: S3Server, locked: S3Store, mode: LockMode) -> None:
    store = RetryingStore(locked, sleep=time.sleep)
    store.put("a", b"data")
    store.check_object_lock()
    store.lock_until("a", time.time() + 3600, mode)
    for _ in range(2):
        with pytest.raises(ObjectLocked, match="the store keeps a locked") as caught:
            store.delete("a")
        assert (caught.value.key, caught.value.exit_code) == ("a", 21)
    assert store.get("a") == b"data"
    assert [info.key for info in store.list()] == ["a"]
    assert len(versions_of(s3_server, locked)) == 1
    with pytest.raises(ObjectExists):
        store.put("a", b"other")


def test_a_locked_object_that_somebody_hid_is_shown_again_when_it_cannot_be_removed(
    s3_server: S3Server, locked: S3Store
) -> None:
    locked.put("a", b"data")
    locked.lock_until("a", time.time() + 3600, LockMode.GOVERNANCE)
    key = f"{locked.location.removeprefix(f's3://{LOCKED_BUCKET}/')}/a"
    s3_server.client.delete_object(Bucket=LOCKED_BUCKET, Key=key)
    with pytest.raises(ObjectNotFound):
        locked.get("a")
    with pytest.raises(ObjectLocked):
        locked.delete("a")
    assert locked.get("a") == b"data"


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        ((1000, LockMode.GOVERNANCE), (500, LockMode.GOVERNANCE), (1000, "GOVERNANCE")),
        ((1000, LockMode.GOVERNANCE), (1999.5, LockMode.GOVERNANCE), (2000, "GOVERNANCE")),
        ((1000, LockMode.COMPLIANCE), (1005, LockMode.GOVERNANCE), (1005, "COMPLIANCE")),
    ],
)
def test_a_lock_is_extended_and_never_shortened_or_weakened(
    s3_server: S3Server,
    locked: S3Store,
    first: tuple[float, LockMode],
    then: tuple[float, LockMode],
    kept: tuple[float, str],
) -> None:
    now = int(time.time())
    locked.put("a", b"data")
    for seconds, mode in (first, then):
        locked.lock_until("a", now + seconds, mode)
    key = f"{locked.location.removeprefix(f's3://{LOCKED_BUCKET}/')}/a"
    retention = s3_server.client.get_object_retention(Bucket=LOCKED_BUCKET, Key=key)["Retention"]
    assert (retention["RetainUntilDate"].timestamp() - now, retention["Mode"]) == kept


# --- unfinished uploads ---


def test_only_old_uploads_of_this_store_are_aborted(s3_server: S3Server) -> None:
    ours = prefix()
    store = S3Store(BUCKET, ours, settings_of(s3_server.url))
    for key in (f"{ours}/a", f"{ours}/b/c", f"{ours}-other/x", f"{ours}/größe"):
        s3_server.client.create_multipart_upload(Bucket=BUCKET, Key=key)
    assert store.abort_stale_uploads(3600) == 0
    assert store.abort_stale_uploads(0) == 2
    left = s3_server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=ours)["Uploads"]
    assert sorted(upload["Key"] for upload in left) == [f"{ours}-other/x", f"{ours}/größe"]
    assert RetryingStore(MemoryStore(), sleep=time.sleep).abort_stale_uploads(0) == 0


# --- the order of listings ---

KEYS = ["a", "b%c", "b-c", "b.c", "b/c", "b/c-2", "b/c/d", "b/c2/d", "b0", "bb", "bb-/x", "bb/a", "c/d/e"]


def by_folders(keys: list[str]) -> list[str]:
    return sorted(keys, key=lambda key: key.split("/"))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prefix", ["", "b/c"])
def test_listings_by_folder_and_by_key_come_out_alike(prefix: str, seed: int) -> None:
    chosen = [key for key in random.Random(seed).sample(KEYS, 9) if key.startswith(prefix)]
    for order in (by_folders(chosen), sorted(chosen)):
        found = (ObjectInfo(key, 1, 2.0) for key in order)
        assert [info.key for info in s3._in_key_order(found, prefix, "here")] == sorted(chosen)


# --- errors ---


def failure(store: S3Store) -> StoreError:
    """What every operation says; they agree but for what it is about."""
    with pytest.raises(StoreError) as caught:
        store.head("a")
    error = caught.value
    assert type(error) is StoreError and error.exit_code == 21 and error.hint
    for work in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: list(store.list())):
        with pytest.raises(StoreError) as caught:
            work()
        assert type(caught.value) is StoreError
        assert caught.value.message.partition(": ")[2] == error.message.partition(": ")[2]
        assert not store.is_temporary(caught.value)
    for secret in (SECRET_KEY, ACCESS_KEY, "wrong-secret", "AWS4-HMAC"):
        assert secret not in error.message + error.hint
    return error


@pytest.mark.parametrize(
    ("bucket", "key", "secret", "says"),
    [
        ("missing-bucket", ACCESS_KEY, SECRET_KEY, "there is no such bucket"),
        (BUCKET, "unknown-key", "wrong-secret", "the access key is not known to the store"),
        (BUCKET, ACCESS_KEY, "wrong-secret", "the secret key is not the one of the access key"),
        (BUCKET, "", "", "there are no credentials"),
    ],
)
def test_a_missing_bucket_and_wrong_credentials_are_told_apart(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, bucket: str, key: str, secret: str, says: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    assert failure(S3Store(bucket, "p", settings_of(s3_server.url))).message.endswith(f": {says}")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            Answer(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-1"}),
            "the bucket is in the region eu-west-1",
        ),
        (Answer(400, "ExpiredToken"), "the session token has expired"),
    ],
    ids=lambda value: value.code if isinstance(value, Answer) else "",
)
def test_what_the_store_refuses_for_good_is_explained(s3_server: S3Server, answer: Answer, says: str) -> None:
    with S3Peer(s3_server.port) as peer:
        peer.always(answer)
        error = failure(S3Store(BUCKET, "p", settings_of(peer.url)))
    assert error.message == f"cannot look at a in s3://{BUCKET}/p: {says}"


def test_words_of_a_hostile_store_are_not_repeated(s3_server: S3Server) -> None:
    with S3Peer(s3_server.port) as peer:
        peer.always(Answer(400, "\x1b[31mEvil code\n" * 100))
        with pytest.raises(StoreError) as caught:
            S3Store(BUCKET, "p", settings_of(peer.url)).get("a")
    assert caught.value.message.isprintable() and len(caught.value.message) < 200


# --- TLS ---


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def test_only_the_right_authority_is_trusted(s3_server: S3Server, authority: Authority, tmp_path: Path) -> None:
    signed = authority.sign("s3")
    (tmp_path / "both.pem").write_bytes(signed.cert.read_bytes() + signed.key.read_bytes())
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with S3Peer(s3_server.port, certificate=tmp_path / "both.pem") as peer:
        ours = prefix()
        store = S3Store(BUCKET, ours, settings_of(peer.url, ca=str(authority.cert)))
        store.put("a", b"data" * 300_000)
        assert store.get("a") == b"data" * 300_000
        for ca in (None, str(other.cert)):
            error = failure(S3Store(BUCKET, ours, settings_of(peer.url, ca=ca)))
            assert f"the certificate of {peer.url} is not signed by a known authority" in error.message
            assert error.hint == "Name the file of its authority with --s3-ca."


# --- addressing ---


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (S3Settings(endpoint="http://store:9000"), "http://store:9000/bucket/a"),
        (S3Settings(endpoint="http://store:9000", path_style=False), "http://bucket.store:9000/a"),
        (S3Settings(region="eu-west-1"), "https://bucket.s3.eu-west-1.amazonaws.com/a"),
        (S3Settings(region="eu-west-1", path_style=True), "https://s3.eu-west-1.amazonaws.com/bucket/a"),
    ],
)
def test_the_bucket_is_in_the_path_or_in_the_host(settings: S3Settings, url: str) -> None:
    from jsbackup.stores.s3_client import make_client

    signed = make_client(settings).generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "a"})
    assert signed.partition("?")[0] == url
