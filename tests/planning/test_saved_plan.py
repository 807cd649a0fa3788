"""Saved plans: what was decided comes back, what is not a plan is refused, and what has changed is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jsbackup.errors import FormatError, JsBackupError, PlanRefused, UnsupportedError, UsageError
from jsbackup.planning.asked import AskedRestore
from jsbackup.planning.model import RestoreOptions, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.saved_plan import decode_plan, encode_plan, read_plan, refuse_if_changed, write_plan
from jsbackup.planning.typed_options import restore_options
from jsbackup.repository.document import encode_document
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.transforms.cut import AtTime, Cut
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
ASKED = AskedRestore(
    streams=("A", "B*"),
    exclude=("C",),
    if_exists="replace",
    consumers="config",
    replicas=1,
    fields=("max_age=1h", "B*:storage=memory", "description=null", 'metadata={"k":"v"}'),
    allow_nothing=True,
)
OPTIONS = restore_options(ASKED)
RESHAPED = replace(
    ASKED,
    rename=("A=NEW",),
    since="1",
    until="2023-11-14T22:13:20.123456789Z",
    subject=("A.*", "B.>"),
    header=("X:1",),
    payload_match=("a+",),
    last_per_subject=2,
    map_subject=("A.x.*=>N.$1",),
    mask=("A.>:$.name=hash", "B.>:header(X-User)=redact"),
    unmaskable="drop",
)


def encoded(asked: AskedRestore = ASKED, target: Target = TARGET) -> bytes:
    options = restore_options(asked)
    plan = plan_restore(MANIFEST, target, options)
    return encode_plan(plan, target, MANIFEST, asked, cut=options.reshape.cut, tool="jsbackup t", created=NOW)


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
    for asked in (AskedRestore(), RESHAPED):
        assert decode_plan(encoded(asked), "plan").options == restore_options(asked)
    saved.refuse_other(MANIFEST)
    with pytest.raises(PlanRefused, match="is not the one that the plan was made for"):
        saved.refuse_other(replace(MANIFEST, tool="another"))


def test_an_edge_that_counts_from_now_stays_where_it_was() -> None:
    asked = AskedRestore(until="1h", since="1970-01-01T00:00Z")
    cut = Cut(AtTime(0), AtTime(1_700_000_000_123_456_789))
    plan = plan_restore(MANIFEST, TARGET, RestoreOptions())
    data = encode_plan(plan, TARGET, MANIFEST, asked, cut=cut, tool="t", created=NOW)
    assert decode_plan(data, "plan").options.reshape.cut == cut


def test_nothing_about_a_secret_is_saved() -> None:
    asked = AskedRestore(obfuscate=True, obfuscation_key="key.json")
    plan = plan_restore(MANIFEST, TARGET, RestoreOptions())
    data = encode_plan(plan, TARGET, MANIFEST, asked, cut=Cut(), tool="t", created=NOW)
    assert b"obfuscat" not in data and decode_plan(data, "plan").options == RestoreOptions()


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


def test_every_truncated_or_damaged_file_is_refused() -> None:
    data = encoded(AskedRestore(streams=("B",)))
    for size in range(0, len(data.rstrip()), 7):
        with pytest.raises((FormatError, UnsupportedError)):
            decode_plan(data[:size], "plan")
    for at in range(0, len(data), 3):
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
        ("options.rename", "A=B", FormatError),
        ("options.obfuscate", True, UnsupportedError),
        ("options.if_exists", "perhaps", FormatError),
        ("options.unmaskable", "perhaps", FormatError),
        ("options.mask", ["A.>:$.name"], UsageError),
        ("options.wire", "v1", UnsupportedError),
        ("options.fields", ["B*:storage=tape"], UsageError),
        ("options.replicas", 9, FormatError),
        ("options.streams", ["a.b"], UsageError),
        ("options.fields", ['name="B"'], UsageError),
        ("options.fields", ["max_age=long"], UsageError),
    ],
)
def test_a_document_that_is_no_plan_of_ours_is_refused(field: str, value: Any, error: type[JsBackupError]) -> None:
    document = json.loads(encoded())
    document.pop("sha256", None)
    place, _, name = field.rpartition(".")
    (document[place] if place else document)[name] = value
    with pytest.raises(error):
        decode_plan(encode_document(document, "plan"), "plan")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, encoded())
    write_plan(path, encoded(AskedRestore()))
    assert read_plan(path).options == RestoreOptions()
    (tmp_path / "folder").mkdir()
    for wrong in (tmp_path / "none" / "plan.json", tmp_path / "folder"):
        with pytest.raises(JsBackupError, match="cannot write the plan"):
            write_plan(wrong, b"")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "plan.json"]
    with pytest.raises(UsageError, match="cannot read the plan"):
        read_plan(tmp_path / "none.json")
