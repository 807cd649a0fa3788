"""Saved plans: what was decided comes back, what is not a plan is refused, and what has changed is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config import parse_glob
from jsbackup.errors import FormatError, JsBackupError, PlanRefused, UnsupportedError, UsageError
from jsbackup.planning.model import Consumers, IfExists, RestoreOptions, SendAs, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.saved_plan import decode_plan, encode_plan, read_plan, refuse_if_changed, write_plan
from jsbackup.repository.document import encode_document
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps
from tests.planning.test_plan import NEW, NOW, consumer, existing, stream

MANIFEST = Manifest(
    "20261121T014500Z-000001",
    NOW,
    "t",
    Source("2.15.1"),
    BackupResult.COMPLETE,
    (stream("A", consumers=(consumer("c"),)), stream("B")),
)
TARGET = Target(NEW, False, {"A": existing("A", "A.>")})
RESHAPE = Reshape(
    Cut(AtSequence(1), AtTime(1_700_000_000_123_456_789)),
    Filters.parse({"subject": ["A.*", "B.>"], "header": ["X:1"], "payload_match": ["a+"]}),
    SubjectMaps.parse(["A.x.*=>N.$1"]),
    masks=Masks.parse(["A.>:$.name=hash", "B.>:header(X-User)=redact"], "drop"),
)
OPTIONS = RestoreOptions(
    streams=(parse_glob("A"), parse_glob("B*")),
    exclude=(parse_glob("C"),),
    if_exists=IfExists.REPLACE,
    consumers=Consumers.CONFIG,
    replicas=1,
    fields={"max_age": 3600, "B*:storage": "memory", "description": None, "metadata": {"k": "v"}},
    allow_nothing=True,
)
RESHAPED = replace(OPTIONS, renames=RenameOptions.parse(["A=NEW"]), reshape=RESHAPE)


def encoded(options: RestoreOptions = OPTIONS, target: Target = TARGET) -> bytes:
    plan = plan_restore(MANIFEST, target, options)
    return encode_plan(plan, target, MANIFEST, options, tool="jsbackup t", created=NOW)


def changed(target: Target = TARGET, options: RestoreOptions = OPTIONS, manifest: Manifest = MANIFEST) -> str:
    """What a restore by the saved plan says about another target."""
    saved = decode_plan(encoded(), "plan")
    try:
        refuse_if_changed(saved, plan_restore(manifest, target, options), target)
    except PlanRefused as refused:
        return refused.message
    return ""


def test_options_come_back_as_they_were() -> None:
    saved = decode_plan(encoded(), "plan")
    assert (saved.backup, saved.options) == (MANIFEST.id, OPTIONS)
    for options in (RestoreOptions(), RESHAPED):
        assert decode_plan(encoded(options), "plan").options == options
    saved.refuse_other(MANIFEST)
    with pytest.raises(PlanRefused, match="is not the one that the plan was made for"):
        saved.refuse_other(replace(MANIFEST, tool="another"))


def test_a_prefix_comes_back_too() -> None:
    options = RestoreOptions(renames=RenameOptions.parse(["*=N_*"]))
    saved = decode_plan(encoded(options), "plan")
    assert saved.options == options
    assert {name: one["as"] for name, one in saved.decided["streams"].items()} == {"A": "N_A", "B": "N_B"}


def test_a_target_that_is_the_same_is_taken_and_what_has_changed_is_told() -> None:
    assert changed() == ""
    # Time passes, and others come that are in nobody's way.
    assert changed(replace(TARGET, now_ns=1, streams={**TARGET.streams, "Z": existing("Z", "z")})) == ""
    assert "target version changed from 2.15.1 to 2.15.2" in changed(replace(TARGET, version=(2, 15, 2)))
    assert "target removed A is gone" in changed(replace(TARGET, streams={}))
    made_anew = replace(existing("A", "A.>"), created="2026-11-22T00:00:00Z")
    assert f"target removed A created changed from {NOW} to 2026-11-22T00:00:00Z" in changed(
        replace(TARGET, streams={"A": made_anew})
    )
    more = {**TARGET.streams, "B": existing("B", "B.>")}
    assert "streams B replaces changed from false to true" in changed(replace(TARGET, streams=more))
    overlapping = {**TARGET.streams, "Z": existing("Z", "B.*")}
    assert "overlaps with B.* of stream Z" in changed(replace(TARGET, streams=overlapping))


def test_many_differences_are_counted() -> None:
    many = tuple(stream(f"S{number}") for number in range(20))
    manifest = replace(MANIFEST, streams=many)
    options = RestoreOptions()
    plan = plan_restore(manifest, TARGET, options)
    saved = decode_plan(encode_plan(plan, TARGET, manifest, options, tool="t", created=NOW), "plan")
    with pytest.raises(PlanRefused, match=r"; and \d+ more"):
        refuse_if_changed(saved, plan_restore(manifest, TARGET, replace(options, wire=SendAs.V2)), TARGET)


def test_every_truncated_or_damaged_file_is_refused() -> None:
    data = encoded(RestoreOptions(streams=(parse_glob("B"),)))
    for size in range(len(data.rstrip())):
        with pytest.raises((FormatError, UnsupportedError)):
            decode_plan(data[:size], "plan")
    for at in range(len(data)):
        hurt = bytearray(data)
        hurt[at] ^= 1
        with pytest.raises((FormatError, UnsupportedError)):
            decode_plan(bytes(hurt), "plan")


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("kind", "a backup", FormatError),
        ("format", 2, UnsupportedError),
        ("required_features", ["time travel"], UnsupportedError),
        ("backup", 7, FormatError),
        ("manifest_sha256", "00", FormatError),
        ("decided", [], FormatError),
        ("options", {}, FormatError),
        ("options.rename", "A=B", UnsupportedError),
        ("options.wire", "v1", UnsupportedError),
        ("options.fields", {"B*:storage": "tape"}, UsageError),
        ("options.replicas", 9, FormatError),
        ("options.streams", ["a.b"], UsageError),
        ("options.fields", {"name": "B"}, UsageError),
        ("options.fields", {"max_age": "long"}, UsageError),
    ],
)
def test_a_document_that_is_no_plan_of_ours_is_refused(field: str, value: Any, error: type[JsBackupError]) -> None:
    document = json.loads(encoded())
    document.pop("sha256", None)
    place, _, name = field.rpartition(".")
    (document[place] if place else document)[name] = value
    with pytest.raises(error):
        decode_plan(encode_document(document, "plan"), "plan")


def test_decisions_of_others_only_make_it_refuse() -> None:
    document = json.loads(encoded())
    document.pop("sha256", None)
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    document["decided"] = {"target": deep, "streams": {"A": {"as": "ELSEWHERE"}}}
    saved = decode_plan(encode_document(document, "plan"), "plan")
    with pytest.raises(PlanRefused, match="has changed since the plan was made"):
        refuse_if_changed(saved, plan_restore(MANIFEST, TARGET, OPTIONS), TARGET)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, encoded())
    write_plan(path, encoded(RestoreOptions()))
    assert read_plan(path).options == RestoreOptions()
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(JsBackupError, match="cannot write the plan"):
        write_plan(tmp_path / "none" / "plan.json", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(JsBackupError, match="cannot write the plan"):
        write_plan(tmp_path / "folder", b"")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "plan.json"]
    with pytest.raises(UsageError, match="cannot read the plan"):
        read_plan(tmp_path / "none.json")
