"""What the jobs that write a backup work with."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.progress import Progress
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.repository import Repository

__all__ = ["JobRun"]

R = TypeVar("R", bound=TaskRunner, covariant=True)


@dataclass(frozen=True, slots=True)
class JobRun(Generic[R]):
    """One run. `runner` runs its tasks. `repository` is open at `place`; tasks open it themselves.

    `lease` is a shared one, renewed by the caller. `random` returns that many random bytes.
    """

    runner: R
    place: RepositoryRef
    repository: Repository
    lease: Lease
    progress: Progress | None = None
    random: Callable[[int], bytes] = os.urandom
