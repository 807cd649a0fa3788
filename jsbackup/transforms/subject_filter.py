"""`--subject FILTER…`: keep only the messages whose subject matches one of these patterns.

The others are as if deleted: sequences stay, and so does the stream's last one. Subjects are those in the backup,
before any is mapped.
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
        """Parse the option's texts. Raises UsageError if one is not valid, or there is none."""
        patterns = tuple(check_pattern("--subject", text) for text in texts)
        if not patterns:
            raise UsageError("--subject: no subject to keep")
        return cls(patterns)

    def keeps(self, subject: str) -> bool:
        """Return whether a message with this subject is kept."""
        return any(matcher(pattern).fullmatch(subject) for pattern in self.patterns)

    def rows(self, subjects: Subjects) -> pa.BooleanArray:
        """Return for each row of a batch whether it is kept."""
        return subjects.rows(self.keeps)
