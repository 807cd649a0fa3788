"""A lower `max_msgs_per_subject` for a clone: the source is asked how many messages its subjects have."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.planning.configs.overrides import trims
from jsbackup.planning.model import RestoreOptions, RestorePlan
from jsbackup.planning.selection.limited import SUBJECT_LIMIT, lowered_subject_limit

__all__ = ["refuse_subject_limits"]

_MOST_SUBJECTS = 100_000  # are asked for; of more, only their number counts


async def refuse_subject_limits(js: JetStream, plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    """Return the plan of a clone, refused where subjects of its source have more messages than a limit that was asked
    for would leave. What filters leave out is not known. Raises NatsError.
    """
    refusals = list(plan.refusals)
    for action in plan.actions:
        most = lowered_subject_limit(action, options)
        if not most or action.reshape.drops:
            continue
        info = await js.stream(action.entry.name)
        held, left = info.state.messages, info.subject_count * most
        if 0 < info.subject_count <= _MOST_SUBJECTS:
            counts = (await js.subjects(action.entry.name, ">")).values()
            held, left = sum(counts), sum(min(count, most) for count in counts)
        if 0 < left < held:
            refusals.append(trims(action.entry.name, SUBJECT_LIMIT, left, held))
    return replace(plan, refusals=tuple(refusals))
