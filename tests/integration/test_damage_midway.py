"""Objects that are damaged when a restore reads them: nothing of their stream stays, and what was there before does.

The server takes small chunks, and little is read ahead, so that a part of the stream has been sent when the damage is
found.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from jsbackup.config import Glob
from jsbackup.engine.restore.restore import RestoreReport, run_restore
from jsbackup.engine.restore.restore_transfer import TransmitLimits
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.errors import IntegrityError, JsBackupError
from jsbackup.planning.model import IfExists, RestoreOptions, SendAs
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.refs import AnyRef, SegmentRef
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.harness.api import call, connected
from tests.harness.backups import FIRST, make_repository
from tests.harness.damage import DAMAGES, MESSAGES, put_instead, store_restorable, swap
from tests.harness.servers import NEWEST, VERSIONS, NatsServer
from tests.harness.small_pages import make_pages_small
from tests.integration.large import Standing, standing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

CHUNK = 8192
LIMITS = TransmitLimits(ahead_bytes=CHUNK)
ONCE = RestoreSettings(jobs=2, window_bytes=CHUNK, limits=LIMITS)
ORDERS = Standing(len(MESSAGES), MESSAGES[-1].sequence, False)


@dataclass(frozen=True, slots=True)
class Scene:
    """A repository whose objects can be damaged, and a server that is empty."""

    store: MemoryStore
    manifest: Manifest
    server: NatsServer

    @property
    def orders(self) -> StreamBackup:
        return next(one for one in self.manifest.streams if one.name == "ORDERS")

    def restore(self, *names: str, settings: RestoreSettings = ONCE, **options: object) -> RestoreReport:
        repository = Repository.open(self.store)
        asked = replace(RestoreOptions(tuple(map(Glob, names or ("ORDERS",)))), **options)
        run = RestoreRun(connection_to(self.server.url), asked, settings)
        return asyncio.run(run_restore(run, repository, repository.manifest(FIRST)))

    def failure(self, *names: str, settings: RestoreSettings = ONCE, **options: object) -> JsBackupError:
        """How it fails, whether before anything was sent or later."""
        try:
            report = self.restore(*names, settings=settings, **options)
        except JsBackupError as error:
            return error
        assert report.code == IntegrityError.exit_code and not report.streams
        return report.failures[0].error

    def standing(self) -> dict[str, Standing]:
        return standing(self.server.url)

    def clear(self) -> None:
        async def clear() -> None:
            async with connected(self.server.url) as nc:
                for name in self.standing_names:
                    await call(nc, f"STREAM.DELETE.{name}")

        asyncio.run(clear())

    @property
    def standing_names(self) -> list[str]:
        return list(self.standing())


@pytest.fixture(params=[(VERSIONS[1], SendAs.V1), (NEWEST, SendAs.V1), (NEWEST, SendAs.V2)], ids=str)
def sent(request: pytest.FixtureRequest) -> tuple[str, SendAs]:
    version, wire = request.param
    return version, wire
