"""What executors did for a job: tasks, failures, times and bytes, read from Spark's own status store.

That store is there without Spark's pages (`spark.ui.enabled=false`), on embedded Spark and on clusters; Spark Connect
has none. Stages are read, not executors: Spark forgets what failed on an executor that is lost, and does not count the
time of tasks on an embedded one. It keeps the last 1,000 stages (`spark.ui.retainedStages`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsbackup.config import format_bytes
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.pipeline.session.failures import SPARK_FAILURES
from jsbackup.readable import count_were, format_count, format_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jsbackup.model import JsonObject

__all__ = ["WARM_UP", "SparkWork", "measured"]

WARM_UP = "jsbackup: warm-up"
"""The description of a job that is not counted."""

_log = logging.getLogger(__name__)

# Events of the last tasks are on their way for some milliseconds.
_EVENTS_MILLISECONDS = 200

# Another version of Spark may lack one of these calls, and a context that was stopped has none.
_FAILURES = (*SPARK_FAILURES, AttributeError, TypeError)


@dataclass(frozen=True, slots=True)
class SparkWork:
    """What executors did. `run_seconds` is the time of all tasks together, of which `gc_seconds` Java's garbage
    collection. `failed_tasks` were repeated, or ended the job. `ended_executors` of `executors` are gone.

    Bytes are those that Spark itself reads and moves: what tasks in Python read from a repository is not counted.
    `peak_memory_bytes` is the largest heap of a Java, None if no task took long enough to be asked.
    """

    executors: int
    ended_executors: int
    stages: int
    tasks: int
    failed_tasks: int
    run_seconds: float
    gc_seconds: float
    input_bytes: int
    shuffle_read_bytes: int
    shuffle_written_bytes: int
    spilled_bytes: int
    peak_memory_bytes: int | None

    @property
    def json(self) -> JsonObject:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def words(self) -> str:
        ended = f" ({self.ended_executors} ended)" if self.ended_executors else ""
        said = [
            f"{format_count(self.executors, 'executor')}{ended}",
            format_count(self.tasks, "task"),
            f"{self.failed_tasks:,} failed",
            f"{format_seconds(self.run_seconds)} of work",
            f"{format_seconds(self.gc_seconds)} of garbage collection",
            f"{format_bytes(self.input_bytes)} read by Spark",
            f"{format_bytes(self.shuffle_written_bytes)} shuffled",
        ]
        if self.spilled_bytes:
            said.append(f"{format_bytes(self.spilled_bytes)} spilled")
        if self.peak_memory_bytes is not None:
            said.append(f"a heap of up to {format_bytes(self.peak_memory_bytes)}")
        return ", ".join(said)

    @property
    def trouble(self) -> str | None:
        """What an operator should know of work that succeeded; None if there is nothing."""
        said = []
        if self.failed_tasks:
            said.append(f"{count_were(self.failed_tasks, 'task')} repeated, of {self.tasks:,}, because they failed")
        if self.ended_executors:
            said.append(f"{self.ended_executors} of {format_count(self.executors, 'executor')} ended")
        return "; ".join(said) if self.failed_tasks else None


@contextmanager
def measured(session: SparkSession, report: Callable[[SparkWork | None], object] | None) -> Iterator[None]:
    """Log what executors do for what is run inside, and `report` it, also if it fails; None if that is not known.

    Tasks that failed and were repeated are logged as a warning. Raises nothing.
    """
    before = _newest_stage(session)
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        work = _work_after(session, before)
        if work is not None:
            _log.info("%s", f"Spark: {work.words}")
            if succeeded and work.trouble is not None:
                _log.warning("%s", f"on Spark, {work.trouble}")
        if report is not None:
            report(work)


def _stages(session: SparkSession) -> Any:
    """Return Spark's list of stages, the newest first."""
    context = session.sparkContext
    assert context._gateway is not None, "it has a Java"
    quantiles = context._gateway.new_array(context._gateway.jvm.double, 0)
    return context._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)


def _newest_stage(session: SparkSession) -> int:
    """Return the number of the newest stage, -1 if there is none or it is not known."""
    if not is_remote(session):
        with suppress(*_FAILURES):
            stages = _stages(session)
            return max((stages.apply(n).stageId() for n in range(min(1, stages.size()))), default=-1)
    return -1


def _work_after(session: SparkSession, before: int) -> SparkWork | None:
    """Return what stages after the one with this number did, None if that cannot be read."""
    if is_remote(session):
        return None
    with suppress(*_FAILURES):
        scala = session.sparkContext._jsc.sc()
        with suppress(*_FAILURES):  # they are late
            scala.listenerBus().waitUntilEmpty(_EVENTS_MILLISECONDS)
        executors = scala.statusStore().executorList(False)
        found = [executors.apply(n) for n in range(executors.size())]
        # An embedded Spark has no other executor than its driver.
        active = [one.isActive() for one in found if len(found) == 1 or one.id() != "driver"]
        return _summed(list(_stages_after(session, before)), len(active), active.count(False))
    return None


def _stages_after(session: SparkSession, before: int) -> Iterator[Any]:
    """Yield the stages that did something, the newest first."""
    stages = _stages(session)
    for n in range(stages.size()):
        stage = stages.apply(n)
        if stage.stageId() <= before:
            return
        description = stage.description()
        if description.isDefined() and description.get() == WARM_UP:
            continue
        if stage.numCompleteTasks() or stage.numFailedTasks() or stage.numKilledTasks():  # no results were there
            yield stage


def _summed(stages: Sequence[Any], executors: int, ended: int) -> SparkWork:
    def total(*names: str) -> int:
        return sum(getattr(stage, name)() for stage in stages for name in names)

    peaks = [peak.get() for peak in (stage.peakExecutorMetrics() for stage in stages) if peak.isDefined()]
    return SparkWork(
        executors=executors,
        ended_executors=ended,
        stages=len(stages),
        tasks=total("numCompleteTasks", "numFailedTasks", "numKilledTasks"),
        failed_tasks=total("numFailedTasks"),
        run_seconds=total("executorRunTime") / 1000,
        gc_seconds=total("jvmGcTime") / 1000,
        input_bytes=total("inputBytes"),
        shuffle_read_bytes=total("shuffleReadBytes"),
        shuffle_written_bytes=total("shuffleWriteBytes"),
        spilled_bytes=total("diskBytesSpilled"),
        peak_memory_bytes=max((peak.getMetricValue("JVMHeapMemory") for peak in peaks), default=0) or None,
    )
