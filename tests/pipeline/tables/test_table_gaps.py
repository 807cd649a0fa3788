"""`export --append` where backups were not exported: messages that only those have are not left out silently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jsbackup.errors import IncompleteError
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.planning.transforming import TransformOptions
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.reshape import Reshape
from tests.cli.typed import in_shell
from tests.harness.batches import Message, some_messages
from tests.pipeline.places import Kept, keep
from tests.pipeline.tables.growing import backed_up, export, ids, rows, rows_of

pytestmark = pytest.mark.slow

each = pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG])
MESSAGES = [m._replace(sequence=number) for number, m in enumerate(some_messages(200, 60, seed=7), start=1)]
STILL = some_messages(10, 60, seed=8)


def _backups(folder: Path, *states: Sequence[Message], still: bool = True) -> tuple[Kept, list[Manifest]]:
    other = {"STILL": STILL} if still else {}
    kept = keep(folder, {"ORDERS": states[0], **other})
    found = [kept.manifest]
    found += [backed_up(kept, number, {"ORDERS": one, **other}) for number, one in enumerate(states[1:], start=1)]
    return kept, found


def _messages(*ranges: range) -> list[Message]:
    return [MESSAGES[number - 1] for one in ranges for number in one]


@each
def test_backups_that_were_left_out_come_first(tmp_path: Path, kind: TableFormat) -> None:
    kept, found = _backups(tmp_path / "r", *(_messages(range(n, n + 50)) for n in (1, 51, 101)))
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, found[0], place, kind)
    done = export(kept, found[2], place, kind)
    assert [one.name for one in done.streams] == ["STILL"] and done.files == 0
    error = done.refused["ORDERS"]
    assert isinstance(error, IncompleteError)
    assert error.message == (
        f"messages 51 to 100 of stream ORDERS would be missing in its table: export backup {found[1].id} first"
    )
    assert error.hint is not None and "--skip-gaps" in error.hint
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:50])
    for manifest in found[1:]:
        done = export(kept, manifest, place, kind, token=manifest.id[-6:] + "ab")
        assert not done.refused and done.streams[0].notes == ()
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:150])
    for manifest in found[:2]:
        done = export(kept, manifest, place, kind)
        assert done.streams[0].notes == ("nothing is new: the table ends at sequence 150, from a later backup",)


@each
def test_all_that_are_needed_are_named_oldest_first(tmp_path: Path, kind: TableFormat) -> None:
    """The third has all of the second, and what is removed within is also only in earlier ones."""
    states = (
        _messages(range(1, 51)),
        _messages(range(45, 81)),
        _messages(range(45, 101)),
        _messages(range(45, 91), range(96, 121)),
        _messages(range(121, 151)),
    )
    kept, found = _backups(tmp_path / "r", *states, still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, found[0], place, kind)
    with pytest.raises(IncompleteError) as caught:
        export(kept, found[4], place, kind)
    assert caught.value.message == (
        "messages 51 to 120 of stream ORDERS would be missing in its table: export backups "
        f"{found[2].id} and {found[3].id} first, in this order"
    )
    with pytest.raises(IncompleteError) as caught:
        export(kept, found[3], place, kind)
    assert caught.value.message.startswith("5 of the messages ")
    assert caught.value.message.endswith(f"would be missing in its table: export backup {found[2].id} first")
    for number in (2, 3, 4):
        assert not export(kept, found[number], place, kind, token=f"0000000{number}").refused
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:150])


@each
def test_what_no_backup_has_is_a_note(tmp_path: Path, kind: TableFormat) -> None:
    states = (_messages(range(1, 51)), _messages(range(101, 151)), _messages(range(141, 161), range(171, 181)))
    kept, found = _backups(tmp_path / "r", *states, still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, found[0], place, kind)
    for number, notes in ((1, ("messages 51 to 100 are in no backup",)), (2, ())):
        assert export(kept, found[number], place, kind, token=f"0000000{number}").streams[0].notes == notes
    assert [row[0] for row in rows_of(tmp_path / "out" / "ORDERS", kind)] == [
        *range(1, 51),
        *range(101, 161),
        *range(171, 181),
    ]


@each
def test_messages_that_the_backup_between_lacks_too_are_not_lost(tmp_path: Path, kind: TableFormat) -> None:
    states = (
        _messages(range(1, 51)),
        _messages(range(61, 71), range(81, 101)),
        _messages(range(61, 71), range(81, 151)),
    )
    kept, found = _backups(tmp_path / "r", *states, still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, found[0], place, kind)
    assert export(kept, found[2], place, kind, token="00000002").streams[0].notes == (
        "messages 51 to 60 are in no backup",
    )


@each
def test_gaps_can_be_skipped(tmp_path: Path, kind: TableFormat) -> None:
    kept, found = _backups(tmp_path / "r", *(_messages(range(n, n + 50)) for n in (1, 51, 101)), still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, found[0], place, kind)
    done = export(kept, found[2], place, kind, skip_gaps=True, token="00000002")
    assert done.streams[0].notes == (f"messages 51 to 100 are left out: they are in backup {found[1].id}",)
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(_messages(range(1, 51), range(101, 151)))
    with pytest.raises(IncompleteError) as caught:
        export(kept, found[1], place, kind)
    assert caught.value.message == (
        f"the table of stream ORDERS lacks 50 messages of backup {found[1].id}, which can no longer be added: the "
        "table ends at sequence 150, by a later backup"
    )
    done = export(kept, found[1], place, kind, skip_gaps=True)
    assert done.streams[0].notes == (
        "nothing is new: the table ends at sequence 150, from a later backup; it lacks 50 messages of this backup, "
        "which can no longer be added",
    )
    for number in (0, 2):
        assert "it lacks" not in export(kept, found[number], place, kind).streams[0].notes[0]


def test_a_table_that_others_have_joined_is_compared_by_its_rows(tmp_path: Path) -> None:
    kept, found = _backups(tmp_path / "r", *(_messages(range(n, n + 50)) for n in (1, 51, 101)), still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, found[0], place, TableFormat.DELTA)
    export(kept, found[2], place, TableFormat.DELTA, skip_gaps=True, token="00000002")
    DeltaTable(tmp_path / "out" / "ORDERS").optimize.compact()
    export(kept, found[0], place, TableFormat.DELTA)  # nothing is known to be missing
    more = backed_up(kept, 3, {"ORDERS": MESSAGES[:150]})
    assert more.id > found[2].id
    older = _messages(range(1, 151))
    del older[3]
    kept2, found2 = _backups(tmp_path / "r2", older, _messages(range(101, 151)), still=False)
    place = place_of(str(tmp_path / "out2"), S3Settings(), {})
    export(kept2, found2[1], place, TableFormat.DELTA)
    DeltaTable(tmp_path / "out2" / "ORDERS").optimize.compact()
    with pytest.raises(IncompleteError, match="lacks 99 messages"):
        export(kept2, found2[0], place, TableFormat.DELTA)


@each
def test_a_damaged_backup_between_stops_an_export_until_it_is_skipped(tmp_path: Path, kind: TableFormat) -> None:
    kept, found = _backups(tmp_path / "r", *(_messages(range(n, n + 50)) for n in (1, 51, 101)), still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, found[0], place, kind)
    path = Path(kept.place.location) / layout.manifest_key(found[1].id)
    path.chmod(0o600)
    path.write_bytes(b"{}")
    with pytest.raises(IncompleteError) as caught:
        export(kept, found[2], place, kind)
    assert caught.value.message == (
        f"messages of stream ORDERS after sequence 50 may be in backup {found[1].id}, which cannot be read, and not in "
        "this one"
    )
    done = export(kept, found[2], place, kind, skip_gaps=True, token="00000002")
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(_messages(range(1, 51), range(101, 151)))
    assert not done.refused


@pytest.mark.parametrize(
    "cut",
    [
        Cut(until=AtSequence(50)),
        Cut(since=AtSequence(101)),
        Cut(since=AtTime(MESSAGES[110].timestamp_ns)),
    ],
)
def test_what_a_cut_leaves_out_is_not_missing(tmp_path: Path, cut: Cut) -> None:
    kept, found = _backups(tmp_path / "r", *(_messages(range(n, n + 50)) for n in (1, 51, 101)), still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    options = TransformOptions(reshape=Reshape(cut=cut), allow_empty=True)
    export(kept, found[0], place, TableFormat.PARQUET, options=options)
    done = export(kept, found[2], place, TableFormat.PARQUET, options=options, token="00000002")
    assert not done.refused and "no backup" not in str(done.streams[0].notes)


def _even_and_odd(*ranges: range) -> list[Message]:
    return [one._replace(subject=f"orders.{one.sequence % 2}") for one in _messages(*ranges)]


@each
def test_only_messages_that_a_filter_keeps_are_missing(tmp_path: Path, kind: TableFormat) -> None:
    """The last backup lacks the even ones of 61 to 80, and 81 to 90."""
    states = (
        _even_and_odd(range(1, 51)),
        _even_and_odd(range(31, 101)),
        _even_and_odd(range(41, 61), range(61, 81, 2), range(91, 151)),
    )
    for subject, number in (("orders.0", 15), ("orders.1", 5)):
        kept, found = _backups(tmp_path / f"r{subject}", *states, still=False)
        place = place_of(str(tmp_path / subject), S3Settings(), {})
        options = TransformOptions(reshape=Reshape(filters=Filters.parse({"subject": [subject]})))
        export(kept, found[0], place, kind, options=options)
        first, last = (62, 90) if subject == "orders.0" else (81, 89)
        with pytest.raises(IncompleteError) as caught:
            export(kept, found[2], place, kind, options=options)
        assert caught.value.message == (
            f"{number} of the messages {first} to {last} of stream ORDERS would be missing in its table: export backup "
            f"{found[1].id} first"
        )
        for manifest in found[1:]:
            export(kept, manifest, place, kind, options=options, token=manifest.id[-6:] + "ab")
        had = [row[0] for row in rows_of(tmp_path / subject / "ORDERS", kind)]
        assert had == [one for one in range(1, 151) if f"orders.{one % 2}" == subject]


@each
def test_nothing_is_refused_where_the_filter_keeps_none_of_it(tmp_path: Path, kind: TableFormat) -> None:
    """And the note does not say that no backup has it."""
    states = (_even_and_odd(range(1, 51)), _even_and_odd(range(51, 101, 2)), _even_and_odd(range(101, 151)))
    kept, found = _backups(tmp_path / "r", *states, still=False)
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    options = TransformOptions(reshape=Reshape(filters=Filters.parse({"subject": ["orders.0"]})))
    export(kept, found[0], place, kind, options=options)
    done = export(kept, found[2], place, kind, options=options, token="00000002")
    assert (done.streams[0].messages, done.streams[0].notes) == (25, ())


@pytest.mark.parametrize("kind", [TableFormat.DELTA, TableFormat.ICEBERG])
def test_a_cut_within_a_segment_decides_by_its_messages(tmp_path: Path, kind: TableFormat) -> None:
    kept, found = _backups(tmp_path / "r", *(_messages(range(n, n + 50)) for n in (1, 51, 101)), still=False)
    for first, many in ((97, "messages 97 to 100"), (100, "message 100")):
        options = TransformOptions(reshape=Reshape(cut=Cut(since=AtSequence(first))), allow_empty=True)
        place = place_of(str(tmp_path / str(first)), S3Settings(), {})
        export(kept, found[0], place, kind, options=options)
        with pytest.raises(IncompleteError) as caught:
            export(kept, found[2], place, kind, options=options)
        assert caught.value.message.startswith(f"{many} of stream ORDERS would be missing")


@each
def test_the_command_ends_with_3_and_names_what_to_export(tmp_path: Path, kind: TableFormat) -> None:
    kept, found = _backups(tmp_path / "r", *(_messages(range(n, n + 50)) for n in (1, 51, 101)))
    line = ["--format", kind, "--output", tmp_path / "out", "--append", *kept.line, "--json"]
    assert in_shell("export", ids(0)[0], *line).code == 0
    refused = in_shell("export", "latest", *line)
    (failed,) = refused.document["failed"]
    assert refused.code == 3 and found[1].id in failed["reason"] and "--skip-gaps" in failed["hint"]
    for backup in (found[1].id, "latest", ids(0)[0]):
        done = in_shell("export", backup, *line)
        assert (done.code, done.document["failed"]) == (0, [])
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:150])
    assert in_shell("export", "latest", *line, "--skip-gaps").code == 0
    wrong = in_shell("export", "latest", *line[:4], *line[5:], "--skip-gaps")
    assert wrong.code == 2 and "no --append" in wrong.document["error"]["message"]
