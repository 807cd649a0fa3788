"""Streams that a command did without, because the lists of their segments cannot be read."""

from __future__ import annotations

from collections.abc import Mapping

from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject

__all__ = ["broken_json", "tell_broken"]


def broken_json(broken: Mapping[str, JsBackupError]) -> list[JsonObject]:
    return [{"name": name, "code": e.exit_code, "reason": e.message} for name, e in broken.items()]


def tell_broken(output: Output, broken: Mapping[str, JsBackupError]) -> None:
    tell_each(output, (Said("failed", name, error.message, error.hint or "") for name, error in broken.items()))
