"""Allow one run of a command and profile at a time on this machine: the second one reports that and ends.

The first listens on an abstract Unix socket, whose name says command, profile, file and user. The system releases it
when the process ends in any way, so nothing is left behind and no writable folder is needed. On systems without such
sockets runs are not limited. (Leases protect repositories against concurrent commands in general.)
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jsbackup.errors import RepositoryLocked

__all__ = ["alone"]

_log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: unix(7), SO_PEERCRED


@contextmanager
def alone(config: Path, profile: str, command: str) -> Iterator[None]:
    """Hold the lock. Raises RepositoryLocked if the same command is already running."""
    key = "\0".join([str(os.getuid()), str(config.resolve()), profile, command])
    name = f"\0jsbackup-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()}"
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError) as error:
        _log.info("cannot tell whether this runs already: %s", error)
        yield
        return
    with listening:
        try:
            listening.bind(name)
            listening.listen(8)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                _log.info("cannot tell whether this runs already: %s", error.strerror)
            elif (holder := _holder(name)) is not None:
                raise RepositoryLocked(
                    f"the previous {command} of profile {profile} is still running{holder}",
                    hint="This run did nothing. Run it less often, or find out why it takes so long.",
                ) from None
        yield


def _holder(name: str) -> str | None:
    """Return the listening process in words; None if it is another user's, which is ignored."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return ""
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.getuid():
        _log.warning("process %d of another user claims to be this command; it is ignored", pid)
        return None
    return f" (process {pid})"
