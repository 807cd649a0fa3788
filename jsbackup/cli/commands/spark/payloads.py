"""The options of `export` and `query` that make columns of payloads: `--payload-json`, `--payload-avro` and
`--payload-protobuf`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from jsbackup.pipeline.payloads.parsing import PayloadParser

__all__ = ["PayloadOptions", "payload_options"]

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--payload-json",
        metavar="SCHEMA",
        help="Parse payloads as JSON: adds the columns payload, a struct, and _corrupt_record, the text of what does "
        "not fit. SCHEMA is as in Spark, such as 'id BIGINT, total DOUBLE'; or infer, which looks at a sample.",
    ),
    click.option(
        "--payload-avro",
        metavar="FILE",
        help="Parse payloads as Avro, one datum of the schema in FILE (.avsc) each: adds the same columns, with the "
        "bytes of what does not fit.",
    ),
    click.option(
        "--payload-protobuf",
        metavar="FILE:MESSAGE",
        help="Parse payloads as Protobuf: adds the same columns. FILE is made by protoc --include_imports "
        "--descriptor_set_out=FILE, MESSAGE is the full name of a message in it, such as shop.Order.",
    ),
)


def payload_options(command: F) -> F:
    """Add the options, passed as `payloads`."""

    @wraps(command)
    def run(
        *arguments: Any,
        payload_json: str | None,
        payload_avro: str | None,
        payload_protobuf: str | None,
        **others: Any,
    ) -> Any:
        return command(*arguments, payloads=PayloadOptions(payload_json, payload_avro, payload_protobuf), **others)

    for option in reversed(_OPTIONS):
        run = option(run)
    return cast(F, run)


@dataclass(frozen=True)
class PayloadOptions:
    """What was typed: at most one of them is to be given."""

    json: str | None = None
    avro: str | None = None
    protobuf: str | None = None

    @property
    def typed(self) -> list[str]:
        """The names of the options that are given."""
        given = {"--payload-json": self.json, "--payload-avro": self.avro, "--payload-protobuf": self.protobuf}
        return [name for name, value in given.items() if value is not None]

    @cached_property
    def given(self) -> str | PayloadParser | None:
        """What parses payloads, or a schema of JSON that was checked, or `infer`; None if they are no columns. A file
        is read once.

        Raises:
            UsageError: several options are given, or a schema is wrong.
            UnsupportedError: the package for an encoding is not installed.
        """
        if not self.typed:
            return None
        from jsbackup.pipeline.payloads.schema_files import given_payloads

        both = "--payload-{} and --payload-{}"
        return given_payloads(json=self.json, avro=self.avro, protobuf=self.protobuf, both=both)
