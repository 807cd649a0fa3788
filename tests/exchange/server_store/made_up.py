"""Store folders without a server: the files of our own archives, in several small blocks, encrypted or not.

write_stream(tmp_path / "$G" / "streams", "ORDERS", MESSAGES, key=b"secret")
"""

from __future__ import annotations

import hmac
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from jsbackup.formats import kernels
from jsbackup.formats.archive import archive_v1_writer
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.archive.tar import TarReader
from jsbackup.formats.server_store.ciphers import AssetKey, StoreCipher
from jsbackup.formats.server_store.records import records_of
from jsbackup.model import ArchivedConsumer
from tests.formats.archives import CONFIG, CONSUMERS, CREATED, state_of, written
from tests.harness.batches import Message, batch_of, some_messages

ACCOUNT = "$G"
BLOCK_BYTES = 2_000
MESSAGES = some_messages(60, 80)


@contextmanager
def small_blocks(size: int = BLOCK_BYTES) -> Iterator[None]:
    before = archive_v1_writer._BLOCK_BYTES
    archive_v1_writer._BLOCK_BYTES = size
    try:
        yield
    finally:
        archive_v1_writer._BLOCK_BYTES = before


def write_stream(
    streams: Path,
    name: str = "ORDERS",
    messages: Sequence[Message] = MESSAGES,
    *,
    key: bytes | None = None,
    account: str = ACCOUNT,
    consumers: Sequence[ArchivedConsumer] = CONSUMERS,
    **config: Any,
) -> Path:
    """Write the folder of a stream; return it."""
    whole = {**CONFIG, **config, "name": name}
    with small_blocks():
        state = state_of(messages)
        batches = [batch_of([message]) for message in messages]
        archive = written(ArchiveV1Writer(whole, CREATED, state, consumers), batches)
    files: dict[str, bytes] = {}
    for piece in TarReader().feed(archive):
        files[piece.name] = files.get(piece.name, b"") + piece.data
    if key is not None:
        files = encrypted(files, name, key, account)
    for path, content in files.items():
        target = streams / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return streams / name


def encrypted(files: dict[str, bytes], name: str, key: bytes, account: str) -> dict[str, bytes]:
    """The files as a server keeps them that encrypts with AES."""
    some = random.Random(name)
    found: dict[str, bytes] = {}

    def seal(secret: bytes, content: bytes) -> bytes:
        nonce = some.randbytes(16)
        return nonce + AESGCM(secret).encrypt(nonce, content, None)

    def asset(context: str, path: str) -> AssetKey:
        seed = some.randbytes(32)
        file = seal(hmac.digest(key, (account + context).encode(), "sha256"), seed)
        found[path] = file
        return AssetKey(StoreCipher.AES, seed, file[:16])

    keys = {"": asset(name, "meta.key")}
    for path, content in files.items():
        folder, _, file = path.rpartition("/")
        if folder.startswith("obs/") and folder not in keys:
            keys[folder] = asset(f"{name}.{folder[4:]}", f"{folder}/meta.key")
        if file.endswith(".blk"):
            block = asset(f"{name}:{file[:-4]}", f"msgs/{file[:-4]}.key")
            found[path] = block.decrypt(content)
        elif file == "index.db":
            sealed = seal(keys[""].seed, content[:-8])
            found[path] = sealed + _hash(name, sealed)
        elif file == "meta.inf":
            found[path] = seal(keys[folder].seed, content)
            hash_name = f"{name}/{folder[4:]}" if folder else name
            found[path[:-3] + "sum"] = _hash(hash_name, found[path]).hex().encode()
        elif file == "o.dat":
            found[path] = seal(keys[folder].seed, content)
    return found


def _hash(name: str, content: bytes) -> bytes:
    hasher = kernels.HighwayHash(sha256(name.encode()).digest())
    hasher.update(content)
    return hasher.digest64()


def record_ends() -> set[tuple[str, int]]:
    """The names of the blocks of `MESSAGES`, and where their records end."""
    with TemporaryDirectory() as folder:
        blocks = {path.name: path.read_bytes() for path in write_stream(Path(folder)).glob("msgs/*.blk")}
    return {(name, record.stop) for name, block in blocks.items() for record in records_of(block, 0, len(block))}
