"""A restore takes the requested streams of a backup, says which of them are missing, and leaves copies alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.config import parse_glob
from jsbackup.errors import IntegrityError, UsageError
from jsbackup.planning.interrupted import staged_config
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.rules import Rule
from jsbackup.planning.selection.chosen_streams import about_missing, choose_streams, staged_copies
from jsbackup.repository.manifest import BackupResult, Manifest, SkippedStream, Source, UnlistedStreams
from jsbackup.repository.objects import StreamPageRef
from tests.planning.test_plan import NOW, stream


def options(*names: str, exclude: tuple[str, ...] = (), **more: Any) -> RestoreOptions:
    return RestoreOptions(tuple(map(parse_glob, names)), tuple(map(parse_glob, exclude)), **more)


def manifest(*names: str, **more: Any) -> Manifest:
    return Manifest("B1", NOW, "t", Source(), BackupResult.COMPLETE, tuple(map(stream, names)), **more)


def chosen(backup: Manifest, asked: RestoreOptions) -> list[str]:
    return [entry.name for entry in choose_streams(backup, asked, ())]


def test_names_and_patterns_choose_and_exclude() -> None:
    backup = manifest("A1", "A2", "B")
    assert chosen(backup, options()) == ["A1", "A2", "B"]
    assert chosen(backup, options("A*", exclude=("A2",))) == ["A1"]


@pytest.mark.parametrize(("asked", "said"), [(options("A3"), "A3"), (options(exclude=("C*",)), "--exclude C")])
def test_what_matches_no_stream_is_an_error_of_usage(asked: RestoreOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("*", r"\*")) as caught:
        choose_streams(manifest("A1", "B"), asked, ())
    assert caught.value.hint


def test_a_stream_that_may_be_on_a_broken_page_is_not_called_missing() -> None:
    page = StreamPageRef("k", 1, "s", "n", "C1", 2, 0, 0)
    backup = manifest("A", unlisted=(UnlistedStreams(page, IntegrityError("page P is missing")),))
    with pytest.raises(IntegrityError, match="page P is missing"):
        choose_streams(backup, options("C2"), ())
    (found,) = about_missing(backup, options(), ())
    assert (found.stream, found.rule) == ("C1", Rule.INCOMPLETE_BACKUP)
    assert found.reason == "it and 1 other cannot be listed: page P is missing"
    assert list(about_missing(backup, options("A"), ())) == []


def test_skipped_streams_are_missing_if_they_were_meant() -> None:
    backup = manifest("A", skipped=(SkippedStream("C", "it did not answer"),))
    (found,) = about_missing(backup, options(), ())
    assert (found.stream, found.rule, "it did not answer" in found.reason) == ("C", Rule.INCOMPLETE_BACKUP, True)
    assert list(about_missing(backup, options("A"), ())) == []


def test_the_copy_of_an_interrupted_replace_is_restored_only_by_its_name() -> None:
    config = staged_config("A", "0a1b2c3d", None, "x.jsbackup-at-work")
    copy = replace(stream(config["name"]), config=config)
    both = replace(manifest("A"), streams=(stream("A"), copy))
    (staged,) = staged_copies(both, options())
    assert (staged.stream, staged.rule) == (copy.name, Rule.STAGED_COPY)
    assert [entry.name for entry in choose_streams(both, options(), [staged])] == ["A"]
    assert list(staged_copies(both, options(copy.name))) == []
    # Without the original the backup lacks it.
    alone = replace(both, streams=(copy,))
    (lacking,) = staged_copies(alone, options())
    assert lacking.rule is Rule.INCOMPLETE_BACKUP
    assert list(about_missing(alone, options(), [lacking])) == [lacking]
