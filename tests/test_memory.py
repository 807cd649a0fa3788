"""What glibc itself says of its heaps."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.commands import environment
from tests.harness.servers import missing

TWO = min(2, len(os.sched_getaffinity(0)))  # more are never made than there are cores

PROGRAM = """
import ctypes, threading
from jsbackup import memory

{first}
barrier = threading.Barrier(3)

def take():
    some = [bytearray(50_000) for _ in range(100)]
    barrier.wait()

threads = [threading.Thread(target=take) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
memory.give_back()
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.parametrize(("first", "one"), [("memory.keep_one_heap()", True), ("", False)])
def test_threads_share_a_heap_if_that_was_asked_for(first: str, one: bool) -> None:
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        missing("the C library is not glibc")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stderr.count("Arena") == 1) == one


def test_arrow_takes_from_that_heap_too() -> None:
    program = "from jsbackup import memory; memory.keep_one_heap()\n"
    program += "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "system\n"


FRAGMENTED = """
from jsbackup import memory

memory.keep_one_heap()
some = [bytearray(100_000) for _ in range({blocks})]
del some[::2], some[::2]
before = memory._resident_bytes()
memory.stay_small()
print(before - memory._resident_bytes())
"""


@pytest.mark.parametrize(("mib", "given_back"), [(400, True), (100, False)])
def test_what_lies_between_what_is_in_use_is_given_back_by_a_large_process_only(mib: int, given_back: bool) -> None:
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        missing("the C library is not glibc")
    program = FRAGMENTED.format(blocks=mib * (1 << 20) // 100_000)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (int(done.stdout) > 200 << 20) == given_back


def test_a_command_does_without_numpy_until_it_needs_spark() -> None:
    program = "import sys; from jsbackup import memory; memory.keep_one_heap(); import pyarrow\n"
    program += "print(sys.modules['numpy']); import jsbackup.pipeline, numpy; print(numpy.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None\nnumpy\n"


@pytest.mark.parametrize(("first", "threads"), [("", TWO), ("memory.keep_one_heap(); import jsbackup.pipeline", 1)])
def test_a_command_has_no_threads_of_numpy(first: str, threads: int) -> None:
    if not (tasks := Path("/proc/self/task")).is_dir():
        missing("threads are not shown in /proc")
    program = f"from pathlib import Path; from jsbackup import memory\n{first}\n"
    program += f"import numpy; print(len([*Path({str(tasks)!r}).iterdir()]))"
    variables = environment(OPENBLAS_NUM_THREADS="2")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=variables, check=True
    )
    assert int(done.stdout) == threads
