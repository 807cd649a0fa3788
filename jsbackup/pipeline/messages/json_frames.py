"""A backup as a DataFrame whose payloads are JSON: with the columns `payload`, a struct, and `_corrupt_record`.

The schema of the payloads is given, or inferred from a sample (`json_schema.py`). The executors parse
(`json_payload.py`), in an expression of Spark, so that filters of other columns still spare reading, and payloads that
nobody asks for are not parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StructType

from jsbackup.errors import UsageError
from jsbackup.pipeline.messages.backup_frames import BackupFrames
from jsbackup.pipeline.messages.json_payload import CORRUPT, PAYLOAD, PayloadParser
from jsbackup.pipeline.messages.json_schema import EXAMPLE, from_json, infer_schema, is_infer, no_fields, nullable
from jsbackup.pipeline.session.failures import plain_message, spark_errors
from jsbackup.pipeline.session.repository_ref import opened

__all__ = ["json_messages", "parse_schema"]

_PARSED: Final = "jsbackup_parsed"


def json_messages(backup: BackupFrames, schema: str, patterns: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return messages as `BackupFrames.messages`, with the columns `payload` and `_corrupt_record` behind the others.

    `schema` is in Spark's syntax or its JSON, or `infer`. An inferred one is logged.

    Raises:
        UsageError: the schema is not one, or has types that JSON does not have; nothing can be inferred; or as
            `BackupFrames.messages`.
        UnsupportedError: as `BackupFrames.messages`.
        IntegrityError, KeyUnavailable, StoreError: the messages of the sample cannot be read.
    """
    if is_infer(schema):
        kind = infer_schema(opened(backup.place).objects, backup.streams(patterns))
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
    """Return the schema that a text in Spark's syntax, or in Spark's JSON, is. Raises UsageError if it is none."""
    if text.lstrip().startswith("{"):
        return from_json(text)
    with spark_errors("the schema of the payloads"):
        try:
            kind = DataType.fromDDL(text) if text.strip() else None
        except ParseException as error:
            message = f"the schema of the payloads cannot be understood: {plain_message(error)}"
            raise UsageError(message, hint=EXAMPLE) from error
    if not isinstance(kind, StructType):
        raise no_fields(text)
    return nullable(kind)
