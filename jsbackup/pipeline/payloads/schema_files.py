"""What users give to have payloads parsed: a schema of JSON, or a file with one of Avro or of Protobuf."""

from __future__ import annotations

import os
from pathlib import Path

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import printable_name
from jsbackup.pipeline.payloads.avro_payload import AvroParser
from jsbackup.pipeline.payloads.avro_schema import read_avro_schema
from jsbackup.pipeline.payloads.json_types import is_infer, parse_schema
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.payloads.protobuf_payload import ProtobufParser
from jsbackup.pipeline.payloads.protobuf_schema import read_descriptor_set

__all__ = ["avro_parser", "given_payloads", "protobuf_parser"]

_MOST_BYTES = 64 << 20


def given_payloads(
    *,
    json: str | None = None,
    avro: str | os.PathLike[str] | None = None,
    protobuf: str | None = None,
    both: str = "{} and {}",
) -> str | PayloadParser | None:
    """Return what parses payloads: a parser, by a file that is read here; or a schema of JSON that was checked, or
    `infer`. None if nothing is given. `both` is how users name two of the arguments.

    Raises:
        UsageError: two of them are given, or a schema is wrong.
        UnsupportedError: the package for an encoding is not installed.
    """
    given = {"json": json, "avro": avro, "protobuf": protobuf}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"{both.format(*names)} exclude each other", hint="Leave one of them out.")
    if avro is not None:
        return avro_parser(os.fspath(avro))
    if protobuf is not None:
        return protobuf_parser(protobuf)
    if json is not None and not is_infer(json):
        parse_schema(json)
    return json


def avro_parser(file: str) -> AvroParser:
    """Return the parser of payloads of the schema in a file.

    Raises:
        UnsupportedError: fastavro is not installed.
        UsageError: the file cannot be read, has no schema, or one that columns cannot express.
    """
    return AvroParser.of(read_avro_schema(_content(file), printable_name(file)))


def protobuf_parser(given: str) -> ProtobufParser:
    """Return the parser of payloads of a message, `FILE:MESSAGE`: its full name, behind a file with a descriptor set.

    Raises:
        UnsupportedError: protobuf is not installed.
        UsageError: the file cannot be read, has no such message, or one that columns cannot express.
    """
    file, colon, message = given.rpartition(":")
    if not colon or not file or not message:
        raise UsageError(
            f"a message of Protobuf is given as FILE:MESSAGE, not {given[:120]!r}",
            hint="Write orders.desc:shop.Order, with a file that protoc --descriptor_set_out makes.",
        )
    return ProtobufParser.of(read_descriptor_set(_content(file), message, printable_name(file)))


def _content(file: str) -> bytes:
    if not file.strip():
        raise UsageError("the file with the schema has no name")
    shown = printable_name(file)
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {os.strerror(error.errno or 0).lower()}") from error
    except ValueError as error:  # a zero byte in the name
        raise UsageError(f"{shown} cannot be read: it is not a name of a file") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{shown} is too large for a schema")
    return data
