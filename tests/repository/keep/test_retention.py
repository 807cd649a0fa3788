from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UsageError
from jsbackup.repository.catalog import CatalogEntry
from jsbackup.repository.inventory import Inventory, UnreadableBackup
from jsbackup.repository.keep.retention import Decisions, Policy, TagRule, apply_policy
from jsbackup.repository.manifest import BackupResult, BackupSummary, Selection
from jsbackup.repository.read.sources import Grouping

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)  # a Saturday
COMPLETE, PARTIAL = BackupResult.COMPLETE, BackupResult.PARTIAL


def made(
    moment: datetime, result: BackupResult = COMPLETE, tags: Iterable[str] = (), number: int = 0, **source: Any
) -> BackupSummary:
    summary = BackupSummary(
        id=f"{moment:%Y%m%dT%H%M%SZ}-{number:06x}",
        created=f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        result=result,
        streams=1,
        messages=2,
        bytes=3,
        tags=dict.fromkeys(tags, "yes"),
        cluster="C1",
        account="A",
    )
    return replace(summary, **source)


def ago(
    *, days: float = 0, hours: float = 0, minutes: float = 0, result: BackupResult = COMPLETE, **more: Any
) -> BackupSummary:
    return made(NOW - timedelta(days=days, hours=hours, minutes=minutes), result, **more)


def inventory(backups: Iterable[BackupSummary], unreadable: Iterable[str] = ()) -> Inventory:
    entries = sorted((CatalogEntry(backup, 1, "00" * 32) for backup in backups), key=lambda entry: entry.id)
    broken = tuple(UnreadableBackup(backup, FormatError(f"manifest {backup} is not JSON")) for backup in unreadable)
    return Inventory(tuple(entries), broken)


def decide(
    backups: Iterable[BackupSummary],
    policy: Policy,
    *,
    held: Collection[str] = (),
    unreadable: Iterable[str] = (),
    grouping: Grouping = Grouping.SELECTION,
    now: datetime = NOW,
    profile: str = "",
) -> Decisions:
    now_ns = round(now.timestamp()) * 1_000_000_000
    found = inventory(backups, unreadable)
    return apply_policy(policy, found, held, now_ns=now_ns, grouping=grouping, profile=profile)


def ids(backups: Iterable[BackupSummary]) -> set[str]:
    return {backup.id for backup in backups}


def kept(decisions: Decisions) -> set[str]:
    return {one.backup for one in decisions.kept}


def removed(decisions: Decisions) -> set[str]:
    return {one.backup for one in decisions.removed}


def reasons(decisions: Decisions) -> dict[str, str]:
    return {one.backup: "; ".join(one.reasons) for one in decisions.kept}


def why_removed(decisions: Decisions) -> dict[str, str]:
    return {one.backup: one.reason for one in decisions.removed}


# --- the rules ---


def test_an_empty_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="no --keep option was given"):
        decide([ago()], Policy())


@pytest.mark.parametrize(
    ("policy", "earlier", "later", "period"),
    [
        (Policy(hourly=2), "2026-11-20T23:59:59", "2026-11-21T00:00:00", "hourly 2026-11-20T23"),
        (Policy(daily=2), "2026-11-20T23:59:59", "2026-11-21T00:00:00", "daily 2026-11-20"),
        (Policy(weekly=2), "2026-11-15T23:59:59", "2026-11-16T00:00:00", "weekly 2026-W46"),  # a Sunday, a Monday
        (Policy(monthly=2), "2026-10-31T23:59:59", "2026-11-01T00:00:00", "monthly 2026-10"),
        (Policy(yearly=2), "2025-12-31T23:59:59", "2026-01-01T00:00:00", "yearly 2025"),
    ],
)
def test_periods_end_where_the_calendar_says_in_utc(policy: Policy, earlier: str, later: str, period: str) -> None:
    first, second = (made(datetime.fromisoformat(f"{text}+00:00")) for text in (earlier, later))
    done = decide([first, second], policy)
    assert kept(done) == {first.id, second.id}
    assert reasons(done)[first.id] == f"{period} (2 of 2)"
    third = made(datetime.fromisoformat(f"{later}+00:00") + timedelta(seconds=1))
    assert removed(decide([first, second, third], policy)) == {second.id}


# --- partial backups ---


def test_a_partial_backup_never_displaces_a_complete_one() -> None:
    complete, newer = ago(hours=5), ago(hours=1, result=PARTIAL)
    done = decide([complete, newer, ago(days=1)], Policy(daily=1))
    assert kept(done) == {complete.id, newer.id}
    assert reasons(done) == {
        complete.id: "newest complete backup; daily 2026-11-21 (1 of 1)",
        newer.id: "newest backup, partial",
    }


def test_days_that_have_only_partial_backups_are_kept_and_not_counted() -> None:
    complete = [ago(days=days) for days in (0, 3, 4)]
    partial = [ago(days=days, result=PARTIAL) for days in (1, 2, 5)]
    done = decide([*complete, *partial, ago(days=1, hours=1, result=PARTIAL)], Policy(daily=2))
    assert kept(done) == {complete[0].id, complete[1].id, partial[0].id, partial[1].id}
    assert reasons(done)[partial[0].id] == "daily 2026-11-20 (partial, not counted)"


# --- what is kept whatever the policy says ---


def test_the_newest_complete_backup_is_kept_by_any_policy() -> None:
    backups = [ago(days=days) for days in (3, 4)]
    done = decide([*backups, ago(days=2, result=PARTIAL)], Policy(tags=(TagRule("none"),)))
    assert removed(done) == {backups[1].id}
    assert reasons(done) == {backups[0].id: "newest complete backup", ago(days=2).id: "newest backup, partial"}


def test_held_backups_are_kept_and_take_nobody_elses_place() -> None:
    backups = [ago(days=days) for days in range(4)]
    held = {backups[0].id, backups[3].id}
    done = decide(backups, Policy(last=2), held=held)
    assert kept(done) == {backups[0].id, backups[1].id, backups[3].id}
    assert reasons(done)[backups[3].id] == "held" and reasons(done)[backups[0].id].endswith("last (1 of 2); held")


def test_what_cannot_be_read_is_kept_and_not_counted() -> None:
    broken = "20261121T110000Z-ffffff"
    done = decide([ago(days=1), ago(days=2)], Policy(last=1), unreadable=[broken], held={broken})
    assert kept(done) == {broken, ago(days=1).id}
    assert reasons(done)[broken] == f"cannot be read: manifest {broken} is not JSON; held"


def test_what_is_dated_in_the_future_is_kept_and_not_counted() -> None:
    future = ago(days=-300)
    done = decide([future, ago(days=1), ago(days=2)], Policy(last=1, within_seconds=60))
    assert kept(done) == {future.id, ago(days=1).id}
    assert reasons(done)[future.id] == f"its date, {future.created}, is in the future"


def test_a_clock_that_stands_in_the_past_removes_nothing() -> None:
    backups = [ago(days=days) for days in range(5)]
    assert removed(decide(backups, Policy(last=1), now=datetime(1970, 1, 1, tzinfo=UTC))) == set()


def test_a_clock_that_is_far_ahead_removes_no_more_than_the_right_one() -> None:
    backups = [ago(days=days) for days in range(5)]
    policy = Policy(daily=1, within_seconds=2 * 86400)
    assert decide(backups, policy, now=datetime(2200, 1, 1, tzinfo=UTC)) == decide(backups, policy)


# --- groups ---


@pytest.mark.parametrize(
    "other",
    [
        {"cluster": "C2"},
        {"account": "B"},
        {"domain": "hub"},
        {"imported": "nats-cli"},
        {"transformed": "--mask a.>:$.b=redact"},
        {"selection": Selection(("ORDERS",))},
        {"selection": Selection((), ("OLD*",))},
        {"selection": Selection(consumers=False)},
        {"selection": Selection(config_only=True)},
    ],
)
def test_backups_that_cannot_replace_each_other_do_not_displace_each_other(other: dict[str, Any]) -> None:
    backups = [ago(days=2), ago(days=4), ago(days=1, **other), ago(days=3, **other)]
    done = decide(backups, Policy(last=1))
    assert kept(done) == {ago(days=1).id, ago(days=2).id}
    assert len({one.group for one in done.kept}) == 2
    assert [one.group for one in done.kept] == [one.group for one in done.removed]


def test_names_that_read_like_other_groups_are_not_taken_for_them() -> None:
    done = decide([ago(cluster="C1, account A", account=""), ago(days=1)], Policy(last=1))
    assert len(done.kept) == 2


def test_a_server_without_a_name_is_the_same_one_after_it_was_started_again() -> None:
    first, second = ("N" + letter * 55 for letter in "AB")
    done = decide([ago(cluster=first), ago(days=1, cluster=second)], Policy(last=1))
    assert removed(done) == {ago(days=1).id} and done.kept[0].group == "account A, all streams"


def test_coarser_groups_are_made_if_they_are_asked_for() -> None:
    orders = ago(days=1, selection=Selection(("ORDERS",)))
    elsewhere = ago(days=2, cluster="C2")
    configs = ago(days=3, selection=Selection(config_only=True))
    backups = [ago(), orders, elsewhere, configs]
    assert removed(decide(backups, Policy(last=1), grouping=Grouping.SELECTION)) == set()
    assert removed(decide(backups, Policy(last=1), grouping=Grouping.SOURCE)) == {orders.id}
    # What has no messages replaces nothing that has some, and is replaced by nothing that has.
    assert removed(decide(backups, Policy(last=1), grouping=Grouping.NONE)) == {orders.id}


def chosen(*streams: str, **more: Any) -> Selection:
    return Selection(streams, **more)


@pytest.mark.parametrize("grouping", [Grouping.SOURCE, Grouping.NONE])
@pytest.mark.parametrize(
    ("older", "newer", "replaced"),
    [
        (chosen(), chosen("ORDERS"), False),
        (chosen("ORDERS"), chosen(), True),
        (chosen("ORDERS", "SHOP"), chosen("ORDERS"), False),
        (chosen("ORDERS"), chosen("ORDERS", "SHOP"), True),
        (chosen("ORDERS"), chosen("O*"), True),
        (chosen("ORDERS*"), chosen("O*"), False),  # globs are not compared
        (chosen("ORDERS*"), chosen("ORDERS*", "SHOP"), True),
        (chosen(), chosen(exclude=("SHOP",)), False),
        (chosen(exclude=("SHOP",)), chosen(), True),
        (chosen("SHOP"), chosen("S*", exclude=("SHOP",)), False),
        (chosen(), chosen(consumers=False), False),
        (chosen(consumers=False), chosen(), True),
    ],
)
def test_in_coarse_groups_too_only_what_has_the_streams_takes_the_place(
    older: Selection, newer: Selection, replaced: bool, grouping: Grouping
) -> None:
    backups = [ago(days=3, selection=older), ago(days=2, selection=older), ago(days=1, selection=newer)]
    decided = decide(backups, Policy(last=1), grouping=grouping)
    assert removed(decided) == {backups[0].id, *([backups[1].id] if replaced else [])}
    if not replaced:
        why = reasons(decided)[backups[1].id]
        assert why.startswith("no newer backup that stays covers cluster C1, account A, ")
        assert all(one.displaces for one in decided.kept)


@pytest.mark.parametrize("grouping", [Grouping.SOURCE, Grouping.NONE])
def test_in_coarse_groups_too_a_changed_backup_takes_no_other_ones_place(grouping: Grouping) -> None:
    masked = "--mask >:payload=zero"
    kinds: list[dict[str, Any]] = [
        {"transformed": masked},
        {},
        {"account": "B"},
        {"cluster": "", "account": "", "imported": "nats-cli", "selection": chosen("LOG")},
        {"cluster": "", "account": "", "imported": "nats-cli", "selection": chosen("SRC")},
        {"transformed": "--kv-compact"},
        {"transformed": masked},
    ]
    backups = [ago(days=9 - at, **kind) for at, kind in enumerate(kinds)]
    assert removed(decide(backups, Policy(last=1), grouping=grouping)) == {backups[0].id}


@pytest.mark.parametrize("grouping", [Grouping.SOURCE, Grouping.NONE])
def test_in_coarse_groups_too_only_a_complete_backup_takes_the_place(grouping: Grouping) -> None:
    narrow = ago(days=3, selection=chosen("ORDERS"))
    partial = ago(days=2, selection=chosen("SHOP"), result=PARTIAL)
    wide = [ago(days=1, result=PARTIAL), ago(selection=chosen("LOG"))]
    assert removed(decide([narrow, partial, *wide], Policy(last=1), grouping=grouping)) == set()
    whole = ago(days=1, number=1)
    assert removed(decide([narrow, partial, whole, wide[1]], Policy(last=1), grouping=grouping)) == {
        narrow.id,
        partial.id,
    }


# --- any history, any policy ---

_tags = st.sets(st.sampled_from(["a", "b"]), max_size=2)
_selections = st.sampled_from([Selection(), Selection(("ORDERS",))])
_hours = st.one_of(st.integers(0, 60), st.integers(0, 3 * 365 * 24))
_backups = st.lists(
    st.tuples(_hours, st.sampled_from([COMPLETE, COMPLETE, PARTIAL]), _tags, _selections),
    max_size=25,
).map(lambda rows: [ago(hours=h, result=r, tags=t, selection=s, number=n) for n, (h, r, t, s) in enumerate(rows)])
_counts = st.sampled_from([0, 0, 1, 2, 5])
_policies = st.builds(
    Policy,
    last=_counts,
    hourly=_counts,
    daily=_counts,
    weekly=_counts,
    monthly=_counts,
    yearly=_counts,
    within_seconds=st.sampled_from([0, 0, 3600, 86400 * 30]),
    tags=st.sampled_from([(), (), (TagRule("a"),), (TagRule("b", "yes"),)]),
).filter(lambda policy: not policy.is_empty)


@given(_backups, _policies)
def test_every_backup_is_decided_on_once_with_a_reason(backups: list[BackupSummary], policy: Policy) -> None:
    done = decide(backups, policy)
    assert kept(done) | removed(done) == ids(backups)
    assert len(done.kept) + len(done.removed) == len(backups)
    assert all(one.reasons and all(one.reasons) for one in done.kept) and all(one.reason for one in done.removed)
    assert [one.backup for one in done.kept] == sorted(kept(done))
    assert [one.backup for one in done.removed] == sorted(removed(done))


@given(_backups, _policies)
def test_deciding_again_on_what_was_kept_removes_nothing_more(backups: list[BackupSummary], policy: Policy) -> None:
    left = [backup for backup in backups if backup.id in kept(decide(backups, policy))]
    assert removed(decide(left, policy)) == set()


@given(_backups, _policies)
def test_partial_backups_change_nothing_for_complete_ones(backups: list[BackupSummary], policy: Policy) -> None:
    complete = [backup for backup in backups if backup.result is COMPLETE]
    assert kept(decide(backups, policy)) & ids(complete) == kept(decide(complete, policy))


@given(_backups, _policies, st.data())
def test_a_hold_keeps_one_backup_and_changes_nothing_else(
    backups: list[BackupSummary], policy: Policy, data: st.DataObject
) -> None:
    held = data.draw(st.sets(st.sampled_from(sorted(ids(backups))))) if backups else set()
    assert kept(decide(backups, policy, held=held)) == kept(decide(backups, policy)) | held


@given(_backups, _policies, _policies)
def test_a_policy_that_asks_for_more_keeps_no_less(backups: list[BackupSummary], one: Policy, two: Policy) -> None:
    names = ("last", "hourly", "daily", "weekly", "monthly", "yearly", "within_seconds")
    more = Policy(**{name: max(getattr(one, name), getattr(two, name)) for name in names}, tags=one.tags + two.tags)
    assert kept(decide(backups, one)) | kept(decide(backups, two)) <= kept(decide(backups, more))


@given(_backups, _policies)
def test_a_newest_complete_backup_stays_in_each_group(backups: list[BackupSummary], policy: Policy) -> None:
    done = decide(backups, policy)
    for selection, result in product((Selection(), Selection(("ORDERS",))), BackupResult):
        group = [b for b in backups if b.selection == selection]
        alike = [b.id for b in group if b.result is result]
        if alike and (result is COMPLETE or max(alike) == max(ids(group))):
            assert max(alike) in kept(done)


def test_what_was_made_by_following_pushes_no_other_backup_out() -> None:
    nightly = ago(hours=12)
    followed = [ago(hours=hours, tags=["follow"]) for hours in (3, 2, 1)]
    decisions = decide([nightly, *followed], Policy(last=1))
    assert [one.backup for one in decisions.kept] == [nightly.id, followed[-1].id]
    assert {one.group for one in decisions.removed} == {"cluster C1, account A, all streams, followed"}


# --- profiles ---


def test_the_policy_of_a_profile_is_for_what_it_backs_up() -> None:
    own = [ago(days=day, profile="d") for day in range(3)]
    others = [ago(days=day, number=1, profile="a", account="B") for day in range(3)]
    by_hand = [ago(days=9, number=2), ago(days=9, number=3, account="B"), ago(days=8, number=3, account="B")]
    backups = [*own, *others, *by_hand]
    decided = decide(backups, Policy(last=1), profile="d")
    assert removed(decided) == {own[1].id, own[2].id, by_hand[0].id}
    assert reasons(decided)[others[1].id] == "made for profile a"
    assert reasons(decided)[by_hand[1].id] == "of a source that profile d does not back up"
    assert len(removed(decide(backups, Policy(last=1)))) == len(backups) - 2
    # One without backups may be new, or renamed.
    decided = decide(backups, Policy(last=1), profile="tidy")
    assert removed(decided) == set()
    assert reasons(decided)[own[0].id] == "made for profile d"
    assert reasons(decided)[by_hand[0].id] == "of a source that profile tidy does not back up"
    # Where profiles are only used to forget, the policy is for all.
    assert removed(decide(by_hand, Policy(last=1), profile="tidy")) == {by_hand[1].id}


# --- damaged backups ---

EVERY_RULE = [
    Policy(last=1),
    Policy(hourly=1),
    Policy(daily=1),
    Policy(weekly=1),
    Policy(monthly=1),
    Policy(yearly=1),
    Policy(within_seconds=3600),
]


def decide_damaged(backups: Iterable[BackupSummary], policy: Policy, damaged: Iterable[BackupSummary]) -> Decisions:
    now_ns = round(NOW.timestamp()) * 1_000_000_000
    return apply_policy(policy, inventory(backups), (), now_ns=now_ns, damaged=ids(damaged))


@pytest.mark.parametrize("policy", EVERY_RULE)
def test_a_damaged_backup_takes_no_ones_place_under_any_rule(policy: Policy) -> None:
    for days, hours in ((400, 0), (0, 2)):
        old, new = ago(days=days, hours=hours), ago(minutes=5)
        assert kept(decide_damaged([old, new], policy, [new])) == ids([old, new])
        assert reasons(decide_damaged([old, new], policy, [new]))[old.id].startswith("newest complete backup; ")


def test_newer_sound_backups_push_a_damaged_one_out() -> None:
    damaged, sound = ago(days=3), [ago(days=2), ago(days=1)]
    assert kept(decide_damaged([damaged, *sound], Policy(daily=3), [damaged])) == ids([damaged, *sound])
    done = decide_damaged([damaged, *sound], Policy(daily=2), [damaged])
    assert kept(done) == ids(sound)
    assert why_removed(done) == {damaged.id: "damaged, takes no other's place; daily: 2 newer kept"}


def test_a_damaged_backup_does_not_take_the_place_of_another_damaged_one() -> None:
    """They may lack different streams."""
    backups = [ago(hours=hours) for hours in range(4)]
    assert kept(decide_damaged(backups, Policy(last=1), backups)) == ids(backups)
    assert kept(decide_damaged(backups, Policy(last=1), backups[1:])) == {backups[0].id}
    assert kept(decide_damaged(backups, Policy(last=1), backups[:-1])) == ids(backups)


@given(
    rows=st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=12, unique_by=lambda r: r[0]),
    policy=st.builds(
        Policy, last=st.integers(0, 3), daily=st.integers(0, 3), weekly=st.integers(0, 2), monthly=st.integers(1, 2)
    ),
)
def test_sound_backups_are_decided_on_as_if_there_were_no_damaged_ones(
    rows: list[tuple[int, bool, bool]], policy: Policy
) -> None:
    backups = [ago(hours=9 * at, result=COMPLETE if whole else PARTIAL) for at, whole, _ in rows]
    damaged = [backup for backup, (_, _, is_damaged) in zip(backups, rows, strict=True) if is_damaged]
    sound = [backup for backup in backups if backup not in damaged]
    done = decide_damaged(backups, policy, damaged)
    assert kept(done) & ids(sound) == kept(decide(sound, policy))
    for backup in damaged:
        alone = reasons(decide([*sound, backup], policy)).get(backup.id)
        expected = alone and f"damaged, takes no other's place; if it is repaired: {alone}"
        assert reasons(done).get(backup.id) == expected
    if all(whole for _, whole, _ in rows):  # a complete one changes how many partial ones are counted
        # What would stay if everything were sound stays.
        assert kept(decide(backups, policy)) & ids(damaged) <= kept(done)
