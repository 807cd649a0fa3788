"""What `forget` keeps by a profile, for commands that only tell of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import CommandContext, Shared
from jsbackup.cli.parsing.typed_values import parse_tag_rule
from jsbackup.config import parse_duration, read_config

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import Policy

__all__ = ["policy_in_use"]


def policy_in_use(ctx: click.Context, shared: Shared) -> Policy | None:
    """Return what `forget` keeps by the profile that a command runs with; None without one, and if it does not say.

    Raises UsageError for a wrong value.
    """
    from jsbackup.repository.keep.retention import Policy

    if shared.config is None or not shared.profile:
        return None
    assert isinstance(ctx, CommandContext) and isinstance(ctx.command, Command)
    profile = ctx.command.read_profile(ctx, read_config(shared.config), shared.profile, table=["forget"])
    if profile.problems:
        raise profile.problems[0]
    values = profile.values("forget")
    within = values.get("keep_within")

    def number(name: str) -> int:
        return int(values.get(f"keep_{name}") or 0)

    policy = Policy(
        last=number("last"),
        hourly=number("hourly"),
        daily=number("daily"),
        weekly=number("weekly"),
        monthly=number("monthly"),
        yearly=number("yearly"),
        within_seconds=parse_duration(str(within)) if within else 0,
        tags=tuple(parse_tag_rule(str(one)) for one in values.get("tags") or ()),
    )
    return None if policy.is_empty else policy
