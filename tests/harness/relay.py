"""A command `jsbackup` for shells of tests, which starts as quickly as the tests' own commands (`warm.py`).

A script hands its arguments, environment, folder and streams to the test process over a socket, and ends as the command
does that is started there. Of the script nothing else runs, so a signal to it does not reach the command.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.harness.commands import command_line

_MOST_REQUEST_BYTES = 1 << 20
# Not `json`, nor anything else that takes long to import.
_SCRIPT = """#!{python} -IS
import marshal, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls:
    calls.connect({address!r})
    socket.send_fds(calls, [marshal.dumps((sys.argv[1:], dict(os.environ), os.getcwd()))], [0, 1, 2])
    sys.exit(int(calls.recv(64)))
"""


@contextlib.contextmanager
def relayed(script: Path) -> Iterator[None]:
    """Write the script; it works as long as this context lasts. Commands may run beside each other."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("")  # to an address of its own that is no file
        script.write_text(_SCRIPT.format(python=sys.executable, address=listening.getsockname()))
        script.chmod(0o755)
        listening.listen()
        accepting = threading.Thread(target=_accept, args=(listening,), daemon=True)
        accepting.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listening: socket.socket) -> None:
    while True:
        try:
            call, _ = listening.accept()
        except OSError:  # it was shut down
            return
        threading.Thread(target=_answer, args=(call,), daemon=True).start()


def _answer(call: socket.socket) -> None:
    with call:
        data, ends, _, _ = socket.recv_fds(call, _MOST_REQUEST_BYTES, 3)
        arguments, environment, folder = marshal.loads(data)
        # The shell has it for other commands. With it, this one would not be started quickly.
        environment.pop("LC_ALL", None)
        try:
            done = subprocess.run(
                command_line(*arguments), stdin=ends[0], stdout=ends[1], stderr=ends[2], cwd=folder, env=environment
            )
        finally:
            for end in ends:
                os.close(end)
        call.send(b"%d" % done.returncode)
