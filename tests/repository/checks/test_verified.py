"""Runs that check a part come round to everything, whatever the records of earlier runs say."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import KeyUnavailable, StoreError
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import (
    RECENT_DAYS,
    AtMost,
    Coverage,
    Findings,
    Percent,
    Portion,
    add_run,
    choose_portion,
    cover,
    damage_on_record,
    read_damaged,
    read_findings,
    remember,
    remember_damaged,
)
from jsbackup.repository.checks.verify import Level, Stocked, Verifier
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.document import Documents, encode_document
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import ID_BYTES, id_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_backup, store_stream
from tests.harness.batches import some_messages
from tests.harness.counting import CountingStore
from tests.harness.damage import flip, put_instead, store_undecodable
from tests.harness.many_streams import manifest_of, many_streams, pages_in
from tests.harness.stores import Fault, FaultStore

NOW = 1_800_000_000
DAY = 86_400


def name(number: int) -> bytes:
    return number.to_bytes(ID_BYTES, "big")


def stock_of(count: int, size: int = 100) -> dict[bytes, Stocked]:
    return {name(number): Stocked(size, 0.0) for number in range(count)}


def counter() -> Callable[[int], bytes]:
    numbers = iter(range(1, 1000))
    return lambda count: next(numbers).to_bytes(count, "big")


# --- choosing ---


@pytest.mark.parametrize("level", [Level.OBJECTS, Level.DATA])
@pytest.mark.parametrize(("count", "sizes"), [(3, [100]), (74, [100]), (1000, [1, 70, 3000])])
def test_four_percent_a_night_are_everything_in_twenty_five_nights(level: Level, count: int, sizes: list[int]) -> None:
    stock = {name(number): Stocked(sizes[number % len(sizes)], 0.0) for number in range(count)}
    findings, seen = Findings(), set[bytes]()
    for night in range(25):
        chosen = choose_portion(stock, findings, level, Percent(4))
        assert chosen
        findings.add_sound(level, chosen, NOW + night * DAY)
        seen |= chosen
    assert seen == set(stock)
    # The round after it goes by age, the oldest first.
    again = choose_portion(stock, findings, level, Percent(4))
    times = sorted(findings.sound[level].values())
    assert max(findings.sound[level][one] for one in again) <= times[len(again) - 1]


def test_so_many_bytes_are_a_bound_but_for_the_first_object() -> None:
    stock = stock_of(10)
    assert len(choose_portion(stock, Findings(), Level.OBJECTS, AtMost(399))) == 3
    assert len(choose_portion(stock, Findings(), Level.OBJECTS, AtMost(400))) == 4
    assert len(choose_portion(stock, Findings(), Level.OBJECTS, AtMost(0))) == 1
    assert len(choose_portion(stock, Findings(), Level.OBJECTS, AtMost(10**9))) == 10


def test_what_is_damaged_is_always_chosen_and_what_is_missing_never() -> None:
    stock = {**stock_of(10), name(99): Stocked(100, None)}
    findings = Findings()
    findings.add_damaged(Level.OBJECTS, dict.fromkeys([name(7), name(8)], ""), NOW)
    assert choose_portion(stock, findings, Level.OBJECTS, AtMost(100)) == {name(7), name(8), name(0)}
    assert name(99) not in choose_portion(stock, findings, Level.OBJECTS, Percent(100))
    findings.add_sound(Level.DATA, [name(7)], NOW + 1)
    assert choose_portion(stock, findings, Level.OBJECTS, AtMost(100)) == {name(8), name(0)}


def test_a_deeper_level_counts_for_the_other_and_not_the_other_way_round() -> None:
    stock, findings = stock_of(2), Findings()
    findings.add_sound(Level.DATA, [name(0)], NOW)
    findings.add_sound(Level.OBJECTS, [name(1)], NOW)
    assert choose_portion(stock, findings, Level.DATA, AtMost(1)) == {name(1)}
    assert findings.verified_seconds(name(0), stock[name(0)], Level.OBJECTS) == NOW
    # Damage that only decoding shows is not undone by a SHA-256 that is right.
    findings.add_damaged(Level.DATA, dict.fromkeys([name(1)], ""), NOW)
    findings.add_sound(Level.OBJECTS, [name(1)], NOW + 1)
    assert findings.is_damaged(name(1))


def test_an_object_that_was_put_after_it_was_verified_was_not() -> None:
    findings = Findings()
    findings.add_sound(Level.OBJECTS, [name(0)], NOW)
    assert findings.verified_seconds(name(0), Stocked(1, NOW + 0.5), Level.OBJECTS) is None
    assert findings.verified_seconds(name(0), Stocked(1, NOW), Level.OBJECTS) == NOW
    assert findings.verified_seconds(name(0), Stocked(1, None), Level.OBJECTS) is None


# --- runs over a repository ---


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def repository(store: MemoryStore) -> Repository:
    return make_repository(store)


def run(
    repository: Repository,
    manifests: list[Manifest],
    now: int,
    portion: Portion | None = None,
    level: Level = Level.OBJECTS,
    random: Callable[[int], bytes] | None = None,
) -> tuple[list[str], Coverage]:
    """One run as the command makes it: the keys that have problems, and the coverage."""
    verifier = Verifier(repository.objects, level, threads=1)
    for manifest in manifests:
        verifier.take_stock(manifest)
    if portion is not None:
        verifier.limit_to(choose_portion(verifier.stock, read_findings(repository.documents, now), level, portion))
    problems = [problem.key for manifest in manifests for problem in verifier.check(manifest)]
    findings = remember(
        repository.documents,
        verifier,
        everything=True,
        now_seconds=now,
        tool="t",
        random=random or (lambda count: now.to_bytes(count, "big")),
    )
    return problems, cover(verifier, findings, now)


def test_an_object_that_backups_share_is_read_once_and_reported_for_each(
    store: MemoryStore, repository: Repository
) -> None:
    manifests = [store_backup(repository, FIRST), store_backup(repository, SECOND)]
    watched = CountingStore(store)
    objects = len(list(store.list(layout.SEGMENTS)))
    key = manifests[0].streams[0].segments[0].key
    put_instead(store, key, flip(store.get(key)))
    counted = Repository.open(watched)
    watched.requests.clear()
    problems, coverage = run(counted, manifests, NOW)
    assert problems == [key, key]
    assert watched.requests["get"] == objects and watched.requests["list"] == 2 + 1
    assert (coverage.objects, coverage.checked_objects) == (objects, objects)


@pytest.mark.parametrize("level", [Level.OBJECTS, Level.DATA])
def test_what_is_found_sound_within_the_second_in_which_it_was_found_damaged_is_sound(
    store: MemoryStore, repository: Repository, level: Level
) -> None:
    manifests = [store_backup(repository, FIRST)]
    key = manifests[0].streams[0].segments[0].key
    whole = store.get(key)
    put_instead(store, key, flip(whole))
    random = counter()
    assert run(repository, manifests, NOW, random=random)[0] == [key]
    assert len(read_damaged(repository.documents)) == 1
    put_instead(store, key, whole)
    problems, coverage = run(repository, manifests, NOW, level=level, random=random)
    assert (problems, coverage.never_bytes) == ([], 0)
    assert read_damaged(repository.documents) == {}


@pytest.mark.parametrize("number", [0, 1])
def test_damage_that_any_level_finds_is_repaired_for_a_less_deep_one(
    store: MemoryStore, repository: Repository, number: int
) -> None:
    """What `verify --level data` finds where the SHA-256 is wrong; also of an opaque piece."""
    manifests = [store_backup(repository, FIRST)]
    key = next(manifests[0].streams[number].refs).key
    whole = store.get(key)
    put_instead(store, key, flip(whole))
    assert run(repository, manifests, NOW, level=Level.DATA)[0] == [key]
    assert len(read_damaged(repository.documents)) == 1
    put_instead(store, key, whole)
    assert run(repository, manifests, NOW + 1)[0] == []
    assert read_damaged(repository.documents) == {}


def test_damage_that_only_decoding_finds_stays_recorded_until_it_is_decoded(
    store: MemoryStore, repository: Repository
) -> None:
    manifest, damaged = store_undecodable(repository)
    assert run(repository, [manifest], NOW)[0] == []
    assert run(repository, [manifest], NOW + 1, level=Level.DATA)[0] == [damaged.key]
    assert run(repository, [manifest], NOW + 2)[0] == []
    assert [*read_damaged(repository.documents)] == [id_of(damaged)]


def test_nights_add_up_to_everything_and_damage_stays_reported(store: MemoryStore, repository: Repository) -> None:
    manifests = [store_backup(repository, FIRST), store_backup(repository, SECOND, count=60)]
    objects = list(store.list(layout.SEGMENTS))
    key = manifests[0].streams[0].segments[1].key
    put_instead(store, key, flip(store.get(key)))
    reported, last = False, Coverage(0, 0, 0, 0, 0, 0, None)
    for night in range(25):
        problems, coverage = run(repository, manifests, NOW + night * DAY, Percent(4))
        assert reported <= (key in problems) and set(problems) <= {key}
        reported = reported or key in problems
        assert coverage.never_bytes <= last.never_bytes or night == 0
        assert coverage.checked_bytes < coverage.bytes
        record = (NOW + night * DAY).to_bytes(8, "big").hex()
        records = [layout.verified_key(record, damaged=True)] * reported + [layout.verified_key(record)]
        assert [info.key for info in store.list(layout.VERIFIED)] == records
        assert len(read_damaged(repository.documents)) == reported
        last = coverage
    assert reported
    assert last.bytes == sum(info.size for info in objects)
    assert last.never_bytes == store.head(key).size and last.recent_bytes == last.bytes - last.never_bytes
    assert last.oldest_seconds is not None and last.oldest_seconds > NOW  # it has come round more than once
    # Repaired, it is verified like everything else.
    put_instead(store, key, flip(store.get(key)))
    problems, coverage = run(repository, manifests, NOW + 60 * DAY, AtMost(1))
    assert problems == [] and coverage.never_bytes == 0 and not read_damaged(repository.documents)
    assert 0 < coverage.recent_bytes < coverage.bytes  # some are older than RECENT_DAYS by now
    assert RECENT_DAYS == 31


def test_what_no_backup_names_any_more_is_forgotten(store: MemoryStore, repository: Repository) -> None:
    first, second = store_backup(repository, FIRST), store_backup(repository, SECOND, count=80)
    run(repository, [first, second], NOW)
    both = len(read_findings(repository.documents, NOW).sound[Level.OBJECTS])
    run(repository, [first], NOW + 1)
    found = read_findings(repository.documents, NOW + 1).sound[Level.OBJECTS]
    assert len(found) < both and set(found.values()) == {NOW + 1}


def test_a_run_over_some_backups_keeps_what_is_known_of_others(store: MemoryStore, repository: Repository) -> None:
    first, second = store_backup(repository, FIRST), store_backup(repository, SECOND, count=80)
    run(repository, [first, second], NOW)
    both = read_findings(repository.documents, NOW).sound[Level.OBJECTS]
    verifier = Verifier(repository.objects, Level.OBJECTS)
    assert list(verifier.check(first)) == []
    remember(repository.documents, verifier, everything=False, now_seconds=NOW + 9, tool="t", random=counter())
    found = read_findings(repository.documents, NOW + 9).sound[Level.OBJECTS]
    assert found.keys() == both.keys() and set(found.values()) == {NOW, NOW + 9}


def test_runs_at_the_same_time_lose_nothing(store: MemoryStore, repository: Repository) -> None:
    first, second = store_backup(repository, FIRST), store_backup(repository, SECOND, count=80)
    run(repository, [first], NOW - 5)
    runs = []
    for manifest in (first, second):
        verifier = Verifier(repository.objects, Level.OBJECTS)
        list(verifier.check(manifest))
        runs.append(verifier)
    random = counter()
    raced = False

    def other_run(operation: str, key: str) -> None:
        """The other one reads, puts and deletes between our reading and our putting."""
        nonlocal raced
        if operation == "put" and key.startswith(layout.VERIFIED) and not raced:
            raced = True
            remember(repository.documents, runs[1], everything=False, now_seconds=NOW, tool="t", random=random)

    documents = Documents(FaultStore(store, before=other_run))
    remember(documents, runs[0], everything=False, now_seconds=NOW, tool="t", random=random)
    assert len(list(store.list(layout.VERIFIED))) == 2
    _, coverage = run(repository, [first, second], NOW + 1, AtMost(1))
    assert len(list(store.list(layout.VERIFIED))) == 1
    assert coverage.never_bytes == 0


# --- records that say nothing, or lies ---


def record_of(store: MemoryStore) -> str:
    (info,) = store.list(layout.VERIFIED)
    return info.key


def row(**changes: object) -> dict[str, object]:
    whole = {"at": "2027-01-01T00:00:00Z", "level": "objects", "sound": True, "objects": "A" * 16}
    return {**whole, **changes}


LIES = {
    "not JSON": b"\xff",
    "empty": b"",
    "half": b'{"format":1',
    "of another shape": encode_document({"format": 1, "required_features": [], "found": 7}, "t"),
    "rows that are none": encode_document({"format": 1, "required_features": [], "found": [7]}, "t"),
    "ids cut short": encode_document({"format": 1, "required_features": [], "found": [row(objects="AAAA")]}, "t"),
    "no base64": encode_document({"format": 1, "required_features": [], "found": [row(objects="é" * 16)]}, "t"),
    "no level": encode_document({"format": 1, "required_features": [], "found": [row(level="manifest")]}, "t"),
    "no time": encode_document({"format": 1, "required_features": [], "found": [row(at="yesterday")]}, "t"),
    "no verdict": encode_document({"format": 1, "required_features": [], "found": [row(sound=1)]}, "t"),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_cannot_be_read_makes_objects_verified_again(
    store: MemoryStore, repository: Repository, lie: str
) -> None:
    manifest = store_backup(repository)
    run(repository, [manifest], NOW)
    put_instead(store, record_of(store), LIES[lie])
    problems, coverage = run(repository, [manifest], NOW + 1, AtMost(1))
    assert problems == [] and coverage.checked_objects == 1
    assert coverage.never_bytes == coverage.bytes - coverage.checked_bytes
    assert len(list(store.list(layout.VERIFIED))) == 1


def test_a_record_cut_or_flipped_anywhere_is_read_as_it_was_or_not_at_all(
    store: MemoryStore, repository: Repository
) -> None:
    manifest = store_backup(repository)
    run(repository, [manifest], NOW)
    key = record_of(store)
    data, whole = store.get(key), read_findings(repository.documents, NOW)
    for at in range(len(data)):
        for broken in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            put_instead(store, key, broken)
            assert read_findings(repository.documents, NOW) in (whole, Findings())


def test_a_record_of_a_later_tool_is_left_alone(store: MemoryStore, repository: Repository) -> None:
    manifest = store_backup(repository)
    later = layout.verified_key("later")
    store.put(later, encode_document({"format": 2, "required_features": [], "found": []}, "t"))
    _, coverage = run(repository, [manifest], NOW)
    assert coverage.never_bytes == 0
    assert later in {info.key for info in store.list(layout.VERIFIED)}


def test_what_will_have_been_verified_was_not(store: MemoryStore, repository: Repository) -> None:
    manifest = store_backup(repository)
    run(repository, [manifest], NOW)
    assert read_findings(repository.documents, NOW - 1) == Findings()
    problems, coverage = run(repository, [manifest], NOW - 1, AtMost(1))
    assert problems == [] and coverage.never_bytes == coverage.bytes - coverage.checked_bytes


def test_many_records_are_read_in_part(store: MemoryStore, repository: Repository) -> None:
    for number in range(300):
        store.put(layout.verified_key(f"{number:04}"), b"x")
    watched = CountingStore(store)
    read_findings(Documents(watched), NOW)
    assert watched.requests["get"] == 100


def test_no_record_can_be_put_is_an_error_that_keeps_what_there_is(store: MemoryStore, repository: Repository) -> None:
    manifest = store_backup(repository)
    run(repository, [manifest], NOW)
    before = record_of(store)
    verifier = Verifier(repository.objects, Level.OBJECTS)
    assert list(verifier.check(manifest)) == []
    faulty = Documents(FaultStore(store, Fault.FAIL, at=3))
    with pytest.raises(StoreError, match="injected: put"):
        remember(faulty, verifier, everything=True, now_seconds=NOW + 1, tool="t", random=counter())
    assert record_of(store) == before


def test_in_a_signed_repository_records_are_signed_and_nobody_elses_count(store: MemoryStore) -> None:
    new_keys = make_new_keys("00ff", [], None, lambda count: b"s" * count)
    repository = Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    manifest = store_backup(repository)
    run(repository, [manifest], NOW)
    assert read_findings(repository.documents, NOW) != Findings()
    key = record_of(store)
    plain = json.loads(store.get(key).splitlines()[0])
    del plain["sha256"]
    put_instead(store, key, encode_document(plain, "t"))
    assert read_findings(repository.documents, NOW) == Findings()
    reader = Repository.open(store, GivenKeys())
    verifier = Verifier(reader.objects, Level.OBJECTS)
    assert list(verifier.check(manifest)) == []
    with pytest.raises(KeyUnavailable):
        remember(reader.documents, verifier, everything=True, now_seconds=NOW, tool="t", random=counter())
    assert record_of(store) == key


# --- the document ---


class Found(Verifier):
    """A run that is over, and found this."""

    def __init__(self, level: Level, sound: set[bytes], damaged: set[bytes]) -> None:
        super().__init__(make_repository(MemoryStore()).objects, level)
        self.sound = sound
        self._broken = damaged
        self.stock = {one: Stocked(1, 0.0) for one in sound | damaged}

    @property
    def damaged(self) -> dict[bytes, str]:
        return {one: f"segments/{one[-1] % 3}" for one in self._broken}

    def damaged_at(self, level: Level) -> dict[bytes, str]:
        return self.damaged if level is self.level else {}


NAMES = st.sets(st.integers(0, 30).map(name))
RUNS = st.lists(st.tuples(st.sampled_from([Level.OBJECTS, Level.DATA]), NAMES, NAMES), min_size=1, max_size=8)


@given(RUNS)
@settings(deadline=None)
def test_what_is_remembered_is_what_decides(runs: list[tuple[Level, set[bytes], set[bytes]]]) -> None:
    """A record leaves out what newer or deeper findings make pointless, and nothing that matters."""
    store = MemoryStore()
    documents, random = Documents(store), counter()
    known = Findings()
    for number, (level, sound, damaged) in enumerate(runs):
        verifier = Found(level, sound - damaged, damaged)
        add_run(known, verifier, NOW + number)
        remember(documents, verifier, everything=False, now_seconds=NOW + number, tool="t", random=random)
    read = read_findings(documents, NOW + len(runs))
    anything = Stocked(1, 0.0)
    for one in map(name, range(31)):
        assert read.is_damaged(one) == known.is_damaged(one)
        if read.is_damaged(one):
            assert read_damaged(documents)[one] == read.damaged[one].folder == f"segments/{one[-1] % 3}"
        if not known.is_damaged(one):
            for level in (Level.OBJECTS, Level.DATA):
                assert read.verified_seconds(one, anything, level) == known.verified_seconds(one, anything, level)
    assert len(list(store.list())) <= 2  # one of what is sound, one of what is damaged


@pytest.mark.slow
def test_two_hundred_thousand_objects_take_a_few_megabytes() -> None:
    store = MemoryStore()
    verifier = Found(Level.OBJECTS, {name(number) for number in range(200_000)}, set())
    remember(Documents(store), verifier, everything=True, now_seconds=NOW, tool="t", random=counter())
    (info,) = store.list()
    assert info.size < 3_300_000
    assert len(read_findings(Documents(store), NOW).sound[Level.OBJECTS]) == 200_000


def test_a_record_is_described_by_its_docstring(store: MemoryStore, repository: Repository) -> None:
    manifest = store_backup(repository)
    run(repository, [manifest], NOW)
    document = json.loads(store.get(record_of(store)))
    (found_row,) = document["found"]
    assert (found_row["at"], found_row["level"], found_row["sound"]) == ("2027-01-15T08:00:00Z", "objects", True)
    objects = len(list(store.list(layout.SEGMENTS)))
    assert len(base64.b64decode(found_row["objects"])) == objects * ID_BYTES


def test_damage_in_one_folder_is_none_in_another(store: MemoryStore, repository: Repository) -> None:
    manifest = store_backup(repository)
    orders = manifest.streams[0].segments
    put_instead(store, orders[0].key, flip(store.get(orders[0].key)))
    run(repository, [manifest], NOW)
    objects = Repository.open(store).objects
    folder, _, _ = orders[0].key.rpartition("/")
    assert objects.damaged_in(folder) == {id_of(orders[0])} and not objects.damaged_in("segments/other-1a2b3c4d")
    assert objects.is_damaged(orders[0]) and not objects.is_damaged(orders[1])


def test_pages_of_streams_are_among_what_is_verified(store: MemoryStore, repository: Repository) -> None:
    repository.commit(manifest_of(many_streams()))
    pages = pages_in(store)
    found, coverage = run(Repository.open(store), [Repository.open(store).manifest(FIRST)], NOW)
    assert found == [] and coverage.objects == coverage.checked_objects == len(pages)
    lost = Repository.open(store).manifest(FIRST).stream_pages[2]
    put_instead(store, lost.key, flip(store.get(lost.key)))
    found, coverage = run(repository, [Repository.open(store).manifest(FIRST, in_part=True)], NOW + 1)
    assert found == [lost.key] and coverage.checked_objects == len(pages)
    assert Repository.open(store).objects.damaged_in("streams") == {id_of(lost)}
    put_instead(store, lost.key, flip(store.get(lost.key)))
    found, coverage = run(repository, [Repository.open(store).manifest(FIRST)], NOW + 2)
    assert found == [] and not Repository.open(store).objects.damaged_in("streams")


def test_pages_of_streams_are_found_after_many_folders(store: MemoryStore, repository: Repository) -> None:
    """The folders of many streams are listed at once, and theirs is not among them."""
    for number in range(3):
        names = [f"S{number}{one:02}" for one in range(15)]
        streams = [store_stream(repository.objects, name, some_messages(2, 100)) for name in names]
        repository.commit(manifest_of(streams, f"20261121T01450{number}Z-00000{number}"))
    streams = [store_stream(repository.objects, "LATE", some_messages(2, 100)), *many_streams(70)]
    repository.commit(manifest_of(streams, SECOND))
    fresh = Repository.open(store)
    found, coverage = run(fresh, [fresh.manifest(backup) for backup in fresh.backups()], NOW)
    assert found == [] and coverage.checked_objects == coverage.objects > 90


def test_a_record_of_damage_that_the_store_does_not_return_hides_no_other() -> None:
    store, random = MemoryStore(), counter()
    for number in (1, 2):
        remember_damaged(Documents(store), {name(number): "f"}, now_seconds=NOW, tool="t", random=random)
    (lost, _) = [info.key for info in store.list(layout.VERIFIED)]

    def fail(operation: str, key: str) -> None:
        if operation == "get_range" and key == lost:
            raise StoreError("input/output error")

    damaged = read_damaged(Documents(FaultStore(store, before=fail)))
    assert len(damaged) == 1 and damaged.keys() < {name(1), name(2)}
    with pytest.raises(StoreError):
        damage_on_record(Documents(FaultStore(store, before=fail)))
