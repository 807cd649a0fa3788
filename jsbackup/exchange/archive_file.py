"""An archive as a file, read in pieces, repeatedly if needed. Errors contain its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.exchange.folder import Folder
from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveEnd, ArchiveItem, StreamMeta
from jsbackup.formats.sequences import SequenceSet

__all__ = ["ArchiveFile"]


class ArchiveFile:
    """The file `name` in a folder. `first_seq` is the reported start of the stream; `where` its shown path."""

    def __init__(self, folder: Folder, name: str, first_seq: int) -> None:
        self._folder = folder
        self._name = name
        self._first_seq = first_seq
        self.where = folder.path_of(name)

    def is_v1(self) -> bool:
        """Return whether it begins as an archive v1. False also for one that ends before that; reading it raises the
        error.
        """
        decoder = ArchiveDecoder()
        with self._named():
            for chunk in self._folder.chunks(self._name):
                for item in decoder.feed(chunk):
                    return isinstance(item, StreamMeta) and item.config is not None
        return False

    def read(
        self, deleted: SequenceSet, take: Callable[[ArchiveItem], int], advance: Callable[[int, int], None]
    ) -> ArchiveEnd:
        """Pass every item, without the messages in `deleted`, to `take`, which returns the number of its messages.

        `advance` is called with the processed bytes and messages. Raises `FormatError`, `UnsupportedError`.
        """
        decoder = ArchiveDecoder(self._first_seq, deleted)
        with self._named():
            for chunk in self._folder.chunks(self._name):
                advance(len(chunk), sum(map(take, decoder.feed(chunk))))
            items, end = decoder.finish()
            advance(0, sum(map(take, items)))
        return end

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.where}: {error.message}", hint=error.hint) from error
        except FormatError as error:
            raise FormatError(f"{self.where}: {error.message}", hint=error.hint) from error
