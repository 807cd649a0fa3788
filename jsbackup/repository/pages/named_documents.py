"""Documents that are named by their content, as pages are: equal ones are stored once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence

from jsbackup.errors import FormatError, IntegrityError, ObjectExists
from jsbackup.repository import layout
from jsbackup.repository.documents import Document, Documents

__all__ = ["NamedDocuments"]


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
