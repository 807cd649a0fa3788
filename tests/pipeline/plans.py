"""What Spark did, from its own status: the exchanges of executed plans, and the rows that tasks got by them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Done", "watched_plans"]

_NODE = re.compile(r"(\w*Exchange) \((\d+)\)")
_KINDS = {"hashpartitioning": "hash", "rangepartitioning": "range", "SinglePartition": "single"}


@dataclass
class Done:
    """`exchanges` are those of all queries, each once: `hash(subject)`, `range(sequence)`, `single`, `broadcast`.

    `largest` is the most rows that a task got through an exchange; `tasks` is the number of tasks of each stage.
    """

    exchanges: list[str] = field(default_factory=list)
    largest: int = 0
    tasks: list[int] = field(default_factory=list)


@contextmanager
def watched_plans(spark: SparkSession) -> Iterator[Done]:
    """What is done inside, known at the end."""
    context = spark.sparkContext._jsc.sc()
    store = spark._jsparkSession.sharedState().statusStore()
    context.listenerBus().waitUntilEmpty(10_000)
    queries = max((one.executionId() for one in _listed(store.executionsList())), default=-1)
    stages, done = max((one.stageId() for one in _listed(_stages(spark))), default=-1), Done()
    yield done
    context.listenerBus().waitUntilEmpty(10_000)
    known: set[str] = set()
    for one in sorted(_listed(store.executionsList()), key=lambda one: one.executionId()):
        if one.executionId() > queries:
            for identity, exchange in _exchanges(one.physicalPlanDescription()):
                if identity not in known:
                    known.add(identity)
                    done.exchanges.append(exchange)
    done.exchanges.sort()
    for stage in _listed(_stages(spark)):
        if stage.stageId() <= stages or not stage.numCompleteTasks():
            continue
        done.tasks.append(stage.numCompleteTasks())
        for task in _listed(context.statusStore().taskList(stage.stageId(), stage.attemptId(), 1_000_000)):
            if task.taskMetrics().isDefined():
                done.largest = max(done.largest, task.taskMetrics().get().shuffleReadMetrics().recordsRead())


def _stages(spark: SparkSession):  # type: ignore[no-untyped-def]  # objects of Java
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    return spark.sparkContext._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)


def _listed(found):  # type: ignore[no-untyped-def]
    return [found.apply(number) for number in range(found.size())]


def _exchanges(plan: str) -> Iterator[tuple[str, str]]:
    """The exchanges of an explained plan as it was executed, also those of what it has cached: identity and text."""
    tree, _, details = plan.partition("\n\n\n")
    skipped: int | None = None
    for line in tree.splitlines():
        begun = re.search(r"[+:]-|[*\w]", line)
        depth = begun.start() if begun else 0
        if skipped is not None and depth > skipped:
            continue
        skipped = depth if "== Initial Plan ==" in line else None
        if found := _NODE.search(line):
            kind, number = found.groups()
            text = details[details.index(f"({number}) {kind}") :]
            told = re.search(r"Arguments: (.*)", text)
            assert told is not None
            identity = re.search(r"plan_id=\d+", told[1])
            yield (identity[0] if identity else told[1]), _said(kind, told[1])


def _said(kind: str, arguments: str) -> str:
    if kind != "Exchange":
        return kind.removesuffix("Exchange").lower()
    how = re.sub(r"#\d+L?", "", arguments)
    name = next(name for name in _KINDS if how.startswith(name))
    keys = re.match(r"\w+\((.*), \d+\)", how)
    return _KINDS[name] + (f"({re.sub(r' ASC NULLS FIRST| DESC NULLS LAST', '', keys[1])})" if keys else "")
