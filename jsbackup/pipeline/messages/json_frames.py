"""A backup as a DataFrame whose payloads are JSON: with the columns `payload`, a struct, and `_corrupt_record`.

The schema of the payloads is given, or inferred by Spark from a sample. The executors parse (`json_payload.py`), in
an expression of Spark, so that filters of other columns still spare reading, and payloads that nobody asks for are not
parsed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StructType

from jsbackup.errors import FormatError, UsageError
from jsbackup.pipeline.messages.backup_frames import BackupFrames
from jsbackup.pipeline.messages.json_payload import CORRUPT, PAYLOAD, PayloadParser
from jsbackup.pipeline.session.failures import plain_message, spark_errors
from jsbackup.pipeline.session.repository_ref import opened
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.columns import read_columns
from jsbackup.strict_json import read_json, write_json

__all__ = ["INFER", "infer_schema", "json_messages", "parse_schema"]

_log = logging.getLogger(__name__)

INFER: Final = "infer"

_MOST_MESSAGES: Final = 1000
_MOST_SEGMENTS: Final = 20
_MOST_BYTES: Final = 4 << 20  # they become a literal of a query
_PARSED: Final = "jsbackup_parsed"
_EXAMPLE: Final = "Give a schema of Spark, such as 'id BIGINT, total DOUBLE', or 'infer'."

T = TypeVar("T")


def json_messages(backup: BackupFrames, schema: str, patterns: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return messages as `BackupFrames.messages`, with the columns `payload` and `_corrupt_record` behind the others.

    `schema` is in Spark's syntax, or `infer`. An inferred one is logged.

    Raises:
        UsageError: the schema is not one, or has types that JSON does not have; nothing can be inferred; or as
            `BackupFrames.messages`.
        UnsupportedError: as `BackupFrames.messages`.
        IntegrityError, KeyUnavailable, StoreError: the messages of the sample cannot be read.
    """
    if schema.strip().lower() == INFER:
        objects = opened(backup.place).objects
        kind = infer_schema(backup.session, objects, backup.streams(patterns))
    else:
        kind = parse_schema(backup.session, schema)
    parser = PayloadParser(kind)
    frame = backup.messages(patterns, columns if "data" in columns else [*columns, "data"])

    # Not the method itself: Spark wants the types in the signature.
    def parse(data: pa.Array) -> pa.Array:
        return parser.parse(data)

    with spark_errors("reading the backup"):
        parsing = arrow_udf(parse, parser.result_type)  # type: ignore[call-overload]  # the stubs lack a default
        parsed = frame.withColumn(_PARSED, parsing("data"))
        return parsed.select(*columns, F.col(f"{_PARSED}.{PAYLOAD}"), F.col(f"{_PARSED}.{CORRUPT}"))


def parse_schema(session: SparkSession, text: str) -> StructType:
    """Return the schema that a text in Spark's syntax is. Raises UsageError if it is none."""
    with spark_errors("the schema of the payloads"):
        try:
            kind = DataType.fromDDL(text) if text.strip() else None
        except ParseException as error:
            message = f"the schema of the payloads cannot be understood: {plain_message(error)}"
            raise UsageError(message, hint=_EXAMPLE) from error
    if not isinstance(kind, StructType):
        raise UsageError(f"the schema of the payloads has no fields: {text[:80]!r}", hint=_EXAMPLE)
    return StructType.fromJson(json.loads(kind.json(), object_hook=_nullable))


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    """Let a part of a schema be null: every field may be missing, whatever the schema says."""
    return node | {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in node}


def infer_schema(session: SparkSession, objects: Objects, streams: Sequence[StreamBackup]) -> StructType:
    """Return a schema that Spark infers from a sample: up to 1,000 messages, from up to 20 segments.

    Raises:
        UsageError: none of them is a JSON object with fields.
        IntegrityError, KeyUnavailable, StoreError: they cannot be read.
    """
    looked, found, size = 0, [], 0
    for payload in _sample(objects, streams):
        if size + len(payload) > _MOST_BYTES:
            continue
        looked += 1
        if text := _object(payload):
            found.append(text)
            size += len(text)
    if found:
        with spark_errors("inferring the schema of the payloads"):
            options = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
            column = F.schema_of_json(F.lit(f"[{','.join(found)}]"), options)
            inferred = str(session.range(1).select(column).collect()[0][0])
        # Spark infers no field from {}.
        if fields := re.fullmatch(r"ARRAY<STRUCT<(.+)>>", inferred, re.DOTALL):
            _log.info("payloads: %d of %d sampled messages are JSON objects: %s", len(found), looked, fields[1])
            return parse_schema(session, fields[1])
    raise UsageError(f"no schema can be inferred: of {looked} sampled messages none is a JSON object", hint=_EXAMPLE)


def _object(payload: bytes) -> str:
    """Return a payload that is a JSON object as Spark should see it, with each name once; "" of another one."""
    try:
        found = read_json(payload, "a payload")
    except FormatError:
        return ""
    return write_json(found, "a payload").decode() if isinstance(found, dict) else ""


def _sample(objects: Objects, streams: Sequence[StreamBackup]) -> Iterator[bytes]:
    """Yield payloads that are spread over the streams, and over each of them, without empty ones."""
    looked_at = _spread([stream for stream in streams if stream.segments], _MOST_SEGMENTS)
    refs = [ref for one in looked_at for ref in _spread(one.segments, _MOST_SEGMENTS // len(looked_at))]
    for ref in refs:
        batches = list(read_columns(objects, ref, {"data"}))
        column = pa.chunked_array([batch.column("data") for batch in batches], pa.binary())
        for row in _spread(range(len(column)), _MOST_MESSAGES // len(refs)):
            if payload := column[row].as_py():
                yield payload


def _spread(items: Sequence[T], most: int) -> Sequence[T]:
    """Return up to `most` of the items at even distances, the last one among them."""
    if len(items) <= most:
        return items
    return [items[(number + 1) * len(items) // most - 1] for number in range(most)]
