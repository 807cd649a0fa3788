"""`--subject FILTER…`: of a stream, only the messages whose subject matches one of these patterns.

What falls out is as if it had been deleted: the others keep their sequences, and the stream its last one. Subjects are
those in the backup, before any of them is mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from jsbackup.errors import UsageError
from jsbackup.transforms.batches import Subjects
from jsbackup.transforms.subjects import check_pattern, matcher

__all__ = ["SubjectFilter"]


@dataclass(frozen=True, slots=True)
class SubjectFilter:
    """Patterns; a message is kept if its subject matches any of them."""

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> SubjectFilter:
        """From the option's texts. UsageError if one is no subject, or there is none."""
        patterns = tuple(check_pattern("--subject", text) for text in texts)
        if not patterns:
            raise UsageError("--subject: no subject to keep")
        return cls(patterns)

    def keeps(self, subject: str) -> bool:
        """Whether a message of this subject is kept."""
        return any(matcher(pattern).fullmatch(subject) for pattern in self.patterns)

    def rows(self, subjects: Subjects) -> pa.BooleanArray:
        """For each row of a batch, whether it is kept."""
        return subjects.rows(self.keeps)
