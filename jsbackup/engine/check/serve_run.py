"""One throwaway server to look at a backup with: started, filled from the backup (`serve.py`), proved, and kept.

Nothing is recorded in the repository: what is served may be a part, and is adapted. That is what a drill is for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from jsbackup.engine.check.drill import needed_bytes
from jsbackup.engine.check.drill_folder import drill_folder
from jsbackup.engine.check.drill_run import check_room, proof_code, warn_if_older
from jsbackup.engine.check.drill_server import DrillServers
from jsbackup.engine.check.kept_server import KeptServer, keep_server
from jsbackup.engine.check.read_only import read_permissions
from jsbackup.engine.check.serve import adapt_to_look, fill_server, stored_consumers
from jsbackup.engine.check.server_program import ServerProgram
from jsbackup.engine.restore.restore import RestoreReport
from jsbackup.engine.restore.run import Complete, RestoreRun, RestoreSettings
from jsbackup.planning.model import RestoreOptions
from jsbackup.progress import Progress
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository

__all__ = ["ServeReport", "ServeRun"]


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What is served. `adapted` says by stream what was adapted. `kept` is None if no stream was restored."""

    manifest: Manifest
    version: str
    restored: RestoreReport
    adapted: Mapping[str, Sequence[str]]
    warnings: tuple[str, ...]
    seconds: float
    kept: KeptServer | None

    @property
    def code(self) -> int:
        """The exit code: 0 if everything was restored and proved."""
        return self.restored.code or proof_code(self.restored)


@dataclass(frozen=True, slots=True)
class ServeRun:
    """The streams of `manifest` that `options` choose, on a server whose user may only read if `read_only`.

    `port` is that of 127.0.0.1 to listen on, None for a free one. The server stores in a folder below `work_dir`, or in
    the temporary folder.
    """

    repository: Repository
    manifest: Manifest
    options: RestoreOptions
    server: ServerProgram
    settings: RestoreSettings
    read_only: bool = False
    port: int | None = None
    work_dir: Path | None = None
    random: Callable[[int], bytes] = os.urandom

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before it begins."""
        return warn_if_older(self.manifest, self.server, "served")

    def fill(self, complete: Complete, progress: Progress, keep: ExitStack) -> ServeReport:
        """Start the server, restore and prove; `complete` runs the restore. The server ends when `keep` is closed.

        Raises FormatError for a damaged configuration, UsageError and PlanRefused if there is no place for the server,
        and as `run_restore`.
        """
        clock = time.monotonic()
        manifest, adapted = adapt_to_look(self.manifest, self.options, self.server.version)
        reads = read_permissions(stored_consumers(manifest, self.options)) if self.read_only else None
        with ExitStack() as stack:
            folder = stack.enter_context(drill_folder(self.work_dir))
            servers = stack.enter_context(
                DrillServers(self.server, 1, folder, random=self.random, port=self.port, reads=reads)
            )
            run = RestoreRun(servers.connection, self.options, self.settings, progress)
            restored = complete(
                fill_server(
                    run,
                    self.repository,
                    manifest,
                    check_room=lambda streams: check_room(folder, needed_bytes(streams, 1, self.settings.jobs)),
                    seal=self.read_only,
                )
            )
            kept = None
            if restored.streams:
                kept = keep_server(servers, folder, read_only=self.read_only)
                keep.enter_context(stack.pop_all())
        seconds = time.monotonic() - clock
        return ServeReport(self.manifest, self.server.version, restored, adapted, self.warnings, seconds, kept)
