"""What an `export --append` has to have done, by the rows that other readers find before and after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.pipeline.appends.append_world import NAMES, Backup, Done, Row, Target, World
from tests.pipeline.appends.store_faults import Fault

__all__ = ["Checked"]

_BENIGN = (
    re.compile(r"a new table"),
    re.compile(r"backup \S+ has an earlier stream of that name, which is not in this table"),
    re.compile(r"nothing is new: the table ends at sequence \d+(, from a later backup)?"),
    re.compile(r"nothing that is new matches"),
    re.compile(r"nothing is written: none of its [\d,]+ messages? is kept"),
)
_NOWHERE = re.compile(r"messages? (?P<first>\d+)( to (?P<last>\d+))? (is|are) in no backup")
_COUNTED = r"(message (?P<one>\d+)|messages (?P<first>\d+) to (?P<last>\d+)"
_COUNTED += r"|(?P<some>[\d,]+) of the messages (?P<least>\d+) to (?P<most>\d+))"
_LEFT_OUT = re.compile(_COUNTED + r" (is|are) left out: (it is|they are) in (?P<backups>.*)")
_LACKS = re.compile(r"it lacks (?P<count>[\d,]+) messages? of this backup, which can .*")
_MISSING = re.compile(r".*?" + _COUNTED + r" of \S+.* would be missing in its table: (?P<first_do>.*)")
_NO_TABLE = re.compile(r"stream (?P<stream>\S+) is not in backup \S+( any more, and has no table|, which is of .*): .*")
_GONE = re.compile(r"it is not in backup \S+ any more(: nothing is new(, the table ends at sequence \d+)?)?")
_TOO_LATE = re.compile(
    r"the table of stream (?P<stream>\S+) lacks (?P<count>[\d,]+) messages? of backup "
    r"(?P<id>\S+), which can no longer be added: the table ends at sequence \d+, by a later backup"
)
_OTHER_STREAM = re.compile(r"the table of stream \S+ is of another stream of that name: .*|.*has another stream of .*")
_SET_BACK = re.compile(r"stream (?P<stream>\S+) was set back since its table was extended: .*")
_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


@dataclass(slots=True)
class _Table:
    """What the test knows of a table: of which incarnation it is, and the last sequence that had been given when the
    stream was read for the last time.
    """

    incarnation: str
    end: int
    read_ns: int


class Checked:
    """Exports to a target, each looked at. Raises AssertionError for what must not be."""

    def __init__(self, world: World, target: Target) -> None:
        self._world, self._target = world, target
        self._tables: dict[str, _Table] = {}

    def export_interrupted(self, backup: str, streams: Sequence[str], fault: Fault) -> None:
        """Export a backup while something goes wrong in the store of the tables, and then again."""
        before = {name: self._target.rows(name) for name in NAMES}
        with fault.in_stores_of(self._world.folder, but=self._world.folder / "repo"):
            done = self._world.export(self._target, backup, streams)
        meant = self._meant(backup, done)
        for name in NAMES:
            old, new = before[name], self._target.rows(name)
            assert len({row.sequence for _, _, row in new}) == len(new) and set(old) <= set(new), f"{name}: {done}"
            for _, of, row in set(new) - set(old):
                assert meant is not None and of == meant.id and meant.streams[name].rows[row.sequence] == row
        assert done.code != 0 or not fault.is_hard or not fault.happened, f"{fault}: {done}"
        self.export(backup, streams, again=True)

    def export(
        self,
        backup: str,
        streams: Sequence[str],
        *,
        skip_gaps: bool = False,
        obey: bool = False,
        again: bool = False,
    ) -> None:
        """Export a backup, an id or `latest`. With `obey`, do then what refusals say. `again`: it was interrupted, and
        may have added rows.
        """
        before = {name: self._target.rows(name) for name in NAMES}
        done = self._world.export(self._target, backup, streams, skip_gaps=skip_gaps)
        after = {name: self._target.rows(name) for name in NAMES}
        meant = self._meant(backup, done)
        try:
            refused = self._check(meant, streams, done, before, after, skip_gaps=skip_gaps, again=again)
        except AssertionError as error:
            error.add_note(f"of export {backup} {' '.join(streams)}: {done}")
            raise
        for name, backups in refused if obey else ():
            self._obey(name, backups, meant, lambda: self._world.export(self._target, backup, streams))

    def _obey(self, stream: str, backups: Sequence[str], meant: Backup | None, repeat: Callable[[], Done]) -> None:
        """Do what a refusal says, and then `repeat` what was refused: it has to help."""
        assert meant is not None
        for backup in backups:
            done = self._world.export(self._target, backup, [stream])
            assert done.code == 0, f"to export {backups} before {meant.id} does not help: {backup}: {done}"
            self._know(self._named(backup), stream)
        done = repeat()
        failed = {one["name"] for one in done.document.get("failed", [])}
        assert done.code == 0 or ("error" not in done.document and stream not in failed), (
            f"{backups} do not help: {done}"
        )
        for one in done.document["streams"]:
            if one["name"] in meant.streams:
                self._know(meant, one["name"])
        lacks = self._wanted(meant, stream) - set(self._by_sequence(stream))
        assert not lacks, f"{stream}: after {backups} and {meant.id} the table lacks {lacks}"

    def _named(self, backup: str) -> Backup:
        return next(one for one in self._world.backups if one.id == backup)

    def _meant(self, backup: str, done: Done) -> Backup | None:
        if backup == "latest" and (said := re.search(r"latest is (\S+),", done.err)):
            backup = said[1]
        return next((one for one in self._world.backups if one.id == backup), None)

    def _check(
        self,
        meant: Backup | None,
        streams: Sequence[str],
        done: Done,
        before: dict[str, list[tuple[str, str, Row]]],
        after: dict[str, list[tuple[str, str, Row]]],
        *,
        skip_gaps: bool,
        again: bool,
    ) -> list[tuple[str, list[str]]]:
        """Return the streams that are refused until other backups are exported, and these."""
        for name in before:
            old, new = (sorted(rows[name], key=lambda row: row[2].sequence) for rows in (before, after))
            assert len({row[2].sequence for row in new}) == len(new), f"{name}: rows are doubled"
            assert set(old) <= set(new), f"{name}: rows are gone, or changed"
        changed = {name for name in before if len(before[name]) != len(after[name])}
        if meant is None or done.code not in (0, 3, 16) or "error" in done.document:
            assert done.code != 0 and not changed, f"changed {changed}"
            return self._check_error(meant, streams, done, skip_gaps=skip_gaps)
        chosen = {name for name in meant.streams if name in streams or not streams}
        written = {one["name"]: one for one in done.document["streams"]}
        failed = {one["name"]: one["reason"] for one in done.document["failed"]}
        named = written.keys() | failed.keys()
        assert chosen <= named and not written.keys() & failed.keys(), f"{chosen} were exported, and {named} are named"
        assert done.code == (3 if failed else 0) and changed <= written.keys()
        assert sum(one["messages"] for one in written.values()) == done.document["rows"]
        later = []
        for name in sorted(failed):
            backups = self._check_refusal(meant, name, failed[name], skip_gaps=skip_gaps)
            later += [(name, backups)] if backups else []
        for name, one in sorted(written.items()):
            added = set(after[name]) - set(before[name])
            assert again or len(added) == one["messages"], f"{name}: {len(added)} rows are new, not {one['messages']}"
            self._check_written(meant, name, added, one["notes"], skip_gaps=skip_gaps)
        if not streams:
            for name in filter(meant.selects, self._tables.keys() - named):
                assert not self._unseen(meant, name, self._tables[name]), f"{name} is gone, and nothing is said"
        return later

    def _check_error(
        self, meant: Backup | None, streams: Sequence[str], done: Done, *, skip_gaps: bool
    ) -> list[tuple[str, list[str]]]:
        """Nothing was written, and one error says why. Of several streams it has a sentence for each."""
        error = done.document["error"]
        message = error["message"]
        if done.code == 2:
            lacking = meant is None or not meant.streams or any(name not in meant.streams for name in streams)
            assert lacking, "no mistake of who typed it"
            return []
        assert meant is not None
        if message.startswith("nothing was exported: "):
            assert done.code in (1, 3, 16)
            return []
        assert done.code in (3, 16)
        (stream,) = {name for name in NAMES if re.search(rf"\b{name}\b", message)}
        backups = self._check_refusal(meant, stream, message, skip_gaps=skip_gaps)
        return [(stream, backups)] if backups else []

    def _check_refusal(self, meant: Backup, stream: str, message: str, *, skip_gaps: bool) -> list[str]:
        """Return the backups that are to be exported first."""
        have, table = meant.streams.get(stream), self._tables.get(stream)
        if _OTHER_STREAM.fullmatch(message):
            assert table is None or have is None or table.incarnation != have.incarnation
            return []
        if _SET_BACK.fullmatch(message):  # it was not: a fault that is left, if it began later and read it earlier
            assert table is not None and meant.moment_ns < table.read_ns
            return []
        assert not skip_gaps, f"{stream}: --skip-gaps does not go on"
        assert table is None or have is None or table.incarnation == have.incarnation, f"{stream}: of another stream"
        if found := _TOO_LATE.fullmatch(message):
            self._compare(found, self._wanted(meant, stream) - set(self._by_sequence(stream)))
            assert found["id"] == meant.id
            return []
        backups = _ID.findall(message.partition("export ")[2])
        named = [self._named(one) for one in backups]
        moments = [one.moment_ns for one in named]
        assert named and moments == sorted(moments) and moments[-1] <= meant.moment_ns
        if _NO_TABLE.fullmatch(message):
            assert have is None and table is None
            return backups
        found = _MISSING.fullmatch(message)
        assert found is not None, f"{stream}: an unknown refusal: {message}"
        if table is not None:  # otherwise it is not known here from where on messages are expected
            missing = self._unseen(meant, stream, table) - self._all(meant, stream)
            self._compare_range(found, missing)
            held = {n for one in named for n in self._all(one, stream)}
            assert missing <= held, f"{stream}: {named} do not have {missing - held}"
        return backups

    def _check_written(
        self, meant: Backup, stream: str, added: set[tuple[str, str, Row]], notes: Sequence[str], *, skip_gaps: bool
    ) -> None:
        have, table = meant.streams.get(stream), self._tables.get(stream)
        for name, backup, row in added:
            assert have is not None and (name, backup) == (stream, meant.id) and have.rows.get(row.sequence) == row
            assert self._target.takes(row)
        assert table is None or have is None or table.incarnation == have.incarnation, f"{stream}: of another stream"
        rows = self._by_sequence(stream)
        lacks = self._wanted(meant, stream) - set(rows)
        unseen = set() if table is None else self._unseen(meant, stream, table) - set(rows)
        for note in (part for one in notes for part in one.split("; ")):
            if any(benign.fullmatch(note) for benign in _BENIGN):
                continue
            if found := _NOWHERE.fullmatch(note):
                said = range(int(found["first"]), int(found["last"] or found["first"]) + 1)
                assert have is not None
                for one in self._backups_of(stream, have.incarnation):
                    if one.moment_ns <= meant.moment_ns:
                        assert not set(said) & self._all(one, stream), f"{stream}: {note}, but {one.id}"
                assert not set(said) & set(rows)
            elif found := _LEFT_OUT.fullmatch(note):
                assert skip_gaps
                if table is not None:
                    self._compare_range(found, unseen)
                named = [self._named(one) for one in _ID.findall(found["backups"])]
                assert unseen <= {n for one in named for n in self._all(one, stream)}
                unseen = set()
            elif found := _LACKS.fullmatch(note):
                assert skip_gaps
                self._compare(found, lacks)
                lacks = set()
            elif _GONE.fullmatch(note):
                assert have is None
            else:
                assert skip_gaps and note.startswith("it is left out: "), f"{stream}: an unknown note: {note}"
        assert not lacks, f"{stream}: lacks {lacks}"
        assert not unseen, f"{stream}: {sorted(unseen)} are left out, and nothing is said"
        if have is not None:
            self._know(meant, stream)

    # --- what is known ---

    def _know(self, meant: Backup, stream: str) -> None:
        have, table = meant.streams[stream], self._tables.get(stream)
        if table is not None:
            table.end, table.read_ns = max(table.end, have.last_seq), max(table.read_ns, meant.moment_ns)
        elif self._target.has_table(stream):
            self._tables[stream] = _Table(have.incarnation, have.last_seq, meant.moment_ns)

    def _by_sequence(self, stream: str) -> dict[int, Row]:
        return {row.sequence: row for _, _, row in self._target.rows(stream)}

    def _all(self, backup: Backup, stream: str) -> set[int]:
        return set(backup.streams[stream].rows) if stream in backup.streams else set()

    def _wanted(self, backup: Backup, stream: str) -> set[int]:
        return {n for n in self._all(backup, stream) if self._target.takes(backup.streams[stream].rows[n])}

    def _backups_of(self, stream: str, incarnation: str) -> list[Backup]:
        having = [one for one in self._world.backups if stream in one.streams]
        return [one for one in having if one.streams[stream].incarnation == incarnation]

    def _unseen(self, meant: Backup, stream: str, table: _Table) -> set[int]:
        """The messages behind the end of a table that are in a backup up to this one."""
        found: set[int] = set()
        for one in self._backups_of(stream, table.incarnation):
            if one.moment_ns <= meant.moment_ns:
                found |= {n for n in self._wanted(one, stream) if n > table.end}
        return found

    def _compare(self, found: re.Match[str], sequences: set[int]) -> None:
        count = int(found["count"].replace(",", ""))
        assert count == len(sequences), f"{found[0]}: {sorted(sequences)}"

    def _compare_range(self, found: re.Match[str], sequences: set[int]) -> None:
        shown = f"{found[0]}: {sorted(sequences)}"
        if found["some"]:
            least, most, count = (int(found[name].replace(",", "")) for name in ("least", "most", "some"))
            assert len(sequences) == count and all(least <= n <= most for n in sequences), shown
        else:
            first = int(found["one"] or found["first"])
            assert sequences == set(range(first, int(found["one"] or found["last"]) + 1)), shown
