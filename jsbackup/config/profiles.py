"""The file of profiles: its location, the names of its tables, variables in its texts; and how TOML files that people
write are read. For the options in it see `jsbackup/cli/profiles/profiles.py`.

    [defaults]                              # under every profile
    repo = "s3://backups/${SITE}"

    [profiles.shop]                         # options that all commands share
    server = "nats://shop.internal:4222"
    password-file = "/etc/jsbackup/shop.password"

    [profiles.shop.backup]                  # options and arguments of one command
    exclude = ["tmp-*"]

    [profiles.shop.hooks]
    ping-url = "${SHOP_PING_URL}"

In texts `${NAME}` is the variable NAME, which must be set, and `$$` a dollar; any other dollar is literal.
"""

from __future__ import annotations

import fnmatch
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jsbackup.config.secrets import home
from jsbackup.config.values import nearest
from jsbackup.errors import UsageError

__all__ = [
    "ConfigFile",
    "default_config_path",
    "examine_config",
    "expand_variables",
    "read_config",
    "read_toml",
    "readable_by_others",
]


_DEFAULTS, _PROFILES = "defaults", "profiles"
# Used in names of files and units.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_GLOB: Final = re.compile(r"[*?\[]")
_DOLLAR: Final = re.compile(r"\$\$|\$\{([^}]*)\}?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, repr=False)
class ConfigFile:
    """The tables from TOML; only their names are checked. `others_read`: users besides its owner can read the file.

    `problems` are errors for unknown tables, which are left out.
    """

    path: Path
    defaults: Mapping[str, Any]
    profiles: Mapping[str, Mapping[str, Any]]
    others_read: bool
    problems: tuple[UsageError, ...] = ()

    def profile(self, name: str) -> Mapping[str, Any]:
        """Return the table of a profile. Raises UsageError if there is none."""
        if name not in self.profiles:
            known = f"There are {', '.join(sorted(self.profiles))}." if self.profiles else "It has none."
            raise UsageError(
                f"{self.path} has no profile {name[:100]!r}", hint=nearest(name, list(self.profiles)) or known
            )
        return self.profiles[name]

    def matching(self, names: Sequence[str]) -> tuple[tuple[str, ...], bool]:
        """Return the profiles that are meant by names and globs, each once, and whether a glob was among them. A glob
        takes them in alphabetical order. Raises UsageError for one that matches none; a name need not exist.
        """
        chosen: dict[str, None] = {}
        for name in names:
            matching = fnmatch.filter(sorted(self.profiles), name)
            if _GLOB.search(name) and not matching:
                self.profile(name)  # says which there are
            chosen |= dict.fromkeys(matching or [name])
        return tuple(chosen), any(map(_GLOB.search, names))


def default_config_path(environ: Mapping[str, str]) -> Path:
    """Return the default location of the file; it need not exist."""
    configured = environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else home(environ) / ".config") / "jsbackup" / "config.toml"


def read_config(path: Path) -> ConfigFile:
    """Read the file. Raises UsageError if it cannot be read, is not TOML, or has unknown tables."""
    file = examine_config(path)
    if file.problems:
        raise file.problems[0]
    return file


def examine_config(path: Path) -> ConfigFile:
    """As `read_config`, but unknown tables are its `problems`."""
    tables: dict[str, dict[str, Any]] = {_DEFAULTS: {}, _PROFILES: {}}
    problems, profiles = [], {}
    for key, table in read_toml(path, "config file").items():
        if key not in tables:
            hint = nearest(key, tables) or "Write [defaults] and [profiles.NAME]."
            problems.append(UsageError(f"{path}: unknown key {key[:100]!r}", hint=hint))
        elif not isinstance(table, dict):
            problems.append(UsageError(f"{path}: {key} is not a table", hint="Write [defaults] and [profiles.NAME]."))
        else:
            tables[key] = table
    for name, table in tables[_PROFILES].items():
        if not _NAME.fullmatch(name):
            hint = "Letters, digits and . _ - make a name, of up to 64 characters."
            problems.append(UsageError(f"{path}: no profile can be named {name[:100]!r}", hint=hint))
        elif not isinstance(table, dict):
            problems.append(UsageError(f"{path}: profile {name} is not a table", hint=f"Write [profiles.{name}]."))
        else:
            profiles[name] = table
    return ConfigFile(path, tables[_DEFAULTS], profiles, readable_by_others(path), tuple(problems))


def readable_by_others(path: Path) -> bool:
    """Return whether users besides its owner can read a file."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """Expand `${NAME}` and `$$` in a text of the file. Raises UsageError for a variable that is not set.

    An empty one in a longer text is refused too: it would change a path to another one.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1]
        if not match[0].endswith("}") or not _VARIABLE.fullmatch(name):
            raise UsageError("${ is not followed by the name of a variable and }", hint="Write $${ if it is text.")
        if name not in environ:
            raise UsageError(f"the variable {name} is not set", hint="Write $$ for a dollar that is text.")
        if not environ[name] and match[0] != text:
            raise UsageError(
                f"the variable {name} is empty", hint="Write the text without the variable if you mean that."
            )
        return environ[name]

    return _DOLLAR.sub(value, text)


MAX_FILE_BYTES: Final = 256 << 10
MAX_LINE_BYTES: Final = 4 << 10  # tomllib needs a time that grows with the square of a dotted key


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the tables of a file; `what` names its kind in errors, such as `runbook`. Raises UsageError."""
    import tomllib  # here, because --help and --version read no files

    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable name"
        raise UsageError(f"cannot read the {what} {path}: {reason.lower()}") from error
    if len(data) > MAX_FILE_BYTES or any(len(line) > MAX_LINE_BYTES for line in data.splitlines()):
        raise UsageError(
            f"{what} {path} is larger than a {what} may be ({MAX_FILE_BYTES} bytes, {MAX_LINE_BYTES} a line)"
        )
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        text = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise UsageError(f"{what} {path} is not TOML: {text[:1].lower()}{text[1:200]}") from None
