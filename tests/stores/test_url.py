from __future__ import annotations

import pytest

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.stores.local import LocalStore
from jsbackup.stores.s3 import S3Store
from jsbackup.stores.url import open_store


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/var/backups", "/var/backups"),
        ("file:///var/backups", "/var/backups"),
        ("FILE:///var/backups", "/var/backups"),
        ("file://localhost/var/back%20ups", "/var/back ups"),
        ("/odd: name/x", "/odd: name/x"),
        ("/größe", "/größe"),
        ("file:///gr%C3%B6%C3%9Fe", "/größe"),
    ],
)
def test_a_path_or_file_url_is_a_folder(location: str, path: str) -> None:
    store = open_store(location)
    assert isinstance(store, LocalStore)
    assert store.location == path


@pytest.mark.parametrize("location", ["s4://bucket/prefix", "sftp://user:hunter2@host/path", "x+y://"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(location: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        open_store(location)
    assert caught.value.exit_code == 13
    assert caught.value.hint is not None
    assert "a path, file:, s3:." in caught.value.hint
    assert "hunter2" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3://bucket/some/prefix", "s3://bucket/some/prefix"),
        ("S3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://1.b-c/x%20y", "s3://1.b-c/x%20y"),
    ],
)
def test_a_bucket_may_have_a_prefix(location: str, shown: str) -> None:
    store = open_store(location)
    assert isinstance(store, S3Store)
    assert store.location == shown


@pytest.mark.parametrize(
    "location",
    [
        "",
        "  ",
        "a\0b",
        "file://host/path",
        "file://",
        "file:///a?b",
        "file:///a#b",
        "file:///a%00b",
        "file://[",
        "memory:",
        "Memory:x",
    ]
    + [f"s3://{rest}" for rest in ("", "/x", "b", "AKIA:secret@bucket", "bucket?x", "bucket/a b", "bucket/../x")]
    + ["s3://bucket/.hidden", "s3://bucket/a//b", "s3://" + "b" * 64, "s3://bucket/" + "x/" * 300],
)
def test_a_location_that_makes_no_sense_is_a_usage_error(location: str) -> None:
    with pytest.raises(UsageError):
        open_store(location)
