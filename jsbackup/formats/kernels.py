"""Choose between the compiled kernel and its pure-Python twin.

The compiled one is used if it can be imported. Call kernels as attributes of this module (`kernels.decode_entries`), so
that `use` takes effect. `use` never falls back silently: a benchmark or test would then use the other kernel.

MB/s on one core, messages of 256 B where it matters (4 KiB in brackets), to show the cost of doing without a compiler:

                        compiled        python
    s2_decode_block         2600            28     JSON, 3.2 times smaller
    HighwayHash.update      6800            10     2000 where there is no AVX2
    decode_entries          7000            50
    sum_digest              2600 (6600)      2 (10) 820 (1900)
    decode_records          3200 (7000)      5 (10) 1300 (2100)
    Masker.mask, one value   700            10     JSON of 300 B
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Literal

from jsbackup.errors import UnsupportedError
from jsbackup.formats import _kernels_py
from jsbackup.formats._kernels_py import (
    MAX_ENTRY_BYTES,
    MAX_RECORD_BYTES,
    MAX_TAKE_BYTES,
    STREAM_DIGEST_KEY,
    HighwayHash,
    Masker,
    SubjectMapper,
    SubjectMatcher,
    decode_entries,
    decode_records,
    encode_entries,
    encode_records,
    extremes,
    first_fall,
    s2_decode_block,
    skip_index_subjects,
    sum_digest,
)

__all__ = [
    "MAX_ENTRY_BYTES",
    "MAX_RECORD_BYTES",
    "MAX_TAKE_BYTES",
    "STREAM_DIGEST_KEY",
    "HighwayHash",
    "Masker",
    "SubjectMapper",
    "SubjectMatcher",
    "active",
    "decode_entries",
    "decode_records",
    "encode_entries",
    "encode_records",
    "extremes",
    "first_fall",
    "s2_decode_block",
    "skip_index_subjects",
    "sum_digest",
    "use",
]


# What both kernels have; the rest are constants.
_FUNCTIONS = tuple(name for name in _kernels_py.__all__ if not name.isupper())
_active = "python"


def _compiled() -> ModuleType | None:
    try:
        return import_module("jsbackup.formats._kernels")
    except ImportError:
        return None


def use(name: Literal["compiled", "python"]) -> None:
    """Use this kernel from now on, in the whole process. Raises `UnsupportedError` if it is not available."""
    global _active
    module = _kernels_py if name == "python" else _compiled() if name == "compiled" else None
    if module is None:
        raise UnsupportedError(
            f"kernel not available: {name}",
            hint="Install a C compiler and jsbackup again, or use the kernel called python.",
        )
    for function in _FUNCTIONS:
        globals()[function] = getattr(module, function)
    _active = name


def active() -> str:
    """The kernel in use: `compiled` or `python`."""
    return _active


if _compiled() is not None:
    use("compiled")
