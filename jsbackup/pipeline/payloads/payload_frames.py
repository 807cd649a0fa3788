"""A backup as a DataFrame whose payloads are parsed: with the columns `payload`, a struct, and `_corrupt_record`.

The schema of payloads of JSON is given (`json_types.py`), or inferred from a sample (`json_schema.py`); of Avro and
Protobuf it is given (`schema_files.py`). The executors parse, in an expression of Spark, so that filters of other
columns still spare reading, and payloads that nobody asks for are not parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from jsbackup.pipeline.messages.backup_frames import BackupFrames
from jsbackup.pipeline.payloads.json_payload import JsonParser
from jsbackup.pipeline.payloads.json_schema import infer_schema
from jsbackup.pipeline.payloads.json_spark import parsed_type
from jsbackup.pipeline.payloads.json_types import is_infer, parse_schema
from jsbackup.pipeline.payloads.parsing import CORRUPT, PAYLOAD, PayloadParser
from jsbackup.pipeline.payloads.payload_sample import warn_if_missed
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.session.repository_ref import opened

__all__ = ["parsed_messages", "with_payloads"]

_PARSED: Final = "jsbackup_parsed"


def parsed_messages(
    backup: BackupFrames, given: str | PayloadParser, patterns: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """Return messages as `BackupFrames.messages`, with the columns `payload` and `_corrupt_record` behind the others.

    `given` is a parser; or a schema of JSON, in Spark's syntax or its JSON, or `infer`. An inferred one is logged,
    and a warning if a given one is not that of a sample.

    Raises:
        UsageError: the schema is not one, or has types that JSON does not have; nothing can be inferred; or as
            `BackupFrames.messages`.
        UnsupportedError: as `BackupFrames.messages`.
        IntegrityError, KeyUnavailable, StoreError: the messages of the sample cannot be read.
    """
    if isinstance(given, str) and is_infer(given):
        parser: PayloadParser = JsonParser(infer_schema(opened(backup.place).objects, backup.streams(patterns)))
    else:
        parser = given if isinstance(given, PayloadParser) else JsonParser(parse_schema(given))
        warn_if_missed(opened(backup.place).objects, backup.streams(patterns), parser)
    frame = backup.messages(patterns, columns if "data" in columns else [*columns, "data"])
    with spark_errors("reading the backup"):
        return with_payloads(frame, parser, columns)


def with_payloads(frame: DataFrame, parser: PayloadParser, columns: Sequence[str]) -> DataFrame:
    """Return `columns` of messages with the column `data`, and behind them the two that payloads become."""

    # Not the method itself: Spark wants the types in the signature.
    def parse(data: pa.Array) -> pa.Array:
        return parser.parse(data)

    parsing = arrow_udf(parse, parsed_type(parser))  # type: ignore[call-overload]  # the stubs lack a default
    parsed = frame.withColumn(_PARSED, parsing("data"))
    return parsed.select(*columns, F.col(f"{_PARSED}.{PAYLOAD}"), F.col(f"{_PARSED}.{CORRUPT}"))
