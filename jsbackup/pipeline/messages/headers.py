"""Header blocks inside Spark: expressions on the column `headers`, without Python."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["header_map", "message_id"]


def header_map(block: Column) -> Column:
    """A block as `map<string,string>`: of a header that comes more than once its first value, as NATS clients give it.

    Names keep their case. Null without a block; lines that are no header are passed over.
    """
    lines = F.filter(F.split(block.cast("string"), "\r\n"), lambda line: F.instr(line, ":") > 1)
    pairs = F.transform(
        lines,
        lambda line: F.struct(
            F.substring_index(line, ":", 1).alias("name"),
            F.trim(F.substr(line, F.instr(line, ":") + 1, F.length(line))).alias("value"),
        ),
    )
    names = F.array_distinct(F.transform(pairs, lambda pair: pair["name"]))
    firsts = F.transform(
        names, lambda name: F.element_at(F.filter(pairs, lambda pair: pair["name"] == name), F.lit(1))["value"]
    )
    return F.map_from_arrays(names, firsts)


def message_id(block: Column) -> Column:
    """The value of `Nats-Msg-Id`; null without one."""
    found = F.regexp_extract(block.cast("string"), "\r\n(?i:nats-msg-id):[ \t]*([^\r\n]+)", 1)
    return F.nullif(found, F.lit(""))
