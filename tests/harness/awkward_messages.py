"""Awkward streams whose messages, gaps and limits are the point."""

from __future__ import annotations

import base64
import hashlib
import json

from tests.harness.api import headers
from tests.harness.awkward_bench import HOUR_NS, LONG_NS, V2_11, V2_12, V2_14, Bench, awkward


@awkward("PAYLOADS", "payloads of 0 bytes up to the server's maximum, of every size where a length field grows")
async def payloads(bench: Bench) -> None:
    await bench.create()
    maximum = bench.nc.max_payload
    sizes = [0, 0, 1, 2, 127, 128, 255, 256, 4095, 16384, 65535, 65536, 100_001, maximum - 1, maximum]
    # Zeros compress best, random bytes not at all: both ends of what a block codec meets.
    batch: list[tuple[str, bytes, bytes | None]]
    batch = [(f"{bench.root}.{size}", bench.random.randbytes(size), None) for size in sizes if size <= maximum]
    batch += [(f"{bench.root}.zeros", bytes(size), None) for size in (1, 70_000, maximum // 2)]
    with_headers = headers(("Kind", "with headers"))
    batch += [(f"{bench.root}.headed", bytes(size), with_headers) for size in (0, 1, maximum - len(with_headers))]
    await bench.publish(*batch)


@awkward("HEADERS", "repeated, empty, Unicode, long and malformed headers, and header blocks without a line")
async def header_blocks(bench: Bench) -> None:
    await bench.create()
    blocks = [
        headers(("A", "1")),
        headers(("A", "1"), ("A", "2"), ("a", "3"), ("A", "1")),
        headers(("Empty", ""), ("Empty", ""), ("Spaces", "   ")),
        headers(("Größe", "größer als 日本語 😀"), ("😀", "🎉")),
        headers(*((f"Key-{number}", "v" * number) for number in range(200))),
        headers(("Long", "x" * 60_000)),
        headers(("Colon", "a: b: c"), ("Quote", "\"'\\")),
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nNo-Space:1\r\nTrailing: 2  \r\n\r\n",
        b"NATS/1.0 204 Some Status\r\nAfter: status\r\n\r\n",
        b"NATS/1.0\r\nBinary: \x00\x01\xff\xfe\r\n\r\n",
        b"NATS/1.0\r\nno colon at all\r\n\r\n",
        headers(("Nats-Msg-Id", "dedupe-1"), ("Nats-Expected-Stream", bench.name)),
    ]
    await bench.publish(*((f"{bench.root}.h", b"data", block) for block in blocks))
    await bench.publish(*((f"{bench.root}.h", b"", block) for block in blocks[:-1]))
    await bench.publish((f"{bench.root}.h", b"no headers", None))


@awkward("Größe-日本-😀", "a stream name and subjects beyond ASCII", key="UNICODE")
async def unicode_names(bench: Bench) -> None:
    await bench.create(subjects=[f"{bench.root}.ß.>", f"{bench.root}.日本.*"], description="Straße, 東京, 🚀")
    subjects = ["ß.größe", "ß.😀.🎉", "日本.東京", "日本.e\u0301", "ß.\u00e9", "ß.a=b&c<d>'\"\\/%00+", "ß.\u200b"]
    await bench.publish(*((f"{bench.root}.{subject}", subject.encode(), None) for subject in subjects))
    await bench.consumer("Verbraucher-ü-消費者", filter_subject=f"{bench.root}.ß.>")
    await bench.ack(*(await bench.pull("Verbraucher-ü-消費者", 3))[:1])


@awkward("N" * 230, "a name almost as long as a file name may be, and subjects of thousands of bytes", key="LONG_NAMES")
async def long_names(bench: Bench) -> None:
    await bench.create(subjects=["long.>" if bench.storage == "file" else "m.long.>"])
    root = "long" if bench.storage == "file" else "m.long"
    deep = ".".join("t" for _ in range(15))
    await bench.publish((f"{root}.{'s' * 3000}", b"long", None), (f"{root}.{deep}", b"deep", None))
    await bench.consumer("C" * 200)
    await bench.pull("C" * 200, 1)


@awkward("NOT_UTF8", "subjects that are not UTF-8, as old clients in Latin-1 write them")
async def not_utf8(bench: Bench) -> None:
    # Allowed direct access is what shows the subject's bytes: the JSON API replaces them.
    await bench.create(allow_direct=True)
    root = bench.root.encode()
    await bench.publish((root + b".gr\xf6\xdfe", b"latin-1", None), (root + b".\xff\xfe", b"", headers(("A", "b"))))
    await bench.publish((root + b".plain", b"plain", None))


@awkward("GAPS", "messages deleted one by one: overwritten ones and marked ones, at the head, inside, in runs")
async def gaps(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(120)
    await bench.delete(1, 2, 10, 50, 51, 52, 90)
    await bench.delete(3, 11, 70, 71, 73, 75, secure=True)
    await bench.publish_numbered(5, start=120)
    await bench.delete(119, 121)


@awkward("DELETED_TAIL", "the last messages deleted: the last sequence is of no message")
async def deleted_tail(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(30)
    await bench.delete(29)
    await bench.delete(30, 28, secure=True)


@awkward("DELETED_ENDS", "head and tail deleted around one message")
async def deleted_ends(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(9)
    await bench.delete(9, 8, 7, 6, 1, 2, 3, 4)


@awkward("PURGED_SEQ", "purged up to a sequence")
async def purged_sequence(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(40)
    await bench.purge(seq=26)


@awkward("PURGED_KEEP", "purged but for the last three, then published to")
async def purged_keep(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(40)
    await bench.purge(keep=3)
    await bench.publish_numbered(2, start=40)


@awkward("PURGED_FILTER", "one subject purged: gaps all over")
async def purged_filter(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(60)
    await bench.purge(filter=f"{bench.root}.2")
    await bench.purge(filter=f"{bench.root}.0", keep=2)


@awkward("EMPTIED", "purged: no message, but a last sequence")
async def emptied(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(25)
    await bench.purge()


@awkward("EMPTIED_BY_DELETE", "emptied message by message")
async def emptied_by_delete(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(12)
    await bench.delete(*range(12, 0, -1))


@awkward("EMPTIED_CONSUMED", "purged, with a consumer that had delivered and one that had not")
async def emptied_consumed(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(10)
    await bench.consumer("half")
    await bench.consumer("untouched")
    await bench.ack(*(await bench.pull("half", 6))[:3])
    await bench.purge()


@awkward("NEVER_USED", "never published to")
async def never_used(bench: Bench) -> None:
    await bench.create()


@awkward("NEVER_USED_FIRST", "never published to, with a first sequence and a consumer")
async def never_used_first(bench: Bench) -> None:
    await bench.create(first_seq=1_000_000)
    await bench.consumer("waiting")


@awkward("FIRST_SEQ", "numbers that start beyond 32 bits")
async def first_seq(bench: Bench) -> None:
    await bench.create(first_seq=5_000_000_000)
    await bench.publish_numbered(20)
    await bench.delete(5_000_000_003)


@awkward("PER_SUBJECT_1", "one message per subject: most are gone, the survivors far apart")
async def per_subject_1(bench: Bench) -> None:
    await bench.create(max_msgs_per_subject=1)
    await bench.publish_numbered(5, subjects=5)
    for start in range(5, 150, 29):
        await bench.publish_numbered(29, subjects=3, start=start)


@awkward("PER_SUBJECT_5", "five messages per subject, and a subject that never fills up")
async def per_subject_5(bench: Bench) -> None:
    await bench.create(max_msgs_per_subject=5)
    await bench.publish((f"{bench.root}.rare", b"rare", None))
    await bench.publish_numbered(200, subjects=7)


@awkward("MAX_MSGS", "the oldest discarded by number")
async def max_msgs(bench: Bench) -> None:
    await bench.create(max_msgs=50, discard="old")
    await bench.publish_numbered(90)


@awkward("MAX_BYTES", "the oldest discarded by size")
async def max_bytes(bench: Bench) -> None:
    await bench.create(max_bytes=20_000, discard="old")
    await bench.publish_numbered(60, size_bytes=900)


@awkward("DISCARD_NEW", "full, and refusing what is new")
async def discard_new(bench: Bench) -> None:
    await bench.create(max_msgs=20, max_bytes=100_000, max_msg_size=5000, discard="new")
    await bench.publish_numbered(20)


@awkward("DISCARD_NEW_PER", "full per subject, and refusing what is new")
async def discard_new_per_subject(bench: Bench) -> None:
    await bench.create(max_msgs_per_subject=2, discard="new", discard_new_per_subject=True)
    await bench.publish_numbered(10, subjects=5)


@awkward("MAX_AGE", "an age limit, not reached")
async def max_age(bench: Bench) -> None:
    await bench.create(max_age=LONG_NS, duplicate_window=HOUR_NS)
    await bench.publish(
        *((f"{bench.root}.{number}", b"old", headers(("Nats-Msg-Id", f"{number}"))) for number in range(9))
    )


# Blocks of the file store have 8 MiB. These streams fill as many as they need, since most of a fill's time goes there.
@awkward("BIG", "18 MB over three blocks of the file store, some of them compacted")
async def big(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(1100, size_bytes=16_000)
    # Most of the first block and a fifth of all that follows: enough for the server to compact blocks.
    await bench.delete(*(sequence for sequence in range(2, 480) if sequence % 4))
    await bench.purge(filter=f"{bench.root}.3")


@awkward("BIG_HEADLESS", "whole blocks purged: the first block left is not number one")
async def big_headless(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(50, size_bytes=250_000)
    await bench.purge(keep=9)


@awkward("BIG_TAILLESS", "the whole last block deleted: the last sequence is of a block that is gone")
async def big_tailless(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(40, size_bytes=250_000)
    await bench.delete(*range(40, 30, -1))


@awkward("COMPRESSED", "blocks compressed by the server, big enough to be flushed compressed", file_only=True)
async def compressed(bench: Bench) -> None:
    await bench.create(compression="s2")
    await bench.publish_numbered(560, size_bytes=16_000)
    await bench.delete(*range(100, 160))


@awkward("TTL", "times to live of a year, for ever, and none", since=V2_11)
async def message_ttl(bench: Bench) -> None:
    await bench.create(allow_msg_ttl=True)
    lives = ["8760h", "never", "31536000", None, "20000h"]
    await bench.publish(
        *(
            (f"{bench.root}.{n}", b"ttl", headers(("Nats-TTL", life)) if life else None)
            for n, life in enumerate(lives * 3)
        )
    )
    await bench.delete(2, 6)


@awkward("TTL_MARKERS", "subjects that expired and left a delete marker of the server", since=V2_11)
async def delete_markers(bench: Bench) -> None:
    # Without a limit per subject the servers look for expired messages much later.
    await bench.create(
        allow_msg_ttl=True, allow_rollup_hdrs=True, subject_delete_marker_ttl=LONG_NS, max_msgs_per_subject=1
    )
    soon = headers(("Nats-TTL", "1s"))
    await bench.publish((f"{bench.root}.kept", b"kept", None))
    await bench.publish(*((f"{bench.root}.{number}", b"gone soon", soon) for number in range(3)))
    await bench.reach(7)


@awkward("COUNTER", "a counter stream", since=V2_12)
async def counter(bench: Bench) -> None:
    await bench.create(allow_msg_counter=True, allow_direct=True)
    steps = ["+1", "+41", "-7", "0", "+99999999999999999999999999"]
    await bench.publish(
        *((f"{bench.root}.{number % 2}", b"", headers(("Nats-Incr", step))) for number, step in enumerate(steps * 2))
    )


@awkward("COUNTER_LAST", "a counter stream that keeps the last value of each counter", since=V2_12)
async def counter_last(bench: Bench) -> None:
    await bench.create(allow_msg_counter=True, allow_direct=True, max_msgs_per_subject=1)
    await bench.publish(*((f"{bench.root}.{number % 3}", b"", headers(("Nats-Incr", "+2"))) for number in range(12)))


@awkward("SCHEDULES", "messages scheduled for the far future", since=V2_12)
async def schedules(bench: Bench) -> None:
    await bench.create(allow_msg_schedules=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
    target = ("Nats-Schedule-Target", f"{bench.root}.target")
    plans = [
        (("Nats-Schedule", "@at 2070-01-01T00:00:00Z"), target),
        (("Nats-Schedule", "@at 2071-05-01T12:30:00Z"), target, ("Nats-Schedule-TTL", "1h"), ("Own", "header")),
    ]
    if bench.version >= V2_14:
        plans.append((("Nats-Schedule", "@every 24h"), target))
        plans.append((("Nats-Schedule", "0 0 5 1 1 *"), target))
    await bench.publish(*((f"{bench.root}.plan.{n}", b"later", headers(*plan)) for n, plan in enumerate(plans)))
    await bench.publish((f"{bench.root}.plain", b"now", None))


@awkward("ATOMIC", "messages of atomic batches", since=V2_12)
async def atomic(bench: Bench) -> None:
    await bench.create(allow_atomic=True)
    for batch in ("one", "two"):
        for number in range(1, 6):
            pairs = [("Nats-Batch-Id", batch), ("Nats-Batch-Sequence", str(number))]
            pairs += [("Nats-Batch-Commit", "1")] if number == 5 else []
            await bench.publish((f"{bench.root}.{number}", batch.encode(), headers(*pairs)))
    await bench.publish_numbered(3)


@awkward("PERSIST_ASYNC", "asynchronous persistence", since=V2_12, file_only=True)
async def persist_async(bench: Bench) -> None:
    # R3 streams refuse it.
    await bench.create(persist_mode="async", num_replicas=1)
    await bench.publish_numbered(20)


@awkward("BATCHED", "fast batch publishing allowed", since=V2_14)
async def batched(bench: Bench) -> None:
    await bench.create(allow_batched=True)
    await bench.publish_numbered(20)


@awkward("KV_history", "a key-value bucket with history, deletes and purges", key="KV")
async def key_value(bench: Bench) -> None:
    await _bucket(bench, history=5)
    delete, purge = headers(("KV-Operation", "DEL")), headers(("KV-Operation", "PURGE"), ("Nats-Rollup", "sub"))
    for round_number in range(8):
        await bench.publish(*((f"{bench.root}.key.{key}", b"%d" % round_number, None) for key in range(6)))
    await bench.publish((f"{bench.root}.key.1", b"", delete), (f"{bench.root}.key.2", b"", purge))
    await bench.publish((f"{bench.root}.key.3", b"", delete), (f"{bench.root}.key.3", b"back", None))
    await bench.publish((f"{bench.root}.with=odd/key_name-1", b"", None))


@awkward("KV_ttl", "a key-value bucket whose keys have times to live and markers", since=V2_11, key="KV_TTL")
async def key_value_ttl(bench: Bench) -> None:
    await _bucket(bench, history=1, allow_msg_ttl=True, subject_delete_marker_ttl=LONG_NS)
    purge = headers(("KV-Operation", "PURGE"), ("Nats-Rollup", "sub"), ("Nats-TTL", "9999h"))
    await bench.publish((f"{bench.root}.short", b"value", headers(("Nats-TTL", "1s"))))
    await bench.publish((f"{bench.root}.long", b"value", headers(("Nats-TTL", "8760h"))))
    await bench.publish((f"{bench.root}.plain", b"value", None), (f"{bench.root}.purged", b"value", None))
    await bench.publish((f"{bench.root}.purged", b"", purge))
    await bench.reach(6)


async def _bucket(bench: Bench, *, history: int, **config: object) -> None:
    # What clients make for a bucket; source: NATS architecture decision record 8.
    bench.root = f"$KV.{bench.name.removeprefix('KV_')}"
    await bench.create(
        max_msgs_per_subject=history,
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
        **config,
    )


@awkward("OBJ_store", "an object store with several objects, an empty one, a deleted one and a link", key="OBJECTS")
async def object_store(bench: Bench) -> None:
    # What clients make for an object store; source: NATS architecture decision record 20.
    bucket = bench.name.removeprefix("OBJ_")
    bench.root = f"$O.{bucket}"
    subjects = [f"{bench.root}.C.>", f"{bench.root}.M.>"]
    await bench.create(subjects=subjects, discard="new", allow_rollup_hdrs=True, allow_direct=True)
    sizes = {"one chunk": 5000, "größer/日本.bin": 300_000, "empty": 0, "deleted": 150_000}
    for number, (name, size) in enumerate(sizes.items()):
        content = bench.payload(size)
        chunks = [content[at : at + 128 * 1024] for at in range(0, size, 128 * 1024)]
        nuid = f"NUID{number:018d}"
        await bench.publish(*((f"{bench.root}.C.{nuid}", chunk, None) for chunk in chunks))
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
        meta = {"name": name, "bucket": bucket, "nuid": nuid, "size": size, "mtime": "2026-01-01T00:00:00Z"}
        meta |= {"chunks": len(chunks), "digest": f"SHA-256={digest}", "options": {"max_chunk_size": 128 * 1024}}
        await _object_meta(bench, name, meta)
        if name == "deleted":
            await bench.purge(filter=f"{bench.root}.C.{nuid}")
            await _object_meta(bench, name, meta | {"size": 0, "chunks": 0, "digest": "", "deleted": True})
    link = {"name": "link", "bucket": bucket, "nuid": "NUIDlink", "size": 0, "chunks": 0}
    await _object_meta(bench, "link", link | {"options": {"link": {"bucket": bucket, "name": "one chunk"}}})


async def _object_meta(bench: Bench, name: str, meta: dict[str, object]) -> None:
    subject = f"{bench.root}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
    await bench.publish((subject, json.dumps(meta).encode(), headers(("Nats-Rollup", "sub"))))
