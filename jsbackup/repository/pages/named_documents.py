"""Documents that are named by their content, as pages are: equal ones are stored once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectExists, ObjectNotFound
from jsbackup.repository import layout
from jsbackup.repository.documents import Document, Documents
from jsbackup.repository.objects import Objects
from jsbackup.repository.refs import PageRef, StreamPageRef

__all__ = ["NamedDocuments", "fetch_page", "stored_as"]

AnyPage = TypeVar("AnyPage", PageRef, StreamPageRef)


def fetch_page(documents: Documents, objects: Objects, page: PageRef | StreamPageRef, limit: int) -> bytes:
    """Return the document of a page, of at most `limit` bytes; `objects` learns of a damaged one.

    Raises:
        IntegrityError: it is missing, or not the one that was stored.
        KeyUnavailable, StoreError: it cannot be read.
    """
    try:
        found = documents.fetch(page.key.removesuffix(objects.sealing.suffix), limit)
    except ObjectNotFound as error:
        objects.note_damaged(page)
        raise IntegrityError(f"object {page.key} is missing") from error
    if (found.size, found.sha256) != (page.size, page.sha256):
        objects.note_damaged(page)
        raise DigestMismatch(f"object {page.key} has changed since it was stored (SHA-256 differs)")
    return found.data


def stored_as(page: AnyPage, stored: Document) -> AnyPage:
    """Return the page with the object that it is stored in."""
    return replace(page, key=stored.key, size=stored.size, sha256=stored.sha256)


class NamedDocuments:
    """Puts documents under names that their content decides. `replaces` is as in `Objects`."""

    def __init__(self, documents: Documents, *, replaces: bool) -> None:
        self._documents = documents
        self._token = secrets.token_hex() if replaces else ""

    def put(
        self, key: str, data: bytes, *, name: str, limit: int, is_damaged: Callable[[Document], bool] | None = None
    ) -> Document:
        """Store a document under `key`, which has `name`, or use the one that is there.

        If that is another one, or `is_damaged`, the document is stored beside it, under a replacement's key. `limit` is
        the most bytes that such a document has.

        Raises:
            IntegrityError: what is there is damaged, and so are those that replace it.
            KeyUnavailable, StoreError: as `Documents.put`.
        """
        for one in self._keys(key, name):
            try:
                stored = self._documents.put(one, data)
            except ObjectExists:
                found = self._fetch(one, limit)
                if found is not None and found.data == data and not (is_damaged and is_damaged(found)):
                    return found
            else:
                return Document(data, stored.key, stored.size, stored.sha256)
        raise IntegrityError(
            f"object {self._documents.stored_key(key)} is damaged, and so are those that replace it",
            hint="Remove them and run the command again.",
        )

    def _fetch(self, key: str, limit: int) -> Document | None:
        try:
            return self._documents.fetch(key, limit)
        except (IntegrityError, FormatError):
            return None

    def _keys(self, key: str, name: str) -> Sequence[str]:
        """Return the keys to try, in order. Where two writers would replace each other's, each has its own."""
        if not self._token:
            return [key, *layout.replacement_keys(key, name)]
        return layout.replacement_keys(key, hashlib.sha256(f"{self._token}{name}".encode()).hexdigest())
