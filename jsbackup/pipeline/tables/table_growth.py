"""What is added to a stream's table, and what came of it: the counts of the tasks that wrote it are summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from jsbackup.errors import IntegrityError, JsBackupError
from jsbackup.exchange.exporting import ExportedStream, PayloadCounts
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.payloads.payload_tally import PayloadTally, about_payloads, against_misfits
from jsbackup.pipeline.tables.table_log import TableLog
from jsbackup.pipeline.tables.table_state import NewMessages, TableSource
from jsbackup.pipeline.tables.writing import TableFormat, WrittenRun
from jsbackup.planning.rules import Rule
from jsbackup.planning.selection.renumbering import renumbered_entry
from jsbackup.planning.selection.subset import KeptStream, segments_within
from jsbackup.planning.transforming import PlannedStream, TransformOptions, about_transformed
from jsbackup.readable import format_count
from jsbackup.transforms.cut import Extent
from jsbackup.transforms.mask import MaskCount

__all__ = ["TableGrowth", "exported_of", "kept_of", "misfits_of", "refusals_of"]


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """A stream's table and what is added to it. `log` is None for JSON lines, which have none. `payloads` become
    columns if it is not None; `inferred`: their schema is new.
    """

    one: PlannedStream
    source: TableSource
    log: TableLog | None
    new: NewMessages
    payloads: PayloadParser | None = None
    inferred: bool = False

    @property
    def name(self) -> str:
        return self.one.reshaped.name


def refusals_of(written: Mapping[str, Sequence[WrittenRun]]) -> dict[str, JsBackupError]:
    """Return the streams whose messages are not those that their tables have: only reading them tells."""
    found = {name: [run.refused for run in runs if run.refused is not None] for name, runs in written.items()}
    return {name: errors[0] for name, errors in found.items() if errors}


def misfits_of(written: Mapping[str, Sequence[WrittenRun]]) -> dict[str, JsBackupError]:
    """Return the streams whose schema is not that of their payloads, as it turned out, with the refusal of each."""
    found = {name: _payloads(runs) for name, runs in written.items()}
    return {name: against_misfits(name, tally) for name, tally in found.items() if tally.missed}


def _payloads(runs: Sequence[WrittenRun]) -> PayloadTally:
    return reduce(PayloadTally.plus, (run.payloads for run in runs), PayloadTally())


def kept_of(one: PlannedStream, written: Sequence[WrittenRun]) -> KeptStream:
    """Return what was written of a stream. Raises IntegrityError if not all of it came."""
    entry, tallies = one.entry, [run.tally for run in written]
    expected = sum(ref.messages for ref in segments_within(entry, one.reshaped.messages.cut))
    old = sum(run.old for run in written)
    came = old + sum(tally.came.messages for tally in tallies)
    if came != expected or (not one.reshaped.messages.cut and came != entry.captured.messages):
        raise IntegrityError(f"stream {entry.name} has {entry.captured.messages} messages, and {came} came out")
    extent = reduce(Extent.followed_by, (tally.kept for tally in tallies), Extent())
    captured = replace(entry.captured, messages=extent.messages, first_seq=extent.first_seq, last_seq=extent.last_seq)
    kept = replace(entry, captured=captured, consumers=())
    if one.reshaped.messages.renumber:
        kept = renumbered_entry(kept, None)
    return KeptStream(
        kept,
        masked=reduce(MaskCount.plus, (tally.masked for tally in tallies), MaskCount()),
        had=entry.captured.messages - old,
        matched=sum((tally.matched for tally in tallies), Counter()),
        markers=sum(tally.markers for tally in tallies),
    )


def exported_of(
    growth: TableGrowth,
    kept: KeptStream | None,
    runs: Sequence[WrittenRun],
    kind: TableFormat,
    *,
    options: TransformOptions,
    extended: bool,
) -> ExportedStream:
    payloads, tally = growth.source.payloads, _payloads(runs)
    unseen = () if growth.payloads is None else growth.payloads.unseen(tally)
    counts = None if growth.payloads is None else PayloadCounts(tally.payloads, tally.misfits, unseen)
    if kept is None or growth.new.planned is None:
        return ExportedStream(growth.name, kind, 0, (growth.new.note,), payloads=payloads, payload_counts=counts)
    messages, grew = kept.entry.captured.messages, growth.log is not None and growth.log.state is not None
    # Of a table that has messages, nothing is told as of a stream without any.
    found = [] if grew and not messages else about_transformed(growth.new.planned, kept, options)
    nothing = f"nothing is written: none of its {format_count(kept.had, 'message')} is kept"  # and nothing is restored
    notes = [nothing if one.rule is Rule.NOTHING_KEPT else one.reason for one in found]
    if grew and not messages:
        notes.append("nothing that is new matches")
    if extended and not grew:
        notes.append("a new table")
    notes += [growth.new.note] if growth.new.note else []
    if kind is not TableFormat.JSONL and not all(run.is_text for run in runs):
        notes.append("has subjects that are not UTF-8, where DuckDB, pyarrow and pyiceberg fail; Spark reads them")
    if growth.inferred:
        notes.append(f"payloads are columns, by the inferred schema {payloads}")
    # What was added to a table may lack fields that are rare.
    notes += about_payloads(tally, () if grew else unseen)
    return ExportedStream(growth.name, kind, messages, tuple(notes), payloads=payloads, payload_counts=counts)
