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
    from jsbackup.api.arguments import connection
    from jsbackup.api.exporting import ExportedTable, ExportOutcome, export
    from jsbackup.api.runs import (
        PlannedRestore,
        PlannedTarget,
        PutBackOutcome,
        RestoreOutcome,
        StreamOutcome,
        backup,
        backup_async,
        plan,
        plan_async,
        put_back,
        put_back_async,
        restore,
        restore_async,
    )
    from jsbackup.api.stored import (
        Backup,
        BackupRepository,
        Consumer,
        Revision,
        StoredFile,
        Stream,
        StreamMessage,
        open,
    )
    from jsbackup.api.worker import StreamProgress
    from jsbackup.config.connection import Connection
    from jsbackup.planning.rules import Finding
    from jsbackup.putting_back.model import PutBackMessage

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
    "jsbackup.api.arguments": ["connection"],
    "jsbackup.api.exporting": ["ExportOutcome", "ExportedTable", "export"],
    "jsbackup.api.runs": [
        *("PlannedRestore", "PlannedTarget", "PutBackOutcome", "RestoreOutcome", "StreamOutcome"),
        *("backup", "backup_async", "plan", "plan_async", "put_back", "put_back_async", "restore", "restore_async"),
    ],
    "jsbackup.api.stored": [
        *("Backup", "BackupRepository", "Consumer", "Revision", "StoredFile", "Stream", "StreamMessage", "open"),
    ],
    "jsbackup.api.worker": ["StreamProgress"],
    "jsbackup.config.connection": ["Connection"],
    "jsbackup.planning.rules": ["Finding"],
    "jsbackup.putting_back.model": ["PutBackMessage"],
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
