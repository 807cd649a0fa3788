from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.transforms.object_meta import rename_in_meta


def rename(name: str) -> str:
    return {"old": "new", "other": "OTHER"}.get(name, name)


def test_only_the_names_of_buckets_are_exchanged() -> None:
    meta = (
        b'{"name":"old","bucket":"old", "nuid":"N","size":1e2,'
        b'"options":{"link":{"bucket":"other","name":"old"}},"x":{"bucket":"old"}}'
    )
    assert rename_in_meta(meta, rename) == meta.replace(b'"bucket":"old", ', b'"bucket":"new", ').replace(
        b'"link":{"bucket":"other"', b'"link":{"bucket":"OTHER"'
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"old"',
        b'{"bucket":5}',
        b'{"bucket":["old"]}',
        b"\xff",
        b"[" * 10**6,
        b'{"options":"old"}',
    ],
)
def test_what_clients_cannot_read_stays(payload: bytes) -> None:
    assert rename_in_meta(payload, rename) == payload


def test_a_name_that_cannot_be_written_again_stays() -> None:
    """Half a surrogate pair, with options that rename every bucket."""
    payload = b'{"bucket":"a\\ud800","options":{"link":{"bucket":"\\udfff"}}}'
    assert rename_in_meta(payload, lambda name: f"N-{name}") == payload


def test_a_name_is_known_whatever_escapes_it_is_written_with() -> None:
    assert (
        rename_in_meta(b'{"buc\\u006bet":"\\u006fld","bucket":"kept"}', rename)
        == b'{"buc\\u006bet":"new","bucket":"kept"}'
    )


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["bucket", "name", "options"]),
        st.text(max_size=5)
        | st.none()
        | st.dictionaries(
            st.sampled_from(["link"]), st.dictionaries(st.sampled_from(["bucket"]), st.sampled_from(["old", "z"]))
        ),
    )
)
def test_renaming_there_and_back_is_as_it_was(meta: dict[str, object]) -> None:
    payload = json.dumps(meta).encode()
    there = rename_in_meta(payload, lambda name: {"old": "zz-new"}.get(name, name))
    assert rename_in_meta(there, lambda name: {"zz-new": "old"}.get(name, name)) == payload
