"""What `verify` finds and says, of damage to objects of every kind, in repositories of every kind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from jsbackup.errors import StoreError
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import remember
from jsbackup.repository.checks.verify import Level, Problem, Verifier
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.crypto.signing import encode_writer_key
from jsbackup.repository.inventory import write_catalog
from jsbackup.repository.keep.holds import Hold, put_hold
from jsbackup.repository.layout import ObjectKind, ReceiptKey
from jsbackup.repository.manifest import Manifest, Selection
from jsbackup.repository.pages import stream_pages
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.cli.typed import Typed
from tests.harness.backups import CREATED, FIRST, SECOND, make_manifest, make_repository
from tests.harness.damage import DAMAGES, flip
from tests.harness.held import held
from tests.harness.small_pages import make_pages_small

Type = Callable[..., Typed]

ME = age.age_identity(bytes([1]) * 32)
KINDS = ("plain", "signed", "encrypted")


@dataclass(frozen=True)
class Made:
    """A repository with two backups and an object of every kind that it can have, as bytes by key."""

    objects: Mapping[str, bytes]
    first: Manifest
    second: Manifest
    writer: str | None

    def keys(self, kind: ObjectKind) -> list[str]:
        return [key for key in self.objects if layout.kind_of(key) is kind]


def _random() -> Callable[[int], bytes]:
    numbers: Iterator[int] = iter(range(1, 100))
    return lambda count: bytes([next(numbers)]) * count


def _make(kind: str) -> Made:
    store, writer = MemoryStore(), None
    if kind == "plain":
        repository = make_repository(store)
    else:
        assert ME.recipient is not None
        new_keys = make_new_keys("00ff", [ME.recipient] if kind == "encrypted" else [], None, _random())
        repository = Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
        writer = encode_writer_key(new_keys.writer_key)
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        patch.setattr(stream_pages, "UNPAGED_BYTES", 0)
        for backup, count in ((FIRST, 40), (SECOND, 80)):
            repository.commit(replace(make_manifest(repository, backup, count=count), selection=Selection()))
    first = repository.manifest(FIRST)
    write_catalog(repository.documents)
    put_hold(repository, Hold(FIRST, CREATED, "t", "audit"))
    verifier = Verifier(repository.objects, Level.OBJECTS)
    assert list(verifier.check(first)) == []
    remember(repository.documents, verifier, everything=True, now_seconds=10**9, tool="t", random=_random())
    held(store)
    store.put(layout.mark_key("1a2b"), b'{"format":1}')
    store.put(layout.receipt_key(ReceiptKey("00112233445566ff", 1)), b'{"format":1}')
    store.put(layout.outcome_key("verify", 10**18, b"abc"), b'{"format":1}')
    store.put(layout.probe_key("1a2b"), b"probe")
    objects = {info.key: store.get(info.key) for info in store.list()}
    return Made(objects, repository.manifest(FIRST), repository.manifest(SECOND), writer)


@pytest.fixture(scope="module")
def made() -> dict[str, Made]:
    return {kind: _make(kind) for kind in KINDS}


@dataclass(frozen=True)
class OnDisk:
    """Such a repository in a folder, and how to type commands there."""

    made: Made
    folder: Path
    line: list[str | Path]

    def change(self, key: str, data: bytes | None) -> None:
        if data is None:
            (self.folder / key).unlink()
        else:
            (self.folder / key).parent.mkdir(exist_ok=True)
            (self.folder / key).write_bytes(data)


@pytest.fixture
def on_disk(made: dict[str, Made], tmp_path: Path) -> Callable[[str], OnDisk]:
    def lay_out(kind: str, *, identity: bool = False) -> OnDisk:
        whole, folder = made[kind], tmp_path / "repo"
        for key, data in whole.objects.items():
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(data)
        line: list[str | Path] = ["-r", folder]
        if whole.writer is not None:
            (tmp_path / "writer.key").write_text(whole.writer)
            (tmp_path / "writer.key").chmod(0o600)
            line += ["--writer-key", tmp_path / "writer.key"]
        if kind == "encrypted" and identity:
            (tmp_path / "my.key").write_text(f"{ME.text}\n")
            line += ["--identity", tmp_path / "my.key"]
        return OnDisk(whole, folder, line)

    return lay_out


CONTENT = (ObjectKind.PAGE, ObjectKind.SEGMENT, ObjectKind.PENDING, ObjectKind.OPAQUE)
# Nothing is lost with these: leases are judged by `unlock`, the others are made anew.
HARMLESS = (
    ObjectKind.LEASE,
    ObjectKind.MARKS,
    ObjectKind.VERIFIED,
    ObjectKind.RECEIPT,
    ObjectKind.CHECK,
    ObjectKind.PROBE,
)
# Nobody can know that there was one; what a catalog told is read from the manifests.
MISSED_BY_NOBODY = (ObjectKind.CATALOG, ObjectKind.HOLD)
# What stands and falls with them: everything, or the backup.
NEEDED_BY_ALL = (
    ObjectKind.DESCRIPTOR,
    ObjectKind.MANIFEST,
    ObjectKind.STREAM_PAGE,
    ObjectKind.WRITER,
    ObjectKind.IDENTITY,
)
# What becomes of a backup that lacks a witness is tested in `test_chain.py`.
WITHOUT_CONTENT = (ObjectKind.FOREIGN, ObjectKind.WITNESS)
JUDGED = tuple(kind for kind in ObjectKind if kind not in WITHOUT_CONTENT)


@pytest.mark.slow
# An encrypted repository has all kinds, under their own checks and those of a plain one.
@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("repository", "kind"),
    [
        *(("encrypted", kind) for kind in JUDGED),
        *(("plain", kind) for kind in (ObjectKind.MANIFEST, ObjectKind.SEGMENT, ObjectKind.WRITER)),
        *(("signed", kind) for kind in (ObjectKind.WRITER, ObjectKind.READERS)),
    ],
)
def test_damage_of_every_kind_is_found_and_named(
    repository: str, kind: ObjectKind, on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    place = on_disk(repository, identity=kind is ObjectKind.IDENTITY)
    keys = place.made.keys(kind)
    if not keys:
        assert (kind, repository) in {(ObjectKind.WRITER, "plain"), (ObjectKind.READERS, "signed")}
        return
    for name, damage in DAMAGES.items():
        place.change(keys[0], damage(place.made.objects[keys[0]]))
        done = typed("verify", *place.line)
        missing = name == "missing"
        harmless = kind in HARMLESS or (kind in MISSED_BY_NOBODY and missing)
        expected = 0 if harmless else 14
        assert done.code == expected, (kind, name, done)
        if expected == 14:
            named = {
                ObjectKind.MANIFEST: FIRST,
                ObjectKind.WRITER: keys[0][12:-5],
                ObjectKind.READERS: "there is no list of readers",
            }
            named = named if missing else {}
            assert named.get(kind, keys[0].removesuffix(".age")) in done.out + done.err, (name, done)
        told = typed("verify", *place.line, "--json")
        assert told.code == done.code and isinstance(told.document, dict)
        if kind in CONTENT:
            _names_what_is_lost(place.made, keys[0], told, done.out)
        if kind not in NEEDED_BY_ALL:
            hurt = {one["backup"] for one in told.document["backups"] if one["problems"]} if kind in CONTENT else set()
            assert typed("list", *place.line).code == (14 if hurt else 0), name
            for backup in (FIRST, SECOND):
                assert typed("show", backup, *place.line).code == (14 if backup in hurt else 0), (name, backup)
        place.change(keys[0], place.made.objects[keys[0]])
    assert typed("verify", *place.line).code == 0


def _names_what_is_lost(made: Made, key: str, told: Typed, text: str) -> None:
    for manifest, document in zip((made.first, made.second), told.document["backups"], strict=True):
        named = {}
        for stream in manifest.streams:
            ranges_of = (*stream.segments, *stream.pages)
            named.update({ref.key: (stream.name, ref.first_seq, ref.last_seq, ref.messages) for ref in ranges_of})
            pending = [one.pending for one in stream.consumers if one.pending]
            keys = [*(ref.key for ref in stream.opaque), *(ref.key for ref in pending)]
            named.update(dict.fromkeys(keys, (stream.name, 0, 0, 0)))
        wanted = [named[key]] if key in named else []
        found = [(p["stream"], p["first_seq"], p["last_seq"], p["messages"]) for p in document["problems"]]
        assert found == wanted and document["ok"] is not bool(wanted)
        for name, first, last, messages in wanted:
            ranges = f" (lost: {messages} messages, sequences {first} to {last})" if last else ""
            named_so = (f"  {name}: object {key} ", f"  {name}: {key} ")
            assert any(line.startswith(named_so) and line.endswith(ranges) for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTENT)
def test_level_manifest_finds_what_names_and_sizes_tell(
    kind: ObjectKind, on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    place = on_disk("plain")
    key = place.made.keys(kind)[0]
    for name, damage in DAMAGES.items():
        place.change(key, damage(place.made.objects[key]))
        unseen = kind is not ObjectKind.PAGE and name in ("flipped", "zeroed", "foreign")  # the size is the same
        done = typed("verify", *place.line, "--level", "manifest")
        assert done.code == (0 if unseen else 14), name
        assert (key in done.out) is not unseen
        for level in ("objects", "data"):
            assert typed("verify", *place.line, "--level", level).code == 14, (name, level)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [*CONTENT, ObjectKind.MANIFEST, ObjectKind.WRITER, ObjectKind.HOLD, ObjectKind.CATALOG, ObjectKind.DESCRIPTOR],
)
def test_exchanged_objects_are_found(kind: ObjectKind, on_disk: Callable[..., OnDisk], typed: Type) -> None:
    place = on_disk("encrypted")
    keys = place.made.keys(kind)
    others = [*keys[1:], *place.made.keys(ObjectKind.MANIFEST), *place.made.keys(ObjectKind.SEGMENT)]
    others = [key for key in others if keys and key != keys[0]]
    for other in others[:1] + others[-1:]:
        place.change(keys[0], place.made.objects[other])
        place.change(other, place.made.objects[keys[0]])
        done = typed("verify", *place.line)
        # A paged manifest has a format that no descriptor has.
        assert done.code == 14 or (kind is ObjectKind.DESCRIPTOR and done.code == 13), (kind, other, done)
        # What a page lists is not looked at if it is damaged: so it may be the other one that is named.
        assert any(key.removesuffix(".age") in done.out + done.err for key in (keys[0], other))
        place.change(keys[0], place.made.objects[keys[0]])
        place.change(other, place.made.objects[other])


def test_foreign_objects_are_nobodys_business(on_disk: Callable[..., OnDisk], typed: Type) -> None:
    place = on_disk("encrypted")
    folder = Path(place.made.first.streams[0].segments[0].key).parent
    for key in ("foreign", "backups/foreign.json", f"{folder}/foreign.parquet", "keys/foreign", "holds/x.json"):
        place.change(key, b"foreign")
    assert typed("verify", *place.line).code == 0
    assert typed("list", *place.line).code == 0


def test_a_damaged_lease_is_told_by_unlock_and_keeps_nobody_out(on_disk: Callable[..., OnDisk], typed: Type) -> None:
    place = on_disk("encrypted")
    (key,) = place.made.keys(ObjectKind.LEASE)
    for name, damage in DAMAGES.items():
        place.change(key, damage(place.made.objects[key]))
        told = typed("unlock", *place.line)
        assert told.code == (0 if name == "missing" else 14), (name, told)
        assert name == "missing" or key in told.out
        place.change(key, place.made.objects[key])


def test_a_damaged_manifest_leaves_the_other_backup_whole(on_disk: Callable[..., OnDisk], typed: Type) -> None:
    place = on_disk("encrypted")
    key = place.made.keys(ObjectKind.MANIFEST)[0]
    place.change(key, flip(place.made.objects[key]))
    done = typed("verify", *place.line, "--json")
    states = {one["backup"]: one["ok"] for one in done.document["backups"]}
    assert states == {FIRST: False, SECOND: True}
    assert typed("verify", SECOND, *place.line).code == 0
    assert typed("show", SECOND, *place.line).code == 0


@pytest.mark.parametrize("repository", ["plain", "encrypted"])
def test_a_manifest_of_another_kind_is_told(
    repository: str, made: dict[str, Made], on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    other = made["encrypted" if repository == "plain" else "plain"]
    place = on_disk(repository)
    key = other.keys(ObjectKind.MANIFEST)[0]
    place.change(key, other.objects[key])
    done = typed("verify", *place.line, "--json")
    assert done.code == 14
    assert [one["key"] for one in done.document["repository"]] == [key]


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("kind", [*CONTENT, ObjectKind.STREAM_PAGE])
def test_what_is_damaged_replaces_nothing_in_forget(
    kind: ObjectKind, lost: bool, on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    """With the key of a writer alone, too."""
    place = on_disk("encrypted")
    needed = {one: set(_needed_by(manifest)) for one, manifest in ((1, place.made.first), (2, place.made.second))}
    keys = sorted(key for key in place.made.keys(kind) if key in needed[2])
    assert keys
    for key in keys:
        was = place.made.objects[key]
        place.change(key, None if lost else flip(was))
        assert typed("verify", *place.line).code == 14
        done = typed("forget", *place.line, "--keep-last", "1", "--dry-run", "--json")
        told = [text.split()[1] for text in done.document["damaged"]]
        assert done.code == 14 and told == ([FIRST, SECOND] if key in needed[1] else [SECOND])
        assert done.document["removed"] == []
        reasons = {one["backup"]: one["reasons"][0] for one in done.document["kept"]}
        assert reasons[SECOND].startswith("damaged, takes no other's place; if it is repaired: newest complete backup")
        assert (reasons[FIRST] == "newest complete backup") is (key not in needed[1])
        place.change(key, was)
        assert typed("verify", *place.line).code == 0
    assert typed("forget", *place.line, "--keep-last", "1", "--dry-run").code == 0


def _needed_by(manifest: Manifest) -> Iterator[str]:
    yield from (page.key for page in manifest.stream_pages)
    for stream in manifest.streams:
        yield from (ref.key for ref in stream.refs)


# --- in parts ---


def test_nights_come_round_to_everything(on_disk: Callable[..., OnDisk], typed: Type) -> None:
    place = on_disk("plain")
    objects = sum(len(place.made.keys(kind)) for kind in (*CONTENT, ObjectKind.STREAM_PAGE))
    for path in place.folder.glob("verified/*"):
        path.unlink()
    checked = 0
    for _ in range(objects):
        done = typed("verify", *place.line, "--max-bytes", "1", "--json")
        assert done.code == 0
        coverage = done.document["coverage"]
        assert (coverage["checked_objects"], coverage["objects"]) == (1, objects)
        checked += coverage["checked_bytes"]
        assert coverage["recent_bytes"] == checked == coverage["bytes"] - coverage["never_bytes"]
    assert coverage["never_bytes"] == 0 and len(list(place.folder.glob("verified/*"))) == 1
    done = typed("verify", *place.line, "--sample", "50")
    assert done.code == 0 and "100 % of all bytes verified in the last 31 days, oldest check 20" in done.out


@pytest.mark.slow
def test_a_part_finds_damage_when_its_turn_comes_and_goes_on_reporting_it(
    on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    place = on_disk("encrypted")
    key = place.made.keys(ObjectKind.SEGMENT)[0]
    place.change(key, flip(place.made.objects[key]))
    codes = [typed("verify", *place.line, "--sample", "20").code for _ in range(8)]
    assert codes == sorted(codes) and codes[-1] == 14
    told = typed("verify", *place.line, "--sample", "1", "--json").document
    assert {p["key"] for one in told["backups"] for p in one["problems"]} == {key}
    assert told["coverage"]["never_bytes"] == len(place.made.objects[key])
    place.change(key, place.made.objects[key])
    assert typed("verify", *place.line, "--sample", "1").code == 0


def test_who_cannot_write_is_told_that_nothing_is_remembered(
    made: dict[str, Made], on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    place = on_disk("signed")
    reader = place.line[:2]  # without the writer key
    before = sorted(place.folder.glob("verified/*"))
    done = typed("verify", *reader, "--max-bytes", "1")
    assert done.code == 0 and "this run is not recorded for later ones" in done.err
    assert sorted(place.folder.glob("verified/*")) == before


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "--sample 4 --max-bytes 1GiB": "exclude each other",
        "--sample 4 --level manifest": "reads no objects",
        "--sample 0": "invalid value for '--sample': 0.0 is not in the range above 0, up to 100",
        "--sample 101": "invalid value for '--sample': 101.0 is not in the range above 0, up to 100",
        "--max-bytes many": "--max-bytes: not a size",
    }.items(),
)
def test_parts_that_make_no_sense_are_refused(
    line: str, said: str, on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    done = typed("verify", *on_disk("plain").line, *line.split())
    assert done.code == 2 and said in done.err


def test_level_manifest_has_no_coverage_and_leaves_no_record(on_disk: Callable[..., OnDisk], typed: Type) -> None:
    place = on_disk("plain")
    before = sorted(place.folder.glob("verified/*"))
    done = typed("verify", *place.line, "--level", "manifest", "--json")
    assert done.code == 0 and done.document["coverage"] is None
    assert sorted(place.folder.glob("verified/*")) == before
    one = json.loads(typed("verify", FIRST, *place.line, "--json").out)
    assert one["coverage"]["objects"] > 0 and one["repository"] == [] and one["backup"] == FIRST


def test_damage_of_a_shared_object_is_told_for_every_backup_also_in_parts(
    on_disk: Callable[..., OnDisk], typed: Type
) -> None:
    place = on_disk("plain")
    shared = {ref.key for ref in place.made.first.streams[1].opaque} & {
        ref.key for ref in place.made.second.streams[1].opaque
    }
    key = min(shared)
    for name in ("flipped", "missing"):
        place.change(key, DAMAGES[name](place.made.objects[key]))
        whole = typed("verify", *place.line, "--json").document["backups"]
        part = typed("verify", *place.line, "--sample", "1", "--json").document["backups"]
        assert [[p["key"] for p in one["problems"]] for one in whole] == [[key], [key]]
        assert part == whole


# --- while others are at work ---


def test_a_backup_that_is_forgotten_meanwhile_is_passed_over(
    on_disk: Callable[..., OnDisk], typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = on_disk("plain")
    read = Repository.manifest

    def forgotten(repository: Repository, backup: str, *, in_part: bool) -> Manifest:
        if backup == FIRST:
            place.change(layout.manifest_key(FIRST), None)
        return read(repository, backup, in_part=in_part)

    monkeypatch.setattr(Repository, "manifest", forgotten)
    done = typed("verify", *place.line, "--json")
    assert done.code == 0 and [one["backup"] for one in done.document["backups"]] == [SECOND]


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt(), StoreError("the store is gone")])
def test_what_was_verified_before_it_was_stopped_is_remembered(
    stopped_by: BaseException, on_disk: Callable[..., OnDisk], typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = on_disk("plain")
    for path in place.folder.glob("verified/*"):
        path.unlink()
    check = Verifier.check

    def stopped(verifier: Verifier, manifest: Manifest) -> Iterator[Problem]:
        if manifest.id == SECOND:
            raise stopped_by
        return check(verifier, manifest)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark, in this process, sets its own
    with monkeypatch.context() as patch:
        patch.setattr(Verifier, "check", stopped)
        assert typed("verify", *place.line).code == (130 if isinstance(stopped_by, KeyboardInterrupt) else 21)
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler  # in a process that goes on
    coverage = typed("verify", *place.line, "--max-bytes", "1", "--json").document["coverage"]
    first = sum(ref.size for ref in place.made.first.streams[0].segments)
    assert first < coverage["recent_bytes"] < coverage["bytes"]
