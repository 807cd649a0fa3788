from __future__ import annotations

import hashlib

import pytest

from jsbackup.errors import FormatError, IntegrityError, ObjectExists, ObjectNotFound
from jsbackup.repository.document import Documents
from jsbackup.stores.base import Data
from jsbackup.stores.memory import MemoryStore

KEY = "holds/20261121T014500Z-000001.json"


class Boxed:
    """An envelope that shows."""

    suffix = ".box"

    def ensure_writable(self) -> None:
        pass

    def wrap(self, key: str, data: Data) -> Data:
        return b"<" + bytes(data) + b">"

    def unwrap(self, key: str, data: bytes) -> bytes:
        if data[:1] + data[-1:] != b"<>":
            raise IntegrityError(f"{key} has lost its envelope")
        return data[1:-1]

    def claimed_signer(self, key: str, data: bytes) -> str | None:
        return None


def test_a_bare_document_is_stored_as_it_is() -> None:
    store = MemoryStore()
    documents = Documents(store)
    stored = documents.put(KEY, b"{}\n")
    assert store.get(KEY) == b"{}\n" == documents.get(KEY, 3)
    assert (stored.key, stored.size, stored.sha256) == (KEY, 3, hashlib.sha256(b"{}\n").hexdigest())


def test_what_is_told_of_a_wrapped_document_is_that_of_the_stored_object() -> None:
    store = MemoryStore()
    documents = Documents(store, Boxed())
    stored = documents.put(KEY, bytearray(b"{}"))
    assert store.get(KEY + ".box") == b"<{}>"
    found = documents.fetch(KEY, 2)
    assert found.data == b"{}"
    assert (found.key, found.size, found.sha256) == (stored.key, stored.size, stored.sha256)
    assert (stored.key, stored.size, stored.sha256) == (KEY + ".box", 4, hashlib.sha256(b"<{}>").hexdigest())


def test_a_document_is_not_replaced() -> None:
    documents = Documents(MemoryStore(), Boxed())
    documents.put(KEY, b"first")
    with pytest.raises(ObjectExists):
        documents.put(KEY, b"second")
    assert documents.get(KEY, 5) == b"first"


def test_listing_names_documents_as_they_are_read_and_passes_over_those_stored_otherwise() -> None:
    store = MemoryStore()
    documents = Documents(store, Boxed())
    documents.put(KEY, b"{}")
    store.put("holds/plain.json", b"{}")
    store.put("holds/other.box", b"{}")
    assert [(info.key, info.size) for info in documents.list("holds/")] == [(KEY, 4)]
    documents.delete(KEY)
    assert list(documents.list("holds/")) == []
    with pytest.raises(ObjectNotFound):
        documents.get(KEY, 10)


@pytest.mark.parametrize("size", [11, 1 << 20])
def test_a_document_larger_than_it_may_be_is_refused(size: int) -> None:
    documents = Documents(MemoryStore(), Boxed())
    documents.put(KEY, bytes(size))
    with pytest.raises(FormatError, match=r"\.json\.box has more than 10 bytes"):
        documents.get(KEY, 10)
