"""Check objects on Spark: executors read, decode and compare them, and return only what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.progress import Progress
from jsbackup.repository.checks.verify import Level, ObjectFlaw, check_object, weight_of
from jsbackup.repository.manifest import AnyRef

__all__ = ["SparkChecker"]


@dataclass(frozen=True, slots=True)
class _CheckObjects:
    """A task: returns the flaw of each object."""

    place: RepositoryRef
    level: Level
    refs: tuple[AnyRef, ...]

    def __call__(self) -> list[ObjectFlaw | None]:
        objects = opened(self.place).objects
        return [check_object(objects, ref, self.level) for ref in self.refs]


@dataclass(frozen=True, slots=True)
class SparkChecker:
    """A `Checker` for a `Verifier`, which runs on a session."""

    session: SparkSession
    place: RepositoryRef
    progress: Progress

    def __call__(self, refs: Sequence[AnyRef], level: Level) -> Iterator[ObjectFlaw | None]:
        """Yield the flaw of each object, in order. Raises errors of Spark, and KeyUnavailable."""
        runner = OnSpark(self.session)
        tasks, weights = [], []
        for piece in pack_tasks([weight_of(ref)[0] for ref in refs], runner.cores):
            part = tuple(refs[piece])
            tasks.append(_CheckObjects(self.place, level, part))
            weights.append(sum(weight_of(ref)[0] for ref in part))
        for flaws in runner.run("the check", tasks, weights=weights, progress=self.progress):
            yield from flaws
