"""Whatever is done in whatever order: does a command that ends with 0 leave what its output claims?

Random accounts, backups, restores, clones, `forget`, `prune` and `copy`, with random options, some of them mistakes.
What each claims is read back from servers and repositories by other means (`estate.py`):

- a backup holds each message of each stream that was asked for, and `latest` never crosses accounts,
- a restore or clone leaves exactly what its options say of each stream that it names, with the consumers' states it
  calls exact, names each stream that was asked for, and touches no other,
- what ends with neither 0 nor 3 changes nothing,
- `forget`, `prune` and `copy` lose nothing that they do not name: all other backups stay listed, and whole.

`JSBACKUP_TEST_FUZZ_ROUNDS=300` makes so many rounds with each of four servers, 25 in an estate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.estate import (
    STREAMS,
    SUBJECTS,
    Contents,
    Estate,
    Kept,
    Place,
    Reshaping,
    all_contents,
    comparable,
    floors,
)
from tests.fuzz.reading import manifest_of, stored_messages
from tests.harness.commands import Ran
from tests.harness.oracle import ObservedStream
from tests.harness.servers import NEWEST
from tests.trials.accounts import ACCOUNTS

ROUNDS = int(os.environ.get("JSBACKUP_TEST_FUZZ_ROUNDS", "0"))
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")
SERVERS = ("2.10.26", "2.12.8", "2.14.6", NEWEST)
_DAILY_SERVERS, _DAILY_ROUNDS = SERVERS[1::2], 25
_ROUNDS_OF_AN_ESTATE = 25

pytestmark = [pytest.mark.nats, pytest.mark.explore, pytest.mark.timeout(400)]


def _estates() -> Iterator[tuple[str, int, int]]:
    """Parameters of the test: version, number of the estate, and its rounds."""
    if not ROUNDS:
        yield from ((version, 0, _DAILY_ROUNDS) for version in _DAILY_SERVERS)
        return
    for number, begun in enumerate(range(0, ROUNDS, _ROUNDS_OF_AN_ESTATE)):
        yield from ((version, number, min(_ROUNDS_OF_AN_ESTATE, ROUNDS - begun)) for version in SERVERS)


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "number", "rounds"), list(_estates()))
def test_what_ends_with_0_is_what_it_says(
    version: str, number: int, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("JSBACKUP_", "NATS_"))]:
        if not name.startswith("JSBACKUP_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("JSBACKUP_TRACEBACK", "1")
    with Estate(version, tmp_path, f"{SEED} commands {version} {number}") as estate:
        try:
            _live(estate, rounds)
        except BaseException as error:
            error.add_note(f"JSBACKUP_TEST_SEED={SEED}; since the beginning:\n" + "\n".join(estate.done))
            raise


def _live(estate: Estate, rounds: int) -> None:
    for account in ACCOUNTS[:2]:
        _back_up(estate, Place("near", account), [])
    operations, weights = zip(*OPERATIONS, strict=True)
    for _ in range(rounds):
        operation: Callable[[Estate], None] = estate.chance.choices(operations, weights)[0]
        operation(estate)
    for repository in estate.repositories:
        _check_repository(estate, repository)


# --- what others do to the servers ---


def _change(estate: Estate) -> None:
    place = estate.chance.choice([Place("near", "SHOP"), Place("near", "PAY"), Place("far", "SHOP")])
    there = [name for name in estate.look(place) if name in STREAMS]
    if not there:
        return
    name = estate.chance.choice(there)
    what = estate.chance.choice(["publish", "publish", "consume", "purge", "delete"])
    estate.done.append(f"{what} {name} of {place}")
    if what == "publish":
        estate.publish(place, name, estate.chance.randint(1, 8))
    elif what == "consume":
        estate.consume(place, name, estate.chance.randint(1, 5))
    elif what == "purge":
        estate.ask(place, f"STREAM.PURGE.{name}", {"filter": estate.chance.choice(SUBJECTS[name])})
    elif name != "KV_config" and (messages := estate.look(place)[name].messages):
        estate.ask(place, f"STREAM.MSG.DELETE.{name}", {"seq": estate.chance.choice(messages).sequence})


def _lose(estate: Estate) -> None:
    """Somebody deletes streams, or makes one again."""
    place = Place(estate.chance.choice(["near", "far"]), estate.chance.choice(ACCOUNTS[:2]))
    there = list(estate.look(place))
    missing = [name for name in STREAMS if name not in there]
    if missing and (place.server == "near" or not there) and estate.chance.random() < 0.5:
        name = estate.chance.choice(missing)
        estate.done.append(f"make {name} of {place}")
        estate.create(place, name)
        estate.publish(place, name, estate.chance.randint(1, 5))
        return
    for name in there if place.server == "far" else there[:1]:
        estate.done.append(f"delete {name} of {place}")
        estate.ask(place, f"STREAM.DELETE.{name}")


# --- commands, and what holds after each ---


def _backup(estate: Estate) -> None:
    place = Place("near", estate.chance.choice(ACCOUNTS[:2]))
    words = estate.chance.choice([[], [], [], ["ORDERS"], ["KV_*"], ["--exclude", "KV_config"], ["LEDGER", "ORDERS"]])
    words = [*words, *estate.chance.choice([[], [], ["--incremental", "never"], ["--incremental", "always"]])]
    _back_up(estate, place, words)


def _back_up(estate: Estate, place: Place, words: list[str]) -> None:
    before = estate.look(place)
    done = estate.type("backup", *words, *estate.on(place), "-r", estate.repositories[0])
    names = [word for word in words if word in STREAMS or "*" in word]
    if "--exclude" in words:
        wanted = {name for name in before if name != "KV_config"}
    else:
        wanted = {name for name in before if not names or name in names or ("KV_*" in names and "KV_" in name)}
    if done.code == 0:
        assert {one["name"] for one in done.document["streams"]} == wanted and wanted
        assert done.document["result"] == "complete"
    if done.code not in (0, 3) or "backup" not in done.document:
        return
    complete = done.document["result"] == "complete"
    streams = {name: held for name, held in all_contents(before).items() if name in wanted}
    backup = done.document["backup"]
    estate.kept[backup] = Kept(
        place.account, streams, not words or words[0] == "--incremental", complete, floors(before)
    )
    estate.held[estate.repositories[0]].add(backup)
    _check_stored(estate, estate.repositories[0], backup)


def _check_stored(estate: Estate, repository: Path, backup: str) -> None:
    """A backup holds what was there, read with pyarrow."""
    stored = {one["name"]: stored_messages(repository, one) for one in manifest_of(repository, backup)["streams"]}
    assert {name: {s: tuple(m) for s, m in held.items()} for name, held in stored.items()} == {
        name: {s: tuple(m) for s, m in held.items()} for name, held in estate.kept[backup].streams.items()
    }, f"{backup} does not hold what there was"


def _reshaping(estate: Estate) -> Reshaping:
    chance = estate.chance
    if chance.random() < 0.4:
        return Reshaping()
    return Reshaping(
        subject=chance.choice([None, None, None, "orders.eu.*", "orders.eu.1", "$KV.config.prices.*", "nothing.>"]),
        until=chance.choice([None, None, None, chance.randint(1, 30)]),
        since=chance.choice([None, None, None, None, chance.randint(1, 30)]),
        mask=chance.random() < 0.2,
        map=chance.random() < 0.2,
        prefix=chance.choice(["", "", "", "t_"]),
    )


def _leave(estate: Estate) -> list[str]:
    """Options that let a restore do what it would refuse otherwise."""
    chance = estate.chance
    if chance.random() < 0.7:
        return []
    return [one for one in ("--replace-with-part", "--allow-nothing") if chance.random() < 0.6]


def _streams(estate: Estate) -> list[str]:
    return estate.chance.choice([[], [], ["ORDERS"], ["KV_config"], ["ORDERS", "LEDGER"], ["KV_*"], ["ORDRES"]])


def _restore(estate: Estate) -> None:
    repository = estate.chance.choice([path for path in estate.repositories if estate.held[path]])
    place = Place(estate.chance.choice(["near", "far"]), estate.chance.choice(ACCOUNTS))
    which = estate.chance.choice(["latest", "latest", *sorted(estate.held[repository])[-4:]])
    reshaping, leave, streams = _reshaping(estate), _leave(estate), _streams(estate)
    if_exists = estate.chance.choice(["fail", "skip", "replace", "replace"])
    options = [*reshaping.words(), "--if-exists", if_exists, *leave]
    before = estate.look(place)
    done = estate.type("restore", which, *streams, *options, *estate.on(place), "-r", repository)
    after = estate.look(place)
    if done.code in (0, 3) and "backup" in done.document:
        kept = estate.kept[done.document["backup"]]
        if which == "latest":
            accounts = {estate.kept[one].account for one in estate.held[repository]}
            assert kept.account == place.account or accounts == {kept.account}, "latest crossed accounts"
        else:
            assert done.document["backup"] == which
        _check_restored(done, kept, streams, reshaping, leave, before, after)
    else:
        assert done.code not in (0, 3)
        _check_untouched(before, after, set())


def _clone(estate: Estate) -> None:
    source = Place("near", estate.chance.choice(ACCOUNTS[:2]))
    target = Place("far", estate.chance.choice(ACCOUNTS))
    reshaping, leave, streams = _reshaping(estate), _leave(estate), _streams(estate) or ["*"]
    if_exists = estate.chance.choice(["fail", "skip", "replace", "replace"])
    options = [*reshaping.words(), "--if-exists", if_exists, *leave]
    origin, before = estate.look(source), estate.look(target)
    done = estate.type("clone", *streams, *options, *estate.on(source), "--to-server", estate.url(target))
    after = estate.look(target)
    assert all_contents(estate.look(source)) == all_contents(origin), "a clone changed what it reads"
    if done.code in (0, 3):
        kept = Kept(source.account, all_contents(origin), whole=True, complete=True, consumers=floors(origin))
        _check_restored(done, kept, [] if streams == ["*"] else streams, reshaping, leave, before, after)
    else:
        _check_untouched(before, after, set())


def _check_restored(
    done: Ran,
    kept: Kept,
    streams: list[str],
    reshaping: Reshaping,
    leave: list[str],
    before: dict[str, ObservedStream],
    after: dict[str, ObservedStream],
) -> None:
    restored = {one["name"]: one for one in done.document["streams"]}
    skipped = {one["name"] for one in done.document["skipped"]}
    if done.code == 0:
        assert not done.document["failed"] and not done.document["missing"]
        wanted = {
            name for name in kept.streams if not streams or name in streams or ("KV_*" in streams and "KV_" in name)
        }
        assert restored.keys() | skipped == wanted, "a stream that was asked for is not told of"
        assert wanted and all(one in kept.streams or "*" in one for one in streams)
        masked = [held for name in restored for held in reshaping.keeps(name, kept.streams[name]).values()]
        if reshaping.mask and "--allow-nothing" not in leave:
            assert masked or not restored, "a mask masked nothing"
    found, there = all_contents(after), all_contents(before)
    for name, claimed in restored.items():
        target = reshaping.name(name)
        assert claimed["as"] == target and claimed["verified"]
        expected = reshaping.expected(name, kept.streams[name])
        assert comparable(found[target], reshaping.mask) == expected, f"{target} is not what was restored"
        assert claimed["messages"] == len(expected)
        if done.code == 0 and kept.streams[name] and "--allow-nothing" not in leave:
            assert expected, f"nothing was kept of {name}"
        if done.code == 0 and target in there and "--replace-with-part" not in leave:
            assert not _lost(reshaping, name, kept.streams[name], there[target]), f"a part replaced {target}"
        if not reshaping:
            _check_consumers(claimed, kept.consumers.get(name, {}), floors(after)[target])
    _check_untouched(before, after, {reshaping.name(name) for name in restored})


def _lost(reshaping: Reshaping, name: str, stored: Contents, there: Contents) -> list[int]:
    """Messages of the replaced stream that what replaces it lacks. One that a mask or map altered is the same still."""
    restored = {(sequence, message.time_ns) for sequence, message in reshaping.keeps(name, stored).items()}
    return [sequence for sequence, message in there.items() if (sequence, message.time_ns) not in restored]


def _check_consumers(claimed: Any, before: Any, after: Any) -> None:
    for one in claimed["consumers"]:
        if one["fidelity"] == "exact":
            assert after[one["name"]] == before[one["name"]], f"{one['name']} of {claimed['name']} is not exact"


def _check_untouched(before: dict[str, ObservedStream], after: dict[str, ObservedStream], but: set[str]) -> None:
    old = {name: one for name, one in all_contents(before).items() if name not in but}
    new = {name: one for name, one in all_contents(after).items() if name not in but}
    assert old == new, "streams changed that nothing is said of"
    consumers = {name: one for name, one in floors(before).items() if name in old}
    assert consumers == {name: one for name, one in floors(after).items() if name in old}


def _forget(estate: Estate) -> None:
    repository = estate.chance.choice([path for path in estate.repositories if estate.held[path]])
    held = sorted(estate.held[repository])
    words = estate.chance.choice(
        [
            ["--keep-last", "2"],
            ["--keep-last", "1"],
            ["--keep-last", "3", "--group-by", "source"],
            [estate.chance.choice(held)],
        ]
    )
    more = estate.chance.choice([[], [], ["--prune", "--grace", "0s"], ["--dry-run"]])
    newest = {
        account: max((one for one in held if _is_full(estate.kept[one], account)), default=None) for account in ACCOUNTS
    }
    done = estate.type("forget", *words, *more, "-r", repository)
    listed = _listed(estate, repository)
    if done.code == 0:
        removed = {one["backup"] for one in done.document["removed"]}
        assert removed | {one["backup"] for one in done.document["kept"]} == set(held)
        if "--dry-run" not in more:
            estate.held[repository] -= removed
        if words[0].startswith("--keep"):
            assert not removed & set(newest.values()), "the newest complete backup of an account is gone"
    assert listed == estate.held[repository]


def _is_full(kept: Kept, account: str) -> bool:
    return kept.account == account and kept.whole and kept.complete and bool(kept.streams)


def _prune(estate: Estate) -> None:
    repository = estate.chance.choice([path for path in estate.repositories if estate.held[path]])
    assert estate.type("prune", "--grace", "0s", "-r", repository).code == 0
    _check_repository(estate, repository)


def _copy(estate: Estate) -> None:
    one, other = estate.repositories
    words = estate.chance.choice([[], [], ["latest"], [estate.chance.choice([*sorted(estate.held[one]), "20200101"])]])
    done = estate.type("copy", *words, "-r", one, "--to-repo", other)
    if done.code == 0:
        copied = {*done.document["backups"], *done.document["present"]}
        assert copied and copied <= estate.held[one]
        assert words or copied == estate.held[one]
        estate.held[other] |= copied
    if estate.held[other]:
        assert _listed(estate, other) == estate.held[other]


def _listed(estate: Estate, repository: Path) -> set[str]:
    done = estate.type("list", "-r", repository)
    assert done.code == 0, done.err
    return {one["backup"] for one in done.document["backups"]}


def _check_repository(estate: Estate, repository: Path) -> None:
    """Every backup that should be there is, and holds what it held."""
    if not estate.held[repository]:
        return
    assert _listed(estate, repository) == estate.held[repository]
    for backup in estate.held[repository]:
        _check_stored(estate, repository, backup)
    assert estate.type("verify", "--level", "data", "-r", repository).code == 0


OPERATIONS: list[tuple[Callable[[Estate], None], int]] = [
    (_change, 8),
    (_lose, 2),
    (_backup, 6),
    (_restore, 8),
    (_clone, 4),
    (_forget, 2),
    (_prune, 1),
    (_copy, 2),
]
