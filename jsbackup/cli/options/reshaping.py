"""Options that change streams: their names, subjects, extent and contents. Slow modules are imported when they are
needed: `--help` and completion load this module.
"""

from __future__ import annotations

import os
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.parsing.context import gathered
from jsbackup.cli.parsing.typed_values import WholeNumber, understand_time
from jsbackup.config import environment, mask_secret
from jsbackup.config.secrets import expand_path
from jsbackup.errors import UsageError
from jsbackup.planning.asked import AskedChanges

if TYPE_CHECKING:
    from jsbackup.transforms.reshape import Reshape

__all__ = [
    "CONDITIONS",
    "NEWEST",
    "RESHAPING",
    "UNMASKABLE",
    "about_messages",
    "mask_key_name",
    "mask_key_option",
    "refuse_obfuscation",
    "reshaping_options",
    "with_key_beside",
]

_KEY_SUFFIX = ".keys.json"  # of the key file beside an obfuscated copy, as with the nats CLI

UNMASKABLE = ("refuse", "drop", "keep")  # as in `transforms/mask.py`

CONDITIONS = (
    click.option(
        "--exclude-subject",
        multiple=True,
        metavar="FILTER",
        help="Leave messages of these subjects out.",
    ),
    click.option(
        "--header",
        multiple=True,
        metavar="NAME[:VALUE]",
        help="Keep messages with this header only.",
    ),
    click.option(
        "--payload-match",
        multiple=True,
        metavar="REGEX",
        help="Keep messages whose payload this matches.",
    ),
)
"""The options of `Filters` except --subject."""

NEWEST = (
    click.option(
        "--last-per-subject",
        type=WholeNumber(1),
        metavar="N",
        help="Keep the newest N of each subject.",
    ),
    click.option(
        "--kv-compact",
        is_flag=True,
        help="Keep the newest revision of keys not deleted.",
    ),
)
"""The options of a `NewestRule`."""

RESHAPING = (
    click.option(
        "--rename",
        multiple=True,
        metavar="OLD=NEW",
        help="Another name; KV_old=KV_new for a bucket; '*=test_*' for all.",
    ),
    click.option(
        "--map-subject",
        multiple=True,
        metavar="'FROM=>TO'",
        help="Change subjects: 'orders.*=>old.orders.$1'.",
    ),
    click.option(
        "--until",
        metavar="TIME_OR_SEQ",
        callback=understand_time,
        help="Keep messages up to and including this moment: 'yesterday 14:02', '2h ago', or a sequence.",
    ),
    click.option(
        "--since",
        metavar="TIME_OR_SEQ",
        callback=understand_time,
        help="Keep messages from this moment or sequence on.",
    ),
    click.option(
        "--subject",
        multiple=True,
        metavar="FILTER",
        help="Keep messages of these subjects only.",
    ),
    *CONDITIONS,
    *NEWEST,
    click.option(
        "--renumber",
        is_flag=True,
        help="Number the kept messages from 1.",
    ),
    click.option(
        "--mask",
        multiple=True,
        metavar="FILTER:WHAT=HOW",
        help="Mask values: '>:$.user.email=hash', '>:header(Name)=redact', '>:payload=zero|drop'.",
    ),
    click.option(
        "--unmaskable",
        type=click.Choice(UNMASKABLE),
        default="refuse",
        show_default=True,
        help="Messages that are not JSON.",
    ),
    click.option(
        "--obfuscate",
        is_flag=True,
        help="Hash names and subjects, zero payloads.",
    ),
    click.option(
        "--obfuscation-key",
        metavar="FILE",
        help="Key file of --obfuscate, made if not there.",
    ),
    click.option(
        "--allow-nothing",
        is_flag=True,
        help="Allow what is asked for to match nothing.",
    ),
)

_MASK_KEY = click.option(
    "--mask-key-file", metavar="FILE", help="Key for hashes, also a pipe [env: JSBACKUP_MASK_KEY_FILE]."
)


def _key_name(mask_key_file: str | None) -> tuple[tuple[str, str | bytes], ...]:
    if not mask_key_file:
        return ()
    file = expand_path(mask_key_file, environment()).absolute()
    if file.is_file() or not file.exists():
        return (("mask_key_file", str(file)),)
    if click.get_current_context().params["spark"] is not None:
        raise UsageError(
            "--mask-key-file: a pipe can be read once, and each process of Spark reads the key",
            hint="Name a file, or set JSBACKUP_MASK_KEY where they run.",
        )
    return (("mask_key_file", mask_secret({"mask_key_file": str(file)}, environment())),)


mask_key_option = gathered(
    "mask_secret", ["mask_key_file"], lambda **given: mask_secret(given, environment()), [_MASK_KEY]
)
"""Add the option for the key for hashes, passed as `mask_secret`; b"" if not given."""

mask_key_name = gathered("mask_key", ["mask_key_file"], _key_name, [_MASK_KEY])
"""Add the same option, passed as `mask_key`: its name and value if given, for processes that read the key. The value is
the key itself if the file is a pipe, which can be read once.
"""


def about_messages(asked: AskedChanges) -> list[str]:
    """Return the options that were given and are about messages alone."""
    others = {"rename", "map_subject", "unmaskable", "obfuscate", "obfuscation_key", "allow_nothing"}
    given = asdict(asked)
    return [
        f"--{name.replace('_', '-')}" for name in given if name not in others and given[name] not in (None, (), False)
    ]


def refuse_obfuscation(reshape: Reshape, what: str) -> None:
    """Raise UsageError if --obfuscate was given, which cannot be combined with that."""
    if reshape.obfuscation is not None:
        raise UsageError(
            f"--obfuscate is not possible with {what}",
            hint="Make an obfuscated backup with 'jsbackup copy', and use that.",
        )


reshaping_options = gathered("asked", [field.name for field in fields(AskedChanges)], AskedChanges, RESHAPING)
"""Add all options of `RESHAPING`, passed as `asked`."""


def with_key_beside(asked: AskedChanges, directory: str) -> AskedChanges:
    """Return the options with a key file beside `directory`, if they obfuscate what is written there and name none.

    Raises UsageError if that file exists.
    """
    if not asked.obfuscate or asked.obfuscation_key is not None or "://" in directory:
        return asked
    key = f"{directory.rstrip('/')}{_KEY_SUFFIX}"
    if os.path.lexists(key):
        raise UsageError(
            f"the key file {key} exists already",
            hint="Name it with --obfuscation-key to use it again, or name another one.",
        )
    return replace(asked, obfuscation_key=key)
