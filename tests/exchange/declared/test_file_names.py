"""Files of resources lie side by side also where a file system ignores case; their resources keep their names."""

from __future__ import annotations

import json
from pathlib import Path

from jsbackup.exchange.config_files import StreamConfigs
from jsbackup.exchange.declared.nack import read_nack_files, write_nack_files
from jsbackup.exchange.declared.terraform import read_terraform_files, write_terraform_files
from jsbackup.exchange.folder import Folder, NewFolder
from tests.exchange.folders import tree

NAMES = ("UPPER", "upper", "A_B", "a_b", "A-", "plain", "Plain2", "N" * 255, "n" * 255)


def test_no_two_files_differ_in_case_only(tmp_path: Path) -> None:
    streams = [StreamConfigs({"name": name}, {}) for name in NAMES]
    for kind, write, read in (
        ("nack", write_nack_files, read_nack_files),
        ("terraform", write_terraform_files, read_terraform_files),
    ):
        with NewFolder(tmp_path / kind, "token", 0o777) as new:
            write(new, streams)
            new.commit()
        files = tree(tmp_path / kind)
        assert len({name.lower() for name in files}) == len(files)
        with Folder.open(tmp_path / kind) as root:
            assert {one.name for one in read(root, sorted(root.entries())).streams()} == set(NAMES)
    labels = {
        label: name
        for name, content in files.items()
        for label in json.loads(content).get("resource", {}).get("jetstream_stream", ())
    }
    assert {"UPPER", "upper", "A_B", "a_b"} < labels.keys()  # another name would be another resource
    assert labels["plain"] == "stream-plain.tf.json"
    assert labels["UPPER"].startswith("stream-UPPER-")
    assert labels["upper"].startswith("stream-upper-")
