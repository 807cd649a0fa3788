"""`--subject FILTER…`, `--exclude-subject FILTER…`: which subjects a message may have.

Subjects are those in the backup, before any is mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, reduce

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.transforms.batches import matching_subjects
from jsbackup.transforms.subjects import check_pattern, is_literal

__all__ = ["parse_patterns", "subject_rows"]


def parse_patterns(option: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns. Raises UsageError, which names the option."""
    return tuple(check_pattern(option, text) for text in texts)


def subject_rows(column: pa.Array, patterns: tuple[str, ...]) -> pa.BooleanArray:
    """Return for each subject of a column whether any of the patterns, at least one, matches it."""
    raw = column.view(pa.binary())
    literals, wide = _sorted(patterns)
    masks = [matching_subjects(column, wide)] if wide else []
    if len(literals) == 1:
        masks.append(pc.equal(raw, literals[0]))
    elif len(literals):
        masks.append(pc.is_in(raw, value_set=literals))
    return reduce(pc.or_, masks)


@lru_cache(maxsize=64)
def _sorted(patterns: tuple[str, ...]) -> tuple[pa.Array, list[str]]:
    """Return the literal subjects, and the patterns with wildcards."""
    literals = pc.binary_array([one.encode() for one in patterns if is_literal(one)])
    return literals, [one for one in patterns if not is_literal(one)]
