"""Batches of messages with hashed subjects and header values, and payloads of zeros.

Each distinct subject and header block of a batch is looked at once. A payload becomes as many characters `0` as it had
bytes, as with the nats CLI, except the value of a counter, which stays, and the description of a file in an object
store (`object_info.py`). Sequences and times stay.

Memory: one more batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.model import JsonObject
from jsbackup.transforms.batches import DATA, HEADERS, SUBJECT, MessageBatch, Subjects, with_column
from jsbackup.transforms.obfuscate.configs import obfuscate_consumer_config, obfuscate_stream_config
from jsbackup.transforms.obfuscate.header_values import obfuscate_headers
from jsbackup.transforms.obfuscate.names import ObfuscatedNames
from jsbackup.transforms.obfuscate.object_info import ZERO, obfuscate_object_info
from jsbackup.transforms.object_meta import META_SUBJECTS
from jsbackup.transforms.subjects import matcher

__all__ = ["Obfuscation"]

# All that the payload of a counter is (nats-server `server/stream.go`).
_COUNTER = re.compile(rb'\{\s*"val"\s*:\s*"[-+]?\d{1,4096}"\s*\}')


@dataclass(frozen=True, slots=True)
class Obfuscation:
    """What becomes of one stream, or of any; `counts` says that its messages are values of counters."""

    names: ObfuscatedNames
    counts: bool = False

    def of_stream(self, config: JsonObject) -> Obfuscation:
        """Return the value for the stream with that config."""
        return Obfuscation(self.names, config.get("allow_msg_counter") is True)

    def stream_config(self, config: JsonObject) -> JsonObject:
        """Return the config of a stream. Raises FormatError if it is damaged."""
        return obfuscate_stream_config(config, self.names)

    def consumer_config(self, config: JsonObject) -> JsonObject:
        """Return the config of a consumer. Raises FormatError if it is damaged."""
        return obfuscate_consumer_config(config, self.names)

    def apply(self, batch: MessageBatch) -> MessageBatch:
        """Return the changed messages."""
        subjects = Subjects(batch)
        batch = with_column(batch, DATA, self._payloads(batch, subjects))
        headers = batch.column(HEADERS)
        if headers.null_count < batch.num_rows:
            batch = with_column(batch, HEADERS, self._headers(headers))
        return with_column(batch, SUBJECT, subjects.translated(self.names.subject))

    def _headers(self, column: pa.Array) -> pa.Array:
        encoded = column.dictionary_encode()
        blocks = [obfuscate_headers(block, self.names) for block in encoded.dictionary.to_pylist()]
        return pa.array(blocks, column.type).take(encoded.indices)

    def _payloads(self, batch: MessageBatch, subjects: Subjects) -> pa.Array:
        column, meta = batch.column(DATA), matcher(META_SUBJECTS)
        zeros = _zeros(column)
        described = subjects.rows(lambda subject: subject.startswith("$O.") and meta.fullmatch(subject) is not None)
        counting = self._counting(batch)
        if not described.true_count and not counting.true_count:
            return zeros
        changed = zeros.to_pylist()
        for at, (describes, counts) in enumerate(zip(described.to_pylist(), counting.to_pylist(), strict=True)):
            if counts and _COUNTER.fullmatch(payload := column[at].as_py()):
                changed[at] = payload
            elif describes:
                changed[at] = obfuscate_object_info(column[at].as_py(), self.names) or changed[at]
        return pa.array(changed, column.type)

    def _counting(self, batch: MessageBatch) -> pa.BooleanArray:
        """Return for each row whether it may be the value of a counter; a mirror has such too."""
        if self.counts:
            return pa.array([True] * batch.num_rows, pa.bool_())
        return pc.fill_null(pc.match_substring(batch.column(HEADERS), b"\r\nNats-Incr:"), False)


def _zeros(column: pa.Array) -> pa.Array:
    """Return as many characters `0` in each row as it has bytes, with the same offsets."""
    validity, offsets, values = column.buffers()
    zeros = pa.py_buffer(ZERO * (0 if values is None else values.size))
    return pa.Array.from_buffers(column.type, len(column), [validity, offsets, zeros], offset=column.offset)
