"""Awkward streams whose configuration, or relation to other streams, is the point."""

from __future__ import annotations

from tests.harness.api import headers
from tests.harness.awkward_bench import HOUR_NS, SECOND_NS, Bench, awkward


@awkward("OPTIONS", "description, metadata, denials, direct access, consumer limits, sizes")
async def options(bench: Bench) -> None:
    await bench.create(
        description='every option that is "plain" <&> ünïcode',
        metadata={"owner": "tests", "größe": "日本", "empty": "", "a.b/c": "x" * 1000},
        deny_delete=True,
        deny_purge=True,
        allow_direct=True,
        max_consumers=7,
        max_msg_size=100_000,
        duplicate_window=30 * SECOND_NS,
        consumer_limits={"inactive_threshold": 2 * HOUR_NS, "max_ack_pending": 500},
    )
    await bench.publish_numbered(15)
    await bench.consumer("limited")


@awkward("NO_ACK", "published to without acks, roll-ups allowed")
async def no_ack(bench: Bench) -> None:
    await bench.create(no_ack=True, allow_rollup_hdrs=True)
    for number in range(10):
        await bench.nc.publish(f"{bench.root}.{number}", b"no ack")
    await bench.nc.publish(f"{bench.root}.4", b"rolled up", headers={"Nats-Rollup": "sub"})
    await bench.nc.flush()
    await bench.reach(11)


@awkward("ROLLED_UP", "rolled up by subject and as a whole")
async def rolled_up(bench: Bench) -> None:
    await bench.create(allow_rollup_hdrs=True)
    await bench.publish_numbered(20)
    await bench.publish((f"{bench.root}.1", b"all", headers(("Nats-Rollup", "all"))))
    await bench.publish_numbered(20)
    await bench.publish((f"{bench.root}.1", b"sub", headers(("Nats-Rollup", "sub"))))


@awkward("SEALED", "sealed: nothing goes in or out")
async def sealed(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(20)
    await bench.delete(7)
    await bench.consumer("reader")
    await bench.ack(*(await bench.pull("reader", 4))[:2])
    await bench.update(sealed=True)


@awkward("MANY_SUBJECTS", "several subjects with wildcards, thousands of distinct ones in use")
async def many_subjects(bench: Bench) -> None:
    await bench.create(subjects=[f"{bench.root}.a.*.c", f"{bench.root}.b.>", f"{bench.root}.exact"])
    await bench.publish(*((f"{bench.root}.b.{number // 10}.{number % 10}", b"s", None) for number in range(1500)))
    await bench.publish((f"{bench.root}.a.b.c", b"", None), (f"{bench.root}.exact", b"", None))


@awkward("TRANSFORM", "a subject transform on what comes in")
async def transform(bench: Bench) -> None:
    destination = f"{bench.root}.out.{{{{wildcard(2)}}}}.{{{{wildcard(1)}}}}"
    await bench.create(subject_transform={"src": f"{bench.root}.in.*.*", "dest": destination})
    await bench.publish(*((f"{bench.root}.in.{number % 3}.{number}", b"t", None) for number in range(20)))
    await bench.publish((f"{bench.root}.untouched", b"t", None))


@awkward("REPUBLISH", "republishing what comes in, headers only")
async def republish(bench: Bench) -> None:
    await bench.create(republish={"src": f"{bench.root}.>", "dest": f"again.{bench.root}.>", "headers_only": True})
    await bench.publish_numbered(20)


@awkward("ORIGIN", "what mirrors and sources copy: with headers, gaps and a purged head")
async def origin(bench: Bench) -> None:
    await bench.create(allow_direct=True)
    await bench.publish_numbered(60)
    await bench.purge(seq=6)
    await bench.delete(20, 30, 31)


@awkward("MIRROR", "a mirror of ORIGIN, with a consumer")
async def mirror(bench: Bench) -> None:
    await bench.create(mirror={"name": bench.sibling("ORIGIN")}, mirror_direct=True)
    await bench.reach(60)
    await bench.consumer("reader")
    await bench.ack(*(await bench.pull("reader", 5))[1:3])


@awkward("MIRROR_PART", "a mirror of a part of ORIGIN: filtered, transformed, from a sequence on")
async def mirror_part(bench: Bench) -> None:
    source = f"{_origin_root(bench)}.1"
    transforms = [{"src": source, "dest": f"{bench.root}.mirrored"}]
    await bench.create(mirror={"name": bench.sibling("ORIGIN"), "opt_start_seq": 11, "subject_transforms": transforms})
    await bench.reach(57)


@awkward("SOURCES", "sources of ORIGIN and PER_SUBJECT_5, filtered and transformed, and subjects of its own")
async def sources(bench: Bench) -> None:
    other = "per_subject_5" if bench.storage == "file" else "m.per_subject_5"
    moved = [{"src": f"{_origin_root(bench)}.2", "dest": f"{bench.root}.moved"}]
    await bench.create(
        sources=[
            {"name": bench.sibling("ORIGIN"), "subject_transforms": moved},
            {"name": bench.sibling("PER_SUBJECT_5"), "filter_subject": f"{other}.rare"},
        ],
        subjects=[f"{bench.root}.own.>"],
    )
    # Eleven of ORIGIN's messages are on that subject, one is rare.
    await bench.reach(await _count(bench, "ORIGIN", f"{_origin_root(bench)}.2") + 1)
    await bench.publish((f"{bench.root}.own.1", b"own", None), (f"{bench.root}.own.2", b"own", headers(("A", "1"))))


def _origin_root(bench: Bench) -> str:
    return "origin" if bench.storage == "file" else "m.origin"


async def _count(bench: Bench, stream: str, subject: str) -> int:
    info = await bench.call(f"STREAM.INFO.{bench.sibling(stream)}", {"subjects_filter": subject})
    count: int = info["state"]["subjects"][subject]
    return count
