"""The option `--payload-json` of `export` and `query`: payloads as columns.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import click

__all__ = ["check_payload_json", "payload_json_option"]

payload_json_option = click.option(
    "--payload-json",
    metavar="SCHEMA",
    help="Parse payloads as JSON: adds the columns payload, a struct, and _corrupt_record, the text of what does not "
    "fit. SCHEMA is as in Spark, such as 'id BIGINT, total DOUBLE'; or infer, which looks at a sample.",
)


def check_payload_json(schema: str | None) -> None:
    """Raise UsageError if `schema` is given, and neither a schema nor `infer`."""
    if schema is None:
        return
    from jsbackup.pipeline.payloads.json_types import is_infer, parse_schema

    if not is_infer(schema):
        parse_schema(schema)
