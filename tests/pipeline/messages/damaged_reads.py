"""A process that reads a segment after each of many changes of its bytes; such a change must not end it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jsbackup.errors import IntegrityError
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.bounds import ALL, Bounds
from jsbackup.pipeline.messages.segment_rows import segment_rows
from jsbackup.pipeline.session.repository_ref import opened, place_of
from jsbackup.planning.selection.kept_messages import newest_in_segment
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.reshape import Reshape


def main(location: str, step: int) -> None:
    """Print how many changes were found."""
    place = place_of(location, S3Settings(), {})
    objects = opened(place).objects
    ref = opened(place).manifest(opened(place).backups()[0]).streams[0].segments[0]
    path = Path(location) / ref.key
    path.chmod(0o600)
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    wanted = Bounds(sequence=(ref.last_seq, ref.last_seq))

    def scan(bounds: Bounds) -> None:
        for _ in segment_rows(opened(place), ref, ("sequence", "subject"), bounds, stream="A", backup=""):
            pass

    found = 0
    for at in range(len(data) - footer, len(data), step):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
            for read in (
                lambda: scan(ALL),
                lambda: scan(wanted),
                lambda: newest_in_segment(objects, ref, "A", Reshape(), rule=NewestRule()),
            ):
                try:
                    read()
                except IntegrityError as error:
                    assert ref.key in error.message, error
                    found += 1
                else:
                    raise AssertionError(f"byte {at - len(data)} changed by {flip:#x}, and nobody noticed")
    os.write(1, b"%d" % found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
