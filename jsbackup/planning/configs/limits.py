"""Check a plan against the limits of the target's account before anything is sent.

As nats-server counts (`selectLimits`, `wouldExceedLimits` and `checkBytesLimits` in its jetstream.go, 2.10 to 2.14): an
account has one set of limits or one for each number of replicas (`R1`, `R3`), a tier. Usage is reported for all
replicas together. The storage limit covers all replicas if there is one set, and each replica in a tier; `max_bytes` is
reserved completely. -1 is unlimited.

A replaced stream frees space, but only after a copy of the new one was proved beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jsbackup.model import JsonObject
from jsbackup.planning.model import Action, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.info import StreamInfo, Tier
from jsbackup.readable import format_count

__all__ = ["against_limits"]

_RAISE = "Raise that limit, make room, or leave the stream out with --exclude."


@dataclass(frozen=True, slots=True)
class _Claim:
    """How much of a limited resource an action takes, and how much the stream that it removes frees."""

    action: Action
    takes: int
    frees: int


def against_limits(actions: Sequence[Action], target: Target) -> Iterator[Finding]:
    """Yield a refusal for each stream that would exceed a limit."""
    account = target.account
    if account is None:
        return
    tiers: dict[str, list[Action]] = {}
    for action in actions:
        tiers.setdefault(f"R{_replicas(action.config)}" if account.tiers else "", []).append(action)
    for name, group in tiers.items():
        tier = account.tiers.get(name) if account.tiers else account.usage
        if tier is None:
            known = ", ".join(sorted(account.tiers))
            reason = f"would have {name[1:]} replicas, for which the account has no tier (it has {known})"
            yield from (
                _found(action, Rule.NO_TIER, reason, "Choose a number that has one with --replicas.")
                for action in group
            )
            continue
        yield from _single(group, tier)
        yield from _streams(group, tier, target, name)
        for kept in ("file", "memory"):
            yield from _stored(group, tier, target, name, kept=kept)
            yield from _reserved(group, tier, target, name, kept=kept)


def _single(actions: Iterable[Action], tier: Tier) -> Iterator[Finding]:
    """Yield refusals for each stream on its own."""
    limits = tier.limits
    for action in actions:
        max_bytes = _number(action.config, "max_bytes")
        kept = _kept_in(action.config)
        most = limits.memory_max_stream_bytes if kept == "memory" else limits.storage_max_stream_bytes
        if limits.max_bytes_required and max_bytes <= 0:
            reason = "has no max_bytes, which the account requires"
            yield _found(
                action, Rule.MAX_BYTES_REQUIRED, reason, "Set one with --set max_bytes=BYTES, or change the account."
            )
        elif 0 < most < max_bytes:
            reason = f"has max_bytes {max_bytes}, the account allows {most} for a stream in {kept}"
            yield _found(action, Rule.MAX_STREAM_BYTES, reason, _RAISE)
        if 0 < limits.max_consumers < len(action.consumers):
            consumers = format_count(len(action.consumers), "consumer")
            reason = f"has {consumers}, the account's max_consumers is {limits.max_consumers}"
            yield _found(action, Rule.MAX_CONSUMERS, reason, "Restore it with --consumers none, or raise that limit.")
        for planned in action.consumers:
            pending = _number(planned.consumer.config, "max_ack_pending")
            if 0 < limits.max_ack_pending < pending:
                yield _found(
                    action,
                    Rule.MAX_ACK_PENDING,
                    f"consumer {planned.consumer.name} has max_ack_pending {pending}, the account allows "
                    f"{limits.max_ack_pending}",
                    "Raise that limit, or restore with --consumers none.",
                )


def _streams(actions: Iterable[Action], tier: Tier, target: Target, name: str) -> Iterator[Finding]:
    limit = tier.limits.max_streams if tier.limits.max_streams > 0 else -1
    claims = [_Claim(action, 1, _freed(action, target, name, lambda _: 1)) for action in actions]
    for claim, total in _beyond(claims, tier.streams, limit):
        reason = f"would be stream number {total}; the account's{_of(name)} max_streams is {limit}"
        yield _found(claim.action, Rule.MAX_STREAMS, reason, _RAISE)


def _stored(actions: Sequence[Action], tier: Tier, target: Target, name: str, *, kept: str) -> Iterator[Finding]:
    """Check the bytes of messages, in all replicas."""
    used, limit, called = _storage(tier, kept)
    if name and limit > 0:
        limit *= int(name[1:])

    def held(old: StreamInfo) -> int:
        return old.state.bytes * _replicas(old.config) if _kept_in(old.config) == kept else 0

    claims = [
        _Claim(action, _least_bytes(action) * _replicas(action.config), _freed(action, target, name, held))
        for action in actions
        if _kept_in(action.config) == kept
    ]
    rule = Rule.MAX_MEMORY if kept == "memory" else Rule.MAX_STORAGE
    for claim, total in _beyond(claims, used, limit):
        reason = f"would bring the account to {total} bytes in {kept}, its{_of(name)} {called} is {limit}"
        yield _found(claim.action, rule, reason, _RAISE)


def _reserved(actions: Sequence[Action], tier: Tier, target: Target, name: str, *, kept: str) -> Iterator[Finding]:
    """Check the bytes that `max_bytes` reserves."""
    _, limit, called = _storage(tier, kept)

    def reserves(config: JsonObject) -> int:
        return _number(config, "max_bytes") * (1 if name else _replicas(config)) if _kept_in(config) == kept else 0

    claims = [
        _Claim(action, reserves(action.config), _freed(action, target, name, lambda old: reserves(old.config)))
        for action in actions
        if reserves(action.config)
    ]
    rule = Rule.RESERVED_MEMORY if kept == "memory" else Rule.RESERVED_STORAGE
    reserved = tier.reserved_memory if kept == "memory" else tier.reserved_storage
    for claim, total in _beyond(claims, reserved, limit):
        allowed = f"the account's{_of(name)} {called} is {limit}"
        reason = f"would bring what max_bytes reserve in {kept} to {total} bytes, {allowed}"
        yield _found(claim.action, rule, reason, _RAISE)


def _storage(tier: Tier, kept: str) -> tuple[int, int, str]:
    """Return the usage, the limit, and the limit's name."""
    if kept == "memory":
        return tier.memory, tier.limits.max_memory, "max_memory"
    return tier.storage, tier.limits.max_storage, "max_storage"


def _beyond(claims: Sequence[_Claim], used: int, limit: int) -> Iterator[tuple[_Claim, int]]:
    """Yield the claims that exceed the limit, with the total that they would cause (-1: no limit).

    Only certain cases: others are assumed to have freed their space before, and a replacement needs its own twice.
    """
    if limit < 0:
        return
    freed = sum(claim.frees for claim in claims)
    total = max(0, used - freed)
    for claim in claims:
        total += claim.takes
        beside = max(0, used - freed + claim.frees) + claim.takes if claim.action.replaces else 0
        if max(total, beside) > limit:
            yield claim, max(total, beside)


def _freed(action: Action, target: Target, tier: str, held: Callable[[StreamInfo], int]) -> int:
    """Return how much the existing stream frees in the same tier."""
    old = target.streams.get(action.name)
    if old is None or (tier and tier != f"R{_replicas(old.config)}"):
        return 0
    return held(old)


def _least_bytes(action: Action) -> int:
    """Return the least bytes that the stream takes: as the server reported it, or the messages without the server's
    overhead.
    """
    entry = action.entry
    if not entry.captured.messages or not action.counted:
        return 0
    return min(entry.state.bytes, entry.captured.bytes)


def _replicas(config: JsonObject) -> int:
    return max(1, _number(config, "num_replicas"))


def _number(config: JsonObject, key: str) -> int:
    """Return a count from a config; 0 if there is none or it is invalid."""
    value = config.get(key)
    return max(0, value) if isinstance(value, int) else 0


def _kept_in(config: JsonObject) -> str:
    return "memory" if config.get("storage") == "memory" else "file"


def _of(tier: str) -> str:
    return f" {tier}" if tier else ""


def _found(action: Action, rule: Rule, reason: str, hint: str) -> Finding:
    return Finding(action.entry.name, rule, reason, hint)
