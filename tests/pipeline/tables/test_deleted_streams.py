"""`export --append` after streams were deleted on the server: what only earlier backups have of them is not left out
silently, and the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jsbackup.errors import IncompleteError
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.planning.transforming import TransformOptions
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest, Result, Selection, SkippedStream
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.reshape import Reshape
from tests.cli.typed import Typed, in_shell
from tests.harness import backups
from tests.harness.backups import store_stream
from tests.harness.batches import Message
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.pipeline.places import Kept, keep
from tests.pipeline.tables.growing import StoreAt, export, ids, rows, rows_of
from tests.pipeline.tables.test_table_gaps import STILL, _messages

pytestmark = pytest.mark.slow

each = pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG])
GONE = "it is not in backup {} any more: nothing is new, the table ends at sequence {}"

X = [_messages(range(1, 51)), _messages(range(1, 101)), _messages(range(71, 151))]
Y = [_messages(range(1, n)) for n in (11, 21, 31, 41, 51)]


def _kept(folder: Path) -> Kept:
    return keep(folder, {"UNRELATED": STILL})


def _made(kept: Kept, number: int, streams: Mapping[str, Sequence[Message]], **changes: Any) -> Manifest:
    """Commit one more backup of a server, of all of its streams."""
    backup, created = ids(number)
    stored = [store_stream(kept.repository.objects, name, messages) for name, messages in sorted(streams.items())]
    changes = {"selection": Selection(), **changes}
    manifest = replace(kept.manifest, id=backup, created=created, streams=tuple(stored), **changes)
    kept.repository.commit(manifest)
    return manifest


def _at(folder: Path) -> RepositoryRef:
    return place_of(str(folder), S3Settings(), {})


def _missing(said: str, backup: Manifest, first: str) -> str:
    return f"stream X is not in backup {backup.id} any more, and {said} of it would be missing in its table: {first}"


@each
def test_a_deleted_stream_whose_last_messages_were_not_exported_is_refused(tmp_path: Path, kind: TableFormat) -> None:
    """Until they are: also by exports after that."""
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1 + n, {"X": x, "Y": Y[n]}) for n, x in enumerate(X)]
    place = _at(tmp_path / "out")
    export(kept, found[0], place, kind, token="00000001")
    for number in (3, 4):
        later = _made(kept, 1 + number, {"Y": Y[number]})
        done = export(kept, later, place, kind, token=f"0000000{number}")
        error = done.refused["X"]
        assert isinstance(error, IncompleteError)
        both = f"export backups {found[1].id} and {found[2].id} first, in this order"
        assert error.message == _missing("messages 51 to 150", later, both)
        assert error.hint is not None and "--skip-gaps" in error.hint
        assert [(one.name, one.messages) for one in done.streams] == [("Y", 10 if number == 4 else 30)]
    done = export(kept, later, place, kind, skip_gaps=True)
    notes = {one.name: one.notes for one in done.streams}
    assert not done.refused and notes["X"] == (
        f"it is not in backup {later.id} any more; messages 51 to 150 are left out: they are in backups {found[1].id} "
        f"and {found[2].id}",
    )
    for manifest in found[1:]:
        assert not export(kept, manifest, place, kind, token=manifest.id[-6:] + "cd").refused
    assert rows_of(tmp_path / "out" / "X", kind) == rows(_messages(range(1, 151)))
    assert not export(kept, later, place, kind).refused


@each
def test_where_nothing_is_missing_it_is_a_note(tmp_path: Path, kind: TableFormat) -> None:
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1 + n, {"X": X[0], "Y": Y[n]}) for n in (0, 1)]
    found.append(_made(kept, 3, {"Y": Y[2]}))
    place = _at(tmp_path / "out")
    export(kept, found[0], place, kind)
    done = export(kept, found[2], place, kind, token="00000002")
    notes = {one.name: one.notes for one in done.streams}
    assert not done.refused and notes == {"X": (GONE.format(found[2].id, 50),), "Y": ()}
    # Once it is certain that it was deleted before the next export, nothing is said any more.
    last = _made(kept, 4, {"Y": Y[3]})
    place = _at(tmp_path / "other")
    export(kept, found[1], place, kind)
    assert [one.name for one in export(kept, last, place, kind, token="00000003").streams] == ["Y"]


def test_in_s3(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1 + n, {"X": x, "Y": Y[n]}) for n, x in enumerate(X[:2])]
    last = _made(kept, 3, {"Y": Y[2]})
    place = StoreAt("s3://lake/tables", S3Settings(), given=MemoryStore())
    export(kept, found[0], place, TableFormat.DELTA)
    done = export(kept, last, place, TableFormat.DELTA, token="00000002")
    assert done.refused["X"].message == _missing("messages 51 to 100", last, f"export backup {found[1].id} first")


def test_a_stream_that_came_and_went_between_two_exports_is_refused(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1, {"Y": Y[0]}), _made(kept, 2, {"X": X[0], "Y": Y[1]}), _made(kept, 3, {"Y": Y[2]})]
    place = _at(tmp_path / "out")
    assert not export(kept, found[0], place, TableFormat.PARQUET).refused
    done = export(kept, found[2], place, TableFormat.PARQUET, token="00000002")
    assert done.refused["X"].message == (
        f"stream X is not in backup {found[2].id} any more, and messages 1 to 50 of it would be missing in its table: "
        f"export backup {found[1].id} first"
    )
    assert not export(kept, found[1], place, TableFormat.PARQUET, token="00000003").refused
    assert rows_of(tmp_path / "out" / "X", TableFormat.PARQUET) == rows(X[0])


def test_a_new_table_beside_others_lacks_nothing_that_backups_have(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1, {"Y": Y[0]})]
    found += [_made(kept, 2 + n, {"X": x, "Y": Y[1 + n]}) for n, x in enumerate((X[1], X[2]))]
    place = _at(tmp_path / "out")
    export(kept, found[0], place, TableFormat.PARQUET)
    found.append(_made(kept, 4, {"X": X[2], "Y": Y[3]}))
    for number in (2, 3):  # also when the table of Y has gone on
        done = export(kept, found[number], place, TableFormat.PARQUET, token=f"0000000{number}")
        assert done.refused["X"].message == (
            f"messages 1 to 70 of stream X would be missing in its table: export backup {found[1].id} first"
        )
    for number, backup in enumerate((found[1], found[3]), 4):
        assert not export(kept, backup, place, TableFormat.PARQUET, token=f"0000000{number}").refused
    assert rows_of(tmp_path / "out" / "X", TableFormat.PARQUET) == rows(_messages(range(1, 151)))


def test_messages_that_a_filter_drops_are_not_missing(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    states = [
        [one._replace(subject="a" if one.sequence <= 50 else "b") for one in messages] for messages in (X[0], X[1])
    ]
    found = [_made(kept, 1 + n, {"X": states[n], "Y": Y[n]}) for n in (0, 1)]
    last = _made(kept, 3, {"Y": Y[2]})
    for subject, refused in (("a", False), ("b", True)):
        place = _at(tmp_path / subject)
        reshape = Reshape(filters=Filters.parse({"subject": [subject, "orders.>"]}))
        options = TransformOptions(reshape=reshape, allow_empty=True, pattern_may_miss=True)
        export(kept, found[0], place, TableFormat.DELTA, options=options)
        done = export(kept, last, place, TableFormat.DELTA, options=options, token="00000002")
        assert bool(done.refused) is refused


@pytest.mark.parametrize(
    "changes",
    [
        {"selection": Selection(("Y",))},
        {"selection": Selection((), ("X",))},
        {"selection": None},
        {"result": Result.PARTIAL, "skipped": (SkippedStream("X", "it could not be read"),)},
    ],
)
def test_a_stream_that_a_backup_does_not_select_or_could_not_read_is_not_deleted(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1 + n, {"X": x, "Y": Y[n]}) for n, x in enumerate(X[:2])]
    last = _made(kept, 3, {"Y": Y[2]}, **changes)
    place = _at(tmp_path / "out")
    export(kept, found[0], place, TableFormat.PARQUET)
    done = export(kept, last, place, TableFormat.PARQUET, token="00000002")
    assert not done.refused and [one.name for one in done.streams] == ["Y"]


def test_a_damaged_backup_between_may_have_more(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1 + n, {"X": x, "Y": Y[n]}) for n, x in enumerate(X[:2])]
    last = _made(kept, 3, {"Y": Y[2]})
    place = _at(tmp_path / "out")
    export(kept, found[0], place, TableFormat.PARQUET)
    path = Path(kept.place.location) / layout.manifest_key(found[1].id)
    path.chmod(0o600)
    path.write_bytes(b"{}")
    done = export(kept, last, place, TableFormat.PARQUET, token="00000002")
    assert done.refused["X"].message == (
        f"messages of stream X after sequence 50 may be in backup {found[1].id}, which cannot be read, and not in this "
        "one"
    )


def _run(kept: Kept, out: Path, *words: object) -> Typed:
    return in_shell("export", *words, *kept.line, "--format", "parquet", "--append", "--output", out, "--json")


def test_a_list_of_streams_goes_on_when_one_was_deleted(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    _made(kept, 1, {"X": X[0], "Y": Y[0]})
    assert _run(kept, tmp_path / "out", "latest", "X", "Y").code == 0
    for number in (2, 3):
        last = _made(kept, number, {"Y": Y[number]})
        done = _run(kept, tmp_path / "out", "latest", "X", "Y")
        assert done.code == 0, done
        assert {one["name"]: one["notes"] for one in done.document["streams"]} == {
            "X": [GONE.format(last.id, 50)],
            "Y": [],
        }
    assert rows_of(tmp_path / "out" / "Y", TableFormat.PARQUET) == rows(Y[3])
    # As before, a list of which no stream is left means the last backup that has one.
    assert _run(kept, tmp_path / "out", "latest", "X").code == 0


def test_what_a_list_of_streams_lacks_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    _made(kept, 1, {"X": X[0], "Y": Y[0]})
    assert _run(kept, tmp_path / "out", "latest", "X", "Y").code == 0
    between = _made(kept, 2, {"X": X[1], "Y": Y[1]})
    last = _made(kept, 3, {"Y": Y[2]})
    for _ in range(2):
        done = _run(kept, tmp_path / "out", "latest", "X", "Y")
        (failed,) = done.document["failed"]
        assert done.code == 3 and failed["name"] == "X"
        assert failed["reason"] == _missing("messages 51 to 100", last, f"export backup {between.id} first")
        assert rows_of(tmp_path / "out" / "Y", TableFormat.PARQUET) == rows(Y[2])
    assert _run(kept, tmp_path / "out", between.id, "X").code == 0
    assert _run(kept, tmp_path / "out", "latest", "X", "Y").code == 0
    assert rows_of(tmp_path / "out" / "X", TableFormat.PARQUET) == rows(X[1])


def test_a_deleted_stream_without_a_table_is_refused_and_a_typo_is_an_error(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    first = _made(kept, 1, {"X": X[0], "Y": Y[0]})
    last = _made(kept, 2, {"Y": Y[1]})
    for _ in range(2):
        done = _run(kept, tmp_path / "out", "latest", "X", "Y")
        (failed,) = done.document["failed"]
        assert done.code == 3 and failed["reason"] == (
            f"stream X is not in backup {last.id} any more, and has no table: export backup {first.id} first, the "
            "newest that has it"
        )
    assert rows_of(tmp_path / "out" / "Y", TableFormat.PARQUET) == rows(Y[1])
    done = _run(kept, tmp_path / "out", "latest", "X", "Y", "--skip-gaps")
    assert done.code == 0 and "left out" in str(done.document["streams"])
    done = _run(kept, tmp_path / "out", "latest", "TYPO", "Y")
    assert done.code == 2 and "has no stream TYPO" in done.document["error"]["message"]
    done = _run(kept, tmp_path / "out", "latest", "T*", "Y")
    assert done.code == 2 and "has no stream T*" in done.document["error"]["message"]
    # Without --append as before: the newest backup that has all.
    done = in_shell(
        "export", "latest", "X", "Y", *kept.line, "--format", "parquet", "--output", tmp_path / "new", "--json"
    )
    assert done.code == 0 and len(done.document["streams"]) == 2
    done = _run(kept, tmp_path / "out", last.id, "X", "Y")
    assert done.code == 2 and "has no stream X" in done.document["error"]["message"]


def test_a_table_goes_on_when_no_backup_has_its_stream_any_more(tmp_path: Path) -> None:
    """Retention has removed the last backup of it; the list of streams still names it."""
    kept = _kept(tmp_path / "r")
    first = _made(kept, 1, {"X": X[0], "Y": Y[0]})
    assert _run(kept, tmp_path / "out", "latest", "X", "Y").code == 0
    last = _made(kept, 2, {"Y": Y[1]})
    assert in_shell("forget", first.id, *kept.line).code == 0
    done = _run(kept, tmp_path / "out", "latest", "X", "Y")
    assert done.code == 0, done
    assert {one["name"]: one["notes"] for one in done.document["streams"]}["X"] == [GONE.format(last.id, 50)]


def test_renamed_streams_are_found_by_their_new_names(tmp_path: Path) -> None:
    kept = _kept(tmp_path / "r")
    _made(kept, 1, {"X": X[0], "Y": Y[0]})
    line = ("--rename-prefix", "OLD_")
    assert _run(kept, tmp_path / "out", "latest", *line).code == 0
    _made(kept, 2, {"X": X[1], "Y": Y[1]})
    _made(kept, 3, {"Y": Y[2]})
    done = _run(kept, tmp_path / "out", "latest", *line)
    assert done.code == 3 and [one["name"] for one in done.document["failed"]] == ["OLD_X"]


def test_a_deleted_stream_may_still_be_renamed(tmp_path: Path) -> None:
    """The options of all tables stay the same; a name that no table has is an error, as ever."""
    kept = _kept(tmp_path / "r")
    _made(kept, 1, {"X": X[0], "Y": Y[0]})
    line = ("latest", "--rename", "X=OLD", "--rename", "Y=NEW")
    assert _run(kept, tmp_path / "out", *line).code == 0
    between = _made(kept, 2, {"X": X[1], "Y": Y[1]})
    last = _made(kept, 3, {"Y": Y[2]})
    done = _run(kept, tmp_path / "out", *line)
    assert done.code == 3 and [one["name"] for one in done.document["failed"]] == ["OLD"]
    assert f"stream X is not in backup {last.id} any more" in done.document["failed"][0]["reason"]
    assert _run(kept, tmp_path / "out", between.id, "X", *line[1:]).code == 0
    done = _run(kept, tmp_path / "out", *line)
    assert done.code == 0, done
    assert rows_of(tmp_path / "out" / "NEW", TableFormat.PARQUET) == rows(Y[2])
    done = _run(kept, tmp_path / "out", *line, "--rename", "TYPO=OTHER")
    assert done.code == 2 and "TYPO" in done.document["error"]["message"]


@pytest.mark.by_turns
@pytest.mark.s3
@each
def test_in_s3_as_it_is(s3_server: S3Server, tmp_path: Path, kind: TableFormat) -> None:
    """With partitions, a deleted stream, and an older backup of which messages are missing within a file."""
    kept = _kept(tmp_path / "r")
    found = [_made(kept, 1, {"X": X[0], "Y": Y[1]})]
    found += [_made(kept, 2, {"X": X[1], "Y": [*Y[1][:4], *Y[2][7:]]}), _made(kept, 3, {"Y": [*Y[1][:4], *Y[3][7:]]})]
    place, s3 = f"s3://{BUCKET}/deleted-{kind}", ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
    line = ["--format", kind, "--output", place, "--append", "--partition-by", "subject", *kept.line, *s3, "--json"]
    credentials = s3_server.credentials()
    assert in_shell("export", found[0].id, "X", *line, **credentials).code == 0
    assert in_shell("export", "latest", "Y", *line, "--skip-gaps", **credentials).code == 0
    done = in_shell("export", "latest", *line, **credentials)
    assert done.code == 3 and [one["name"] for one in done.document["failed"]] == ["X"], done
    done = in_shell("export", found[1].id, *line, **credentials)
    assert done.code == 0 and done.document["rows"] == 50, done
    done = in_shell("export", found[0].id, "Y", *line, **credentials)
    assert done.code == 3 and "lacks 3 messages of backup" in done.document["error"]["message"], done
    assert in_shell("export", "latest", *line, **credentials).code == 0


def test_a_stream_that_was_created_again_and_deleted_again_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _kept(tmp_path / "r")
    first = _made(kept, 1, {"X": X[0], "Y": Y[0]})
    with monkeypatch.context() as patch:
        patch.setattr(backups, "INCARNATION", "ffff0000")
        _made(kept, 2, {"X": X[1], "Y": Y[1]})
    last = _made(kept, 3, {"Y": Y[2]})
    place = _at(tmp_path / "out")
    export(kept, first, place, TableFormat.PARQUET)
    done = export(kept, last, place, TableFormat.PARQUET, token="00000002")
    assert done.refused["X"].message == (
        f"stream X is not in backup {last.id} any more, and backup {ids(2)[0]} has another stream of that name, which "
        "has no table"
    )
    assert not export(kept, last, place, TableFormat.PARQUET, skip_gaps=True).refused


def test_a_new_table_says_that_there_was_an_earlier_stream_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _kept(tmp_path / "r")
    first = _made(kept, 1, {"Y": Y[0]})
    _made(kept, 2, {"X": X[0], "Y": Y[1]})
    with monkeypatch.context() as patch:
        patch.setattr(backups, "INCARNATION", "ffff0000")
        stored = store_stream(kept.repository.objects, "X", X[1])
    last = _made(kept, 3, {"Y": Y[2]})
    again = replace(last, id=ids(4)[0], created=ids(4)[1], streams=(stored, *last.streams))
    kept.repository.commit(again)
    assert _run(kept, tmp_path / "out", first.id).code == 0
    done = _run(kept, tmp_path / "out", again.id)
    said = f"backup {ids(2)[0]} has an earlier stream of that name, which is not in this table"
    assert done.code == 0 and said in done.out, done
    assert said not in _run(kept, tmp_path / "out", again.id).out


def test_few_manifests_are_read_for_a_stream_that_had_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is as old as its last message; it was deleted after many backups, and exports go on."""
    monkeypatch.setattr("tests.pipeline.tables.test_deleted_streams.ids", _many_ids)
    kept = _kept(tmp_path / "r")
    place, number = _at(tmp_path / "out"), 0
    for number in range(1, 33):
        made = _made(kept, number, {"X": X[0], "Y": _messages(range(1, 10 + number))})
        if number in (1, 31):
            export(kept, made, place, TableFormat.PARQUET, token=f"000000{number:02}")
    read: list[str] = []
    manifest = type(kept.repository).manifest

    def counting(*arguments: Any, **named: Any) -> Manifest:
        read.append(arguments[1])
        return manifest(*arguments, **named)

    for gone in range(33, 43):
        made = _made(kept, gone, {"Y": _messages(range(1, 10 + gone))})
        read.clear()
        with monkeypatch.context() as patch:
            patch.setattr(type(kept.repository), "manifest", counting)
            done = export(kept, made, place, TableFormat.PARQUET, token=f"000000{gone}")
        said = {one.name: one.notes for one in done.streams}
        assert not done.refused and said.pop("Y") == ()
        assert said == ({"X": (GONE.format(made.id, 50),)} if gone == 33 else {})
        assert len(read) <= 10, read


def _many_ids(number: int) -> tuple[str, str]:
    return (
        f"20261121T{10 + number // 60}{number % 60:02}00Z-0000{number:02}",
        f"2026-11-21T{10 + number // 60}:{number % 60:02}:00Z",
    )
