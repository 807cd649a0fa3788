"""Filters that have found nothing: a misspelt one keeps, or leaves out, nothing, and what it was to leave out would be
copied. So that is refused, unless the user confirms it.

A condition on headers or payloads is known to miss when all messages were read. It counts for all streams of a restore
together: one that is for some of them is none for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jsbackup.config import MAY_MISS
from jsbackup.planning.model import Action, RestoreOptions
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.transforms.filters.filters import Filters

__all__ = ["about_missed", "against_missed", "with_cause"]


def about_missed(
    kept: Mapping[str, KeptStream], actions: Sequence[Action], options: RestoreOptions
) -> Iterator[Finding]:
    """Yield refusals for conditions that no message of a plan meets, if all messages were read."""
    if options.allow_nothing:
        return
    known = [kept.get(action.entry.name) for action in actions if action.reshape.filters and action.had]
    counts = [one.matched for one in known if one is not None and one.matched is not None]
    if len(counts) == len(known):
        yield from against_missed(options.reshape.filters, sum(counts, Counter()))


def against_missed(filters: Filters, matched: Mapping[str, int]) -> Iterator[Finding]:
    """Yield refusals for conditions without any message in these counts, if there were messages to judge."""
    for option, rule in filters.by_content:
        if matched.get(option) and not matched.get(f"{option} {rule}"):
            reason = f"{option} {rule}: no message that the other options leave meets it, so it would keep nothing"
            yield Finding("", Rule.FILTER_MISSED, reason, f"Correct it, or leave it out. {MAY_MISS}")


def with_cause(refusals: Iterable[Finding], missed: Sequence[Finding], actions: Sequence[Action]) -> list[Finding]:
    """Return all refusals; without those that nothing is kept, if a condition that no message meets is the cause."""
    caused = bool(missed) and not any(action.entry.captured.messages for action in actions)
    return [*(one for one in refusals if not (caused and one.rule is Rule.KEEPS_NOTHING)), *missed]
