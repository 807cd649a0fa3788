"""Compare two backups on Spark: executors read and compare ranges of sequences.

Only ranges that differ get here (`repository/read/segment_diff.py`), those of all streams at once: long ones are split,
short ones share a task. Tasks return tallies, or the error of a range, which only affects its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from jsbackup.errors import JsBackupError
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.packing import pack_tasks, task_bytes
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.progress import Progress, ignored
from jsbackup.repository.read.diff import DiffWork, Tallies
from jsbackup.repository.read.message_diff import DifferenceTally
from jsbackup.repository.read.segment_diff import SegmentSpan, compare_span, split_span
from jsbackup.repository.segments import SegmentReader

__all__ = ["SparkComparer"]


@dataclass(frozen=True, slots=True)
class _CompareSpans:
    """A task: returns the tally of each range, or an error."""

    place: RepositoryRef
    named: int
    spans: tuple[SegmentSpan, ...]

    def __call__(self) -> list[DifferenceTally | JsBackupError]:
        reader = SegmentReader(opened(self.place).objects)
        return [_compared(reader, span, self.named) for span in self.spans]


def _compared(reader: SegmentReader, span: SegmentSpan, named: int) -> DifferenceTally | JsBackupError:
    try:
        return compare_span(reader, span, named, ignored)
    except JsBackupError as error:
        return error


@dataclass(frozen=True, slots=True)
class SparkComparer:
    """A `Compare` for `diff_backups`. `session` returns the session; it is only called if something has to be read."""

    session: Callable[[], SparkSession]
    place: RepositoryRef
    progress: Progress

    def __call__(self, work: Sequence[DiffWork], named: int) -> Iterator[Tallies]:
        """Return the tallies. Raises errors of Spark."""
        spans = [span for one in work for span in one.spans]
        if not spans:
            return iter([_tallies([], named) for _ in work])
        runner = OnSpark(self.session())
        limit = task_bytes(sum(span.bytes for span in spans), runner.cores)
        split = [split_span(span, limit) for span in spans]
        found = self._run(runner, [part for parts in split for part in parts], named)
        whole = iter([[next(found) for _ in parts] for parts in split])
        return iter([_tallies([next(whole) for _ in one.spans], named) for one in work])

    def _run(
        self, runner: OnSpark, parts: Sequence[SegmentSpan], named: int
    ) -> Iterator[DifferenceTally | JsBackupError]:
        tasks, weights = [], []
        for piece in pack_tasks([part.bytes for part in parts], runner.cores):
            tasks.append(_CompareSpans(self.place, named, tuple(parts[piece])))
            weights.append(sum(part.bytes for part in parts[piece]))
        for found in runner.run("the comparison", tasks, weights=weights, progress=self.progress):
            yield from found


def _tallies(spans: Sequence[Sequence[DifferenceTally | JsBackupError]], named: int) -> Tallies:
    """Yield the tally of each range, summed over its parts."""
    for parts in spans:
        whole = DifferenceTally(named)
        for found in parts:
            if isinstance(found, JsBackupError):
                raise found
            whole.absorb(found)
        yield whole
