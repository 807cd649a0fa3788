"""Messages that are collected one by one, as columns."""

from __future__ import annotations

from array import array

from jsbackup.formats.batch import Columns

__all__ = ["MAX_TAKE_BYTES", "ColumnWriter"]

# One call takes no more than this plus one entry, so that int32 offsets are always enough.
MAX_TAKE_BYTES = 1 << 30


class ColumnWriter:
    """Collects messages and returns them as `Columns`."""

    __slots__ = (
        "data",
        "data_ends",
        "header_ends",
        "headers",
        "present",
        "sequences",
        "subject_ends",
        "subjects",
        "timestamps",
    )

    def __init__(self) -> None:
        self.sequences = array("q")
        self.timestamps = array("q")
        self.subject_ends = array("i", (0,))
        self.subjects = bytearray()
        self.present = bytearray()
        self.header_ends = array("i", (0,))
        self.headers = bytearray()
        self.data_ends = array("i", (0,))
        self.data = bytearray()

    def append(self, sequence: int, timestamp: int, content: memoryview, subject: int, *, headers: int) -> None:
        """Add a message whose `content` is its subject, header block and payload; `subject` and `headers` are their
        sizes.
        """
        body = subject + headers
        self.sequences.append(sequence)
        self.timestamps.append(timestamp)
        self.subjects += content[:subject]
        self.subject_ends.append(len(self.subjects))
        self.headers += content[subject:body]
        self.header_ends.append(len(self.headers))
        self.present.append(headers > 0)
        self.data += content[body:]
        self.data_ends.append(len(self.data))

    def columns(self) -> Columns:
        count = len(self.sequences)
        validity: bytes | None = None
        if not all(self.present):
            bits = bytearray((count + 7) // 8)
            for row, present in enumerate(self.present):
                bits[row >> 3] |= present << (row & 7)
            validity = bytes(bits)
        return Columns(
            count,
            self.sequences.tobytes(),
            self.timestamps.tobytes(),
            self.subject_ends.tobytes(),
            bytes(self.subjects),
            validity,
            self.header_ends.tobytes(),
            bytes(self.headers),
            self.data_ends.tobytes(),
            bytes(self.data),
        )
