"""Payloads as columns of exported tables: which schema each table has.

A given one is that of all tables. With `infer`, for payloads of JSON, each table has a schema of its own: that of the
table if it is there, else one that is inferred from a sample of the messages, after they were changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from jsbackup.errors import FormatError, PlanRefused, UsageError
from jsbackup.formats.digest import MessageBatch
from jsbackup.pipeline.payloads.json_payload import JsonParser
from jsbackup.pipeline.payloads.json_schema import infer_schema
from jsbackup.pipeline.payloads.json_types import alike_fields, is_infer, parse_schema
from jsbackup.pipeline.payloads.parsing import PayloadParser, encoding_of
from jsbackup.pipeline.payloads.payload_sample import DECIDING, ReadSegment, sampled_tally, stored
from jsbackup.pipeline.payloads.payload_tally import against_misfits
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tables.table_state import TableState, other_payloads
from jsbackup.pipeline.tasks.reshape_task import SegmentRun
from jsbackup.planning.selection.subset import segments_within
from jsbackup.planning.transforming import PlannedStream
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.segments import SegmentReader
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["TablePayloads", "parser_for_tables"]

# Of a stream with so much to write, a sample decides first whether the schema is that of its payloads.
LOOK_FIRST_BYTES: Final = 1 << 30


def parser_for_tables(given: str | PayloadParser) -> PayloadParser | None:
    """Return what parses payloads: what is given, or what has the schema that a text is; None if that is `infer`.

    Raises UsageError if the text is none, or the schema has fields that readers of tables take for one.
    """
    if isinstance(given, PayloadParser):
        return _for_tables(given)
    return None if is_infer(given) else _for_tables(JsonParser(parse_schema(given)))


def _for_tables(parser: PayloadParser) -> PayloadParser:
    if alike := alike_fields(parser.schema):
        raise UsageError(
            f"the fields {alike[0][:80]!r} and {alike[1][:80]!r} of the payloads differ only in case, and readers of "
            "tables take them for one",
            hint="Give a schema with one of them.",
        )
    return parser


def _schema_of_table(name: str, text: str) -> pa.StructType:
    """Return the schema of JSON that the log of the table of stream `name` has. Raises FormatError if it is none."""
    try:
        return parse_schema(text)
    except UsageError as error:
        raise FormatError(f"the log of the table of stream {name} is damaged: {error.message}") from error


@dataclass(frozen=True, slots=True)
class TablePayloads:
    """The payloads of a backup in the repository at `place`. `given` parses them; None: they are JSON, and the schema
    is to be inferred. `may_miss`: it may be the schema of no payload of a stream.
    """

    place: RepositoryRef
    given: PayloadParser | None
    may_miss: bool = False

    def waits(self, one: PlannedStream, state: TableState | None) -> bool:
        """Return whether a stream has no messages yet from which the schema of its table could be inferred."""
        return self.given is None and state is None and not one.entry.captured.messages

    def parser(self, one: PlannedStream, state: TableState | None, mask_secret: bytes) -> PayloadParser:
        """Return what parses the payloads of a stream; `state` is that of its table, None if there is none, and
        `mask_secret` the key of masks, b"" without one.

        Raises:
            FormatError: the schema of the table that is there is damaged.
            UsageError: none can be inferred, or the table that is there has no payloads of JSON as columns.
            PlanRefused: a message of the sample cannot be masked.
            IntegrityError, KeyUnavailable, StoreError: the sample cannot be read.
        """
        if self.given is not None:
            return self.given
        if state is not None:
            name, text = one.reshaped.name, state.source.payloads
            if not text or encoding_of(text) != "json":
                raise other_payloads(name, text)
            return JsonParser(_schema_of_table(name, text))
        objects, reshape = opened(self.place).objects, one.reshaped.messages
        entry = replace(one.entry, segments=tuple(segments_within(one.entry, reshape.cut)))
        try:
            read = _changing(objects, reshape, mask_secret) if reshape else None
            return _for_tables(JsonParser(infer_schema(objects, [entry], read)))
        except UsageError as error:
            raise error.with_message(f"stream {one.reshaped.name}: {error.message}") from error

    def misfit(self, one: PlannedStream, parser: PayloadParser, mask_secret: bytes) -> PlanRefused | None:
        """Return the refusal of a stream if its schema is not that of a sample. None if there is little to write: then
        all payloads are counted soon. Arguments as of `parser`.
        """
        if self.may_miss or one.entry.captured.bytes < LOOK_FIRST_BYTES:
            return None
        objects, reshape = opened(self.place).objects, one.reshaped.messages
        entry = replace(one.entry, segments=tuple(segments_within(one.entry, reshape.cut)))
        read = _changing(objects, reshape, mask_secret) if reshape else stored(objects)
        tally = sampled_tally([entry], parser, read, DECIDING)
        return against_misfits(one.reshaped.name, tally, "sampled ") if tally.missed else None


def _changing(objects: Objects, reshape: Reshape, secret: bytes) -> ReadSegment:
    reshape = replace(reshape, newest=None, chosen=None)  # which messages are the newest is not known yet

    def read(stream: StreamBackup, ref: SegmentRef) -> Iterator[MessageBatch]:
        run = SegmentRun.of(stream.name, (ref,), reshape)
        return run.changed(SegmentReader(objects).prove(ref), secret, ReshapeTally())

    return read
