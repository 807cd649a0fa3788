"""Expressions for header blocks in the column `headers`, without Python."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["header_map"]


def header_map(block: Column) -> Column:
    """Return a block as `map<string,string>`; a repeated header has its first value, as in NATS clients.

    Names keep their case. Null without a block; malformed lines are skipped.
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
