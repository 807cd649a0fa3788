"""An archive as a file, read piece by piece as often as it takes. What is wrong with it is said with its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.exchange.folder import Folder
from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveEnd, ArchiveItem, StreamMeta
from jsbackup.formats.sequences import SequenceSet

__all__ = ["ArchiveFile"]


class ArchiveFile:
    """The file `name` in a folder. `first_seq` is where the stream begins, as somebody said; `where` its shown path."""

    def __init__(self, folder: Folder, name: str, first_seq: int) -> None:
        self._folder = folder
        self._name = name
        self._first_seq = first_seq
        self.where = folder.path_of(name)

    def is_v1(self) -> bool:
        """What it says at its start. False also for one that ends before that; reading it will tell."""
        decoder = ArchiveDecoder()
        with self._named():
            for chunk in self._folder.chunks(self._name):
                for item in decoder.feed(chunk):
                    return isinstance(item, StreamMeta) and item.config is not None
        return False

    def read(
        self, deleted: SequenceSet, take: Callable[[ArchiveItem], int], advance: Callable[[int, int], None]
    ) -> ArchiveEnd:
        """Give every item to `take`, which says how many messages it holds, and leave the messages of `deleted` out.

        `advance` is told of bytes and messages that were dealt with. Raises `FormatError`, `UnsupportedError`.
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
