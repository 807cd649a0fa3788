"""jsbackup: verified backup and restore of NATS JetStream streams.

    repository = jsbackup.open("s3://bucket/prefix")
    jsbackup.backup("nats://localhost:4222", repository)
    for batch in repository.latest()["ORDERS"].messages("orders.eu.>", since="24h"):
        ...
    jsbackup.restore(repository.latest(), "nats://localhost:4223", streams=["ORDERS"])

The names in `__all__` are the public interface; see `jsbackup help python`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from jsbackup import errors

__version__ = "0.3.0"

if TYPE_CHECKING:
    from jsbackup.api.backing_up import backup, backup_async
    from jsbackup.api.connecting import connection
    from jsbackup.api.exporting import ExportedTable, ExportOutcome, export
    from jsbackup.api.opening import open
    from jsbackup.api.putting_back import PutBackMessage, PutBackOutcome, put_back, put_back_async
    from jsbackup.api.restoring import (
        PlannedRestore,
        PlannedTarget,
        RestoreOutcome,
        StreamOutcome,
        plan,
        plan_async,
        restore,
        restore_async,
    )
    from jsbackup.api.stored import Backup, BackupRepository
    from jsbackup.api.streams import Consumer, Revision, StoredFile, Stream, StreamMessage
    from jsbackup.api.telling import StreamProgress
    from jsbackup.config import Connection
    from jsbackup.planning.rules import Finding

__all__ = [
    "Backup",
    "BackupRepository",
    "Connection",
    "Consumer",
    "ExportOutcome",
    "ExportedTable",
    "Finding",
    "PlannedRestore",
    "PlannedTarget",
    "PutBackMessage",
    "PutBackOutcome",
    "RestoreOutcome",
    "Revision",
    "StoredFile",
    "Stream",
    "StreamMessage",
    "StreamOutcome",
    "StreamProgress",
    "__version__",
    "backup",
    "backup_async",
    "connection",
    "errors",
    "export",
    "open",
    "plan",
    "plan_async",
    "put_back",
    "put_back_async",
    "restore",
    "restore_async",
]

# Where the names are. Imported on first use: a program only waits for what it uses.
_HOMES = {
    "jsbackup.api.connecting": ["connection"],
    "jsbackup.api.exporting": ["ExportOutcome", "ExportedTable", "export"],
    "jsbackup.api.opening": ["open"],
    "jsbackup.api.putting_back": ["PutBackMessage", "PutBackOutcome", "put_back", "put_back_async"],
    "jsbackup.api.backing_up": ["backup", "backup_async"],
    "jsbackup.api.restoring": [
        "PlannedRestore",
        "PlannedTarget",
        "RestoreOutcome",
        "StreamOutcome",
        *("plan", "plan_async", "restore", "restore_async"),
    ],
    "jsbackup.api.stored": ["Backup", "BackupRepository"],
    "jsbackup.api.streams": ["Consumer", "Revision", "StoredFile", "Stream", "StreamMessage"],
    "jsbackup.api.telling": ["StreamProgress"],
    "jsbackup.config": ["Connection"],
    "jsbackup.planning.rules": ["Finding"],
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(home), name)
                return value
        raise AttributeError(f"module 'jsbackup' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
