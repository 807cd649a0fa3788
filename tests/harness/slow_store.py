"""`python -m tests.harness.slow_store SECONDS OPERATION COMMAND…`: jsbackup with a local store that is slow.

Every `put` or `get` of a segment takes so many seconds, in a call that nothing can interrupt, as on a network file
system that hangs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from jsbackup.cli import main as cli
from jsbackup.stores.local import LocalStore


def main() -> None:
    seconds, operation = float(sys.argv[1]), sys.argv[2]
    real = getattr(LocalStore, operation)

    def slow(self: LocalStore, key: str, *rest: Any) -> Any:
        if key.startswith("segments/"):
            sys.stderr.write(f"{operation} {key}\n")
            sys.stderr.flush()
            time.sleep(seconds)
        return real(self, key, *rest)

    setattr(LocalStore, operation, slow)
    sys.argv[1:] = sys.argv[3:]
    cli.main()


if __name__ == "__main__":
    main()
