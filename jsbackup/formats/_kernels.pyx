# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled kernel. `_kernels_py.py`, its readable twin, documents the formats, what each function does, its errors.

Rules of this file:

- A loop over outside data runs without the GIL, on C pointers, and knows the end of every buffer it touches. All bounds
  are explicit, which is why Cython's own checks are off.
- Output is allocated once, at its final size: a first walk counts, a second one fills. Both are the same function, and
  the second checks against the sizes of the first, so that a buffer which another thread changes meanwhile is an error
  and never a write past an end. Where only the result shows its size (masks), output grows (`_growing.pxi`).
- What is wrong is noted in a `Fault` and raised where the GIL is held, in the twin's words.

One C file, however long: what it inlines (hash, numbers, rows) has to be there. Subjects and masks are in files that
are included at the end.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from jsbackup.errors import FormatError
from jsbackup.formats import _kernels_py as _twin
from jsbackup.formats.batch import Columns

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "the compiled kernel reads little-endian integers in place: use the pure-Python twin"
    #endif
    """

cdef int64_t MAX_ENTRY_BYTES = _twin.MAX_ENTRY_BYTES
cdef int64_t MAX_RECORD_BYTES = _twin.MAX_RECORD_BYTES
cdef int64_t MAX_TAKE_BYTES = _twin.MAX_TAKE_BYTES
cdef int64_t MAX_NAME = 0xFFFF
cdef uint64_t ERASED = <uint64_t>1 << 63
cdef uint64_t TOMBSTONE = <uint64_t>1 << 62
cdef int64_t RECORD_HEAD = 22
cdef int64_t RECORD_EMPTY = 30
# Hashing less than this takes less time than giving the GIL away and getting it back.
cdef Py_ssize_t QUICK_BYTES = 4096


# --- faults -------------------------------------------------------------------------------------------------------

cdef enum:
    NO_FAULT
    S2_BAD_LENGTH
    S2_TOO_LARGE
    S2_SHORT
    S2_OVERRUN
    S2_BAD_COPY
    S2_UNDERRUN
    S2_NUMBER
    ENTRY_NUMBER
    ENTRY_RANGE
    ENTRY_LARGE
    ENTRY_ORDER
    BATCH_SHORT
    BATCH_OFFSETS
    BATCH_ORDER
    BATCH_RANGE
    BATCH_SUBJECT
    BATCH_LARGE_ENTRY
    BATCH_LARGE_RECORD
    DIGEST_ENDS
    BLOCK_SHORT
    BLOCK_LENGTH
    BLOCK_CHECKSUM
    BLOCK_HEADERS
    INDEX_NUMBER
    INDEX_SUBJECT
    BATCH_MASKED
    BATCH_MAPPED
    NO_ROOM
    CHANGED

cdef struct Fault:
    int kind
    int64_t at
    uint64_t a
    uint64_t b

_WORDS = {
    S2_BAD_LENGTH: "s2 block: bad length",
    S2_TOO_LARGE: "s2 block: {a} bytes declared, {b} allowed",
    S2_SHORT: "s2 block: cut short at byte {at}",
    S2_OVERRUN: "s2 block: more than the declared length at byte {at}",
    S2_BAD_COPY: "s2 block: copy from before the start at byte {at}",
    S2_UNDERRUN: "s2 block: {a} bytes decoded, {b} declared",
    S2_NUMBER: "s2 block: a number of more than 64 bits at byte {at}",
    ENTRY_NUMBER: "archive entry: a number of more than 64 bits at byte {at}",
    ENTRY_RANGE: "archive entry: sequence {a} out of range at byte {at}",
    ENTRY_LARGE: "archive entry: too large at byte {at}",
    ENTRY_ORDER: "archive entry: sequence {a} after {b} at byte {at}",
    BATCH_SHORT: "message batch: a buffer is too short",
    BATCH_OFFSETS: "message batch: bad offsets in row {at}",
    BATCH_ORDER: "message batch: sequence {signed} after {b} in row {at}",
    BATCH_RANGE: "message batch: sequence {a} out of range in row {at}",
    BATCH_SUBJECT: "message batch: the subject in row {at} has {a} bytes",
    BATCH_LARGE_ENTRY: "message batch: the message in row {at} is too large for an archive",
    BATCH_LARGE_RECORD: "message batch: the message in row {at} is too large for a message block",
    DIGEST_ENDS: "stream digest: bad entry ends",
    BLOCK_SHORT: "message block: cut short at byte {at}",
    BLOCK_LENGTH: "message block: bad record length at byte {at}",
    BLOCK_CHECKSUM: "message block: wrong checksum of the record at byte {at}",
    BLOCK_HEADERS: "message block: bad header length of the record at byte {at}",
    INDEX_NUMBER: "stream index: a number of more than 64 bits at byte {at}",
    INDEX_SUBJECT: "stream index: a subject of {a} bytes at byte {at}",
    BATCH_MASKED: "message batch: more than 2 GiB once masked, in row {at}",
    BATCH_MAPPED: "message batch: more than 2 GiB once mapped, in row {at}",
    CHANGED: "a buffer changed while it was read",
}


cdef inline bint fail(Fault *fault, int kind, int64_t at, uint64_t a=0, uint64_t b=0) noexcept nogil:
    fault.kind = kind
    fault.at = at
    fault.a = a
    fault.b = b
    return False


cdef object error_of(Fault fault):
    return FormatError(_WORDS[fault.kind].format(at=fault.at, a=fault.a, b=fault.b, signed=<int64_t>fault.a))


# --- buffers and integers -----------------------------------------------------------------------------------------


cdef class View:
    """A contiguous buffer of whatever item type, as bytes, held for as long as the view lives."""

    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef int64_t size

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        self.data = <const uint8_t *>self.buffer.buf
        self.size = self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef inline bytes blank(int64_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline uint8_t *start_of(bytes target) noexcept:
    return <uint8_t *>PyBytes_AS_STRING(target)


cdef inline uint32_t load32(const uint8_t *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value


cdef inline int32_t load_int32(const uint8_t *p) noexcept nogil:
    cdef int32_t value
    memcpy(&value, p, 4)
    return value


cdef inline uint64_t load64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return value


cdef inline void copy_to(uint8_t *target, const uint8_t *source, int64_t size) noexcept nogil:
    if size:  # an empty buffer may be NULL, which memcpy must not see
        memcpy(target, source, size)


cdef inline int64_t uvarint(const uint8_t *p, int64_t at, int64_t end, uint64_t *value) noexcept nogil:
    """Where the uvarint at `at` ends; 0 if the buffer ends inside it, -1 if it has more than 64 bits."""
    cdef uint64_t out = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < end:
        byte = p[at]
        at += 1
        if byte < 0x80:
            if shift == 63 and byte > 1:
                return -1
            value[0] = out | <uint64_t>byte << shift
            return at
        out |= <uint64_t>(byte & 0x7F) << shift
        shift += 7
        if shift == 70:
            return -1
    return 0


cdef inline int uvarint_size(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t *put_uvarint(uint8_t *p, uint64_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        p += 1
        value >>= 7
    p[0] = <uint8_t>value
    return p + 1


# --- S2 -----------------------------------------------------------------------------------------------------------


cdef inline void repeat(uint8_t *target, int64_t offset, int64_t length, int64_t room) noexcept nogil:
    """Copy `length` bytes from `offset` bytes before the target, which may overlap it; `room` is there to write to."""
    cdef const uint8_t *source = target - offset
    cdef int64_t period = offset
    if offset >= 16 and room >= length + 15:
        # In steps of 16, the last of which may write past the length, not past the room: most copies are short.
        while length > 0:
            memcpy(target, source, 16)
            target += 16
            source += 16
            length -= 16
        return
    if offset == 1:
        memset(target, source[0], length)
        return
    while length > period:
        memcpy(target, source, period)
        target += period
        length -= period
        period *= 2
    memcpy(target, source, length)


cdef bint run_operations(
    const uint8_t *source, int64_t at, int64_t end, uint8_t *target, int64_t size, Fault *fault
) noexcept nogil:
    cdef int64_t filled = 0, offset = 0, length, start, value
    cdef int kind, m, extra
    while at < end:
        start = at
        kind = source[at] & 3
        m = source[at] >> 2
        at += 1
        if kind == 0:
            length = m + 1
            if m >= 60:
                extra = m - 59
                if end - at < extra:
                    return fail(fault, S2_SHORT, start)
                length = little(source + at, extra) + 1
                at += extra
            if length > end - at:
                return fail(fault, S2_SHORT, start)
            if length > size - filled:
                return fail(fault, S2_OVERRUN, start)
            if length <= 16 and end - at >= 16 and size - filled >= 16:
                memcpy(target + filled, source + at, 16)
            else:
                memcpy(target + filled, source + at, length)
            at += length
            filled += length
            continue
        extra = 4 if kind == 3 else kind
        if end - at < extra:
            return fail(fault, S2_SHORT, start)
        value = little(source + at, extra)
        at += extra
        length = m + 1
        if kind == 1:
            length = (m & 7) + 4
            value |= (m >> 3) << 8
            if value == 0:
                value = offset
                extra = (m & 7) - 4
                if extra > 0:
                    if end - at < extra:
                        return fail(fault, S2_SHORT, start)
                    length = little(source + at, extra) + (8 if extra == 1 else 260 if extra == 2 else 65540)
                    at += extra
        offset = value
        if offset == 0 or offset > filled:
            return fail(fault, S2_BAD_COPY, start)
        if length > size - filled:
            return fail(fault, S2_OVERRUN, start)
        repeat(target + filled, offset, length, size - filled)
        filled += length
    if filled != size:
        return fail(fault, S2_UNDERRUN, 0, filled, size)
    return True


cdef inline int64_t little(const uint8_t *p, int size) noexcept nogil:
    cdef int64_t value = p[0]
    if size > 1:
        value |= <int64_t>p[1] << 8
    if size > 2:
        value |= <int64_t>p[2] << 16
    if size > 3:
        value |= <int64_t>p[3] << 24
    return value


def s2_decode_block(block, max_size):
    cdef View source = View(block)
    cdef uint64_t size = 0
    cdef Fault fault
    cdef bint good
    cdef int64_t at = uvarint(source.data, 0, source.size, &size)
    if at < 0:
        fail(&fault, S2_NUMBER, 0)
        raise error_of(fault)
    if at == 0 or at > 5 or size > 0xFFFFFFFFULL:
        fail(&fault, S2_BAD_LENGTH, 0)
        raise error_of(fault)
    if size > max_size:
        fail(&fault, S2_TOO_LARGE, 0, size, max_size)
        raise error_of(fault)
    cdef bytes out = blank(size)
    cdef uint8_t *target = start_of(out)
    with nogil:
        good = run_operations(source.data, at, source.size, target, size, &fault)
    if not good:
        raise error_of(fault)
    return out


# --- HighwayHash --------------------------------------------------------------------------------------------------

cdef struct State:
    uint64_t a[4]  # v0, v1, mul0, mul1 in the reference
    uint64_t b[4]
    uint64_t m[4]
    uint64_t n[4]

cdef struct Stream:
    State state
    uint8_t rest[32]
    int size  # of the rest

cdef uint64_t INIT0[4]
cdef uint64_t INIT1[4]
INIT0[:] = [0xDBE6D5D5FE4CCE2FULL, 0xA4093822299F31D0ULL, 0x13198A2E03707344ULL, 0x243F6A8885A308D3ULL]
INIT1[:] = [0x3BD39E10CB0EF593ULL, 0xC0ACF169B5F18A8CULL, 0xBE5466CF34E90C6CULL, 0x452821E638D01377ULL]


cdef inline uint64_t swap_halves(uint64_t x) noexcept nogil:
    return x >> 32 | x << 32


cdef void begin(Stream *s, const uint8_t *key) noexcept nogil:
    cdef int i
    for i in range(4):
        s.state.a[i] = INIT0[i] ^ load64(key + 8 * i)
        s.state.b[i] = INIT1[i] ^ swap_halves(load64(key + 8 * i))
        s.state.m[i] = INIT0[i]
        s.state.n[i] = INIT1[i]
    s.size = 0


cdef inline void zipper(uint64_t x, uint64_t y, uint64_t *p, uint64_t *q) noexcept nogil:
    """Add the bytes of x and y to p and q, each in its new place (the twin's `_ZIPPER_PAIR`)."""
    p[0] += (
        ((x & 0xFF000000ULL) | (y & 0xFF00000000ULL)) >> 24
        | ((x & 0xFF0000000000ULL) | (y & 0xFF000000000000ULL)) >> 16
        | (x & 0xFF0000)
        | (x & 0xFF00) << 32
        | (y & 0xFF00000000000000ULL) >> 8
        | x << 56
    )
    q[0] += (
        ((y & 0xFF000000ULL) | (x & 0xFF00000000ULL)) >> 24
        | (y & 0xFF0000)
        | (y & 0xFF0000000000ULL) >> 16
        | (y & 0xFF00) << 24
        | (x & 0xFF000000000000ULL) >> 8
        | (y & 0xFF) << 48
        | (x & 0xFF00000000000000ULL)
    )


cdef inline void mix(State *s, const uint64_t *d) noexcept nogil:
    cdef int i
    for i in range(4):
        s.b[i] += d[i] + s.m[i]
        s.m[i] ^= (s.b[i] & 0xFFFFFFFFULL) * (s.a[i] >> 32)
        s.a[i] += s.n[i]
        s.n[i] ^= (s.a[i] & 0xFFFFFFFFULL) * (s.b[i] >> 32)
    zipper(s.b[0], s.b[1], &s.a[0], &s.a[1])
    zipper(s.b[2], s.b[3], &s.a[2], &s.a[3])
    zipper(s.a[0], s.a[1], &s.b[0], &s.b[1])
    zipper(s.a[2], s.a[3], &s.b[2], &s.b[3])


cdef extern from *:
    """
    /* Four lanes of 64 bits are what AVX2 works on. Asked of the processor once, when the module is loaded. */
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>
    #define WITH_LANES __attribute__((target("avx2")))
    typedef struct { __m256i a, b, m, n; } Lanes;

    WITH_LANES static inline Lanes lanes_of(const uint64_t *state) {
        Lanes s;
        s.a = _mm256_loadu_si256((const __m256i *)state);
        s.b = _mm256_loadu_si256((const __m256i *)(state + 4));
        s.m = _mm256_loadu_si256((const __m256i *)(state + 8));
        s.n = _mm256_loadu_si256((const __m256i *)(state + 12));
        return s;
    }

    WITH_LANES static inline void keep_lanes(Lanes s, uint64_t *state) {
        _mm256_storeu_si256((__m256i *)state, s.a);
        _mm256_storeu_si256((__m256i *)(state + 4), s.b);
        _mm256_storeu_si256((__m256i *)(state + 8), s.m);
        _mm256_storeu_si256((__m256i *)(state + 12), s.n);
    }

    WITH_LANES static inline Lanes mix_lanes(Lanes s, __m256i d) {
        const __m256i zipper = _mm256_setr_epi8(
            3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7,
            3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7);
        s.b = _mm256_add_epi64(s.b, _mm256_add_epi64(d, s.m));
        s.m = _mm256_xor_si256(s.m, _mm256_mul_epu32(s.b, _mm256_srli_epi64(s.a, 32)));
        s.a = _mm256_add_epi64(s.a, s.n);
        s.n = _mm256_xor_si256(s.n, _mm256_mul_epu32(s.a, _mm256_srli_epi64(s.b, 32)));
        s.a = _mm256_add_epi64(s.a, _mm256_shuffle_epi8(s.b, zipper));
        s.b = _mm256_add_epi64(s.b, _mm256_shuffle_epi8(s.a, zipper));
        return s;
    }

    WITH_LANES static void absorb_lanes(uint64_t *state, const uint8_t *p, int64_t packets) {
        Lanes s = lanes_of(state);
        for (; packets > 0; packets--, p += 32) s = mix_lanes(s, _mm256_loadu_si256((const __m256i *)p));
        keep_lanes(s, state);
    }

    WITH_LANES static void permute_lanes(uint64_t *state, int rounds) {
        Lanes s = lanes_of(state);
        for (; rounds > 0; rounds--) {
            /* The two halves of the lanes change places, and so do those of each lane. */
            s = mix_lanes(s, _mm256_shuffle_epi32(_mm256_permute4x64_epi64(s.a, 0x4E), 0xB1));
        }
        keep_lanes(s, state);
    }

    static int has_lanes(void) { return __builtin_cpu_supports("avx2") != 0; }
    #else
    static void absorb_lanes(uint64_t *state, const uint8_t *p, int64_t packets) {}
    static void permute_lanes(uint64_t *state, int rounds) {}
    static int has_lanes(void) { return 0; }
    #endif
    """
    void absorb_lanes(uint64_t *state, const uint8_t *p, int64_t packets) noexcept nogil
    void permute_lanes(uint64_t *state, int rounds) noexcept nogil
    bint has_lanes() noexcept nogil

cdef bint LANES = has_lanes()


def use_lanes(wanted):
    global LANES
    LANES = wanted and has_lanes()
    return bool(LANES)


cdef void absorb(State *state, const uint8_t *p, int64_t packets) noexcept nogil:
    cdef State s
    cdef uint64_t d[4]
    if LANES:
        absorb_lanes(<uint64_t *>state, p, packets)
        return
    s = state[0]
    while packets > 0:
        memcpy(d, p, 32)
        mix(&s, d)
        p += 32
        packets -= 1
    state[0] = s


cdef void update(Stream *s, const uint8_t *p, int64_t size) noexcept nogil:
    cdef int64_t part
    if s.size:
        part = 32 - s.size
        if size < part:
            copy_to(s.rest + s.size, p, size)
            s.size += <int>size
            return
        memcpy(s.rest + s.size, p, part)
        absorb(&s.state, s.rest, 1)
        p += part
        size -= part
    absorb(&s.state, p, size >> 5)
    s.size = <int>(size & 31)
    copy_to(s.rest, p + (size & ~<int64_t>31), s.size)


cdef State ended(const Stream *stream, int rounds) noexcept nogil:
    """The state after the rest and the closing permutations; the stream itself stays as it is."""
    cdef State s = stream.state
    cdef uint64_t d[4]
    cdef uint8_t packet[32]
    cdef uint32_t low, high
    cdef int i, n = stream.size, odd = stream.size & 3
    cdef int whole = n - odd
    if n:
        for i in range(4):
            s.a[i] += (<uint64_t>n << 32) + <uint64_t>n
            low = <uint32_t>s.b[i]
            high = <uint32_t>(s.b[i] >> 32)
            s.b[i] = <uint64_t>(high << n | high >> (32 - n)) << 32 | (low << n | low >> (32 - n))
        memset(packet, 0, 32)
        memcpy(packet, stream.rest, whole)
        if n >= 16:
            memcpy(packet + 28, stream.rest + n - 4, 4)
        elif odd:
            packet[16] = stream.rest[whole]
            packet[17] = stream.rest[whole + (odd >> 1)]
            packet[18] = stream.rest[n - 1]
        absorb(&s, packet, 1)
    if LANES:
        permute_lanes(<uint64_t *>&s, rounds)
        return s
    for i in range(rounds):
        d[0] = swap_halves(s.a[2])
        d[1] = swap_halves(s.a[3])
        d[2] = swap_halves(s.a[0])
        d[3] = swap_halves(s.a[1])
        mix(&s, d)
    return s


cdef uint64_t hash64(const Stream *stream) noexcept nogil:
    cdef State s = ended(stream, 4)
    return s.a[0] + s.b[0] + s.m[0] + s.n[0]


cdef inline void reduced(uint64_t x0, uint64_t x1, uint64_t x2, uint64_t x3, uint64_t *out) noexcept nogil:
    """256 bits modulo x^128 + x^2 + x over GF(2)."""
    x3 &= 0x3FFFFFFFFFFFFFFFULL
    out[0] = x0 ^ x2 << 1 ^ x2 << 2
    out[1] = x1 ^ (x3 << 1 | x2 >> 63) ^ (x3 << 2 | x2 >> 62)


cdef void hash256(const Stream *stream, uint64_t *out) noexcept nogil:
    cdef State s = ended(stream, 10)
    reduced(s.a[0] + s.m[0], s.a[1] + s.m[1], s.b[0] + s.n[0], s.b[1] + s.n[1], out)
    reduced(s.a[2] + s.m[2], s.a[3] + s.m[3], s.b[2] + s.n[2], s.b[3] + s.n[3], out + 2)


cdef class HighwayHash:
    cdef Stream stream

    def __init__(self, bytes key not None):
        if len(key) != 32:
            raise ValueError("a HighwayHash key has 32 bytes")
        begin(&self.stream, start_of(key))

    def update(self, data):
        cdef View view = View(data)
        # A copy, so that two threads that (wrongly) share an object cannot disagree about the size of its rest.
        cdef Stream stream = self.stream
        if view.size < QUICK_BYTES:
            update(&stream, view.data, view.size)
        else:
            with nogil:
                update(&stream, view.data, view.size)
        self.stream = stream

    def digest64(self):
        cdef uint64_t out = hash64(&self.stream)
        return PyBytes_FromStringAndSize(<char *>&out, 8)

    def digest256(self):
        cdef uint64_t out[4]
        hash256(&self.stream, out)
        return PyBytes_FromStringAndSize(<char *>out, 32)


# --- columns out --------------------------------------------------------------------------------------------------

cdef struct Rows:
    int64_t count, with_headers, subject_bytes, header_bytes, data_bytes, tombstones

cdef struct Sink:
    bint fill
    Rows taken
    Rows counted  # what the first walk found: the sizes of the buffers below
    int64_t *sequences
    int64_t *timestamps
    int32_t *subject_ends
    uint8_t *subjects
    uint8_t *validity
    int32_t *header_ends
    uint8_t *headers
    int32_t *data_ends
    uint8_t *data
    uint64_t *tombstones


cdef inline bint put_row(
    Sink *sink,
    uint64_t sequence,
    int64_t timestamp,
    const uint8_t *subject,
    int64_t subject_bytes,
    const uint8_t *headers,
    int64_t header_bytes,
    const uint8_t *data,
    int64_t data_bytes,
) noexcept nogil:
    """Count a message or, when filling, copy it; False if it does not fit the sizes counted."""
    cdef Rows *taken = &sink.taken
    cdef int64_t row = taken.count
    if sink.fill:
        if (
            row >= sink.counted.count
            or subject_bytes > sink.counted.subject_bytes - taken.subject_bytes
            or header_bytes > sink.counted.header_bytes - taken.header_bytes
            or data_bytes > sink.counted.data_bytes - taken.data_bytes
        ):
            return False
        sink.sequences[row] = <int64_t>sequence
        sink.timestamps[row] = timestamp
        copy_to(sink.subjects + taken.subject_bytes, subject, subject_bytes)
        copy_to(sink.headers + taken.header_bytes, headers, header_bytes)
        copy_to(sink.data + taken.data_bytes, data, data_bytes)
        sink.subject_ends[row + 1] = <int32_t>(taken.subject_bytes + subject_bytes)
        sink.header_ends[row + 1] = <int32_t>(taken.header_bytes + header_bytes)
        sink.data_ends[row + 1] = <int32_t>(taken.data_bytes + data_bytes)
        if header_bytes:
            sink.validity[row >> 3] |= <uint8_t>(1 << (row & 7))
    taken.count += 1
    taken.with_headers += header_bytes > 0
    taken.subject_bytes += subject_bytes
    taken.header_bytes += header_bytes
    taken.data_bytes += data_bytes
    return True


cdef class Output:
    """The buffers of a batch, made to the measure of a first walk."""

    cdef bytes sequences, timestamps, subject_ends, subjects, validity, header_ends, headers, data_ends, data, tombstones

    cdef void allocate(self, Sink *sink) except *:
        cdef Rows rows = sink.taken
        memset(&sink.taken, 0, sizeof(Rows))
        sink.counted = rows
        sink.fill = True
        self.sequences = blank(8 * rows.count)
        self.timestamps = blank(8 * rows.count)
        self.subject_ends = blank(4 * (rows.count + 1))
        self.subjects = blank(rows.subject_bytes)
        self.validity = blank((rows.count + 7) >> 3)
        self.header_ends = blank(4 * (rows.count + 1))
        self.headers = blank(rows.header_bytes)
        self.data_ends = blank(4 * (rows.count + 1))
        self.data = blank(rows.data_bytes)
        self.tombstones = blank(8 * rows.tombstones)
        sink.sequences = <int64_t *>start_of(self.sequences)
        sink.timestamps = <int64_t *>start_of(self.timestamps)
        sink.subject_ends = <int32_t *>start_of(self.subject_ends)
        sink.subjects = start_of(self.subjects)
        sink.validity = start_of(self.validity)
        sink.header_ends = <int32_t *>start_of(self.header_ends)
        sink.headers = start_of(self.headers)
        sink.data_ends = <int32_t *>start_of(self.data_ends)
        sink.data = start_of(self.data)
        sink.tombstones = <uint64_t *>start_of(self.tombstones)
        sink.subject_ends[0] = sink.header_ends[0] = sink.data_ends[0] = 0
        memset(sink.validity, 0, (rows.count + 7) >> 3)

    cdef object columns(self, Sink *sink):
        cdef Fault fault
        if memcmp(&sink.taken, &sink.counted, sizeof(Rows)):
            fail(&fault, CHANGED, 0)
            raise error_of(fault)
        return Columns(
            sink.taken.count,
            self.sequences,
            self.timestamps,
            self.subject_ends,
            self.subjects,
            None if sink.taken.with_headers == sink.taken.count else self.validity,
            self.header_ends,
            self.headers,
            self.data_ends,
            self.data,
        )


# --- columns in ---------------------------------------------------------------------------------------------------

cdef struct Source:
    int64_t count
    const uint8_t *sequences
    const uint8_t *timestamps
    const uint8_t *offsets[3]
    const uint8_t *values[3]
    int64_t sizes[3]
    const uint8_t *validity  # NULL if every row has headers

cdef struct Message:
    int64_t sequence
    int64_t timestamp
    const uint8_t *parts[3]  # subject, headers, data
    int64_t sizes[3]


cdef class Input:
    """The buffers of a batch, held while they are read."""

    cdef Source source
    cdef list views

    def __cinit__(self, columns):
        cdef Fault fault
        cdef int64_t count = columns.count
        cdef bint good
        self.views = []
        self.source.count = count
        good = count >= 0
        good = good and self.hold(columns.sequences, &self.source.sequences) >> 3 >= count
        good = good and self.hold(columns.timestamps, &self.source.timestamps) >> 3 >= count
        good = good and self.hold(columns.subject_offsets, &self.source.offsets[0]) >> 2 > count
        good = good and self.hold(columns.header_offsets, &self.source.offsets[1]) >> 2 > count
        good = good and self.hold(columns.data_offsets, &self.source.offsets[2]) >> 2 > count
        self.source.sizes[0] = self.hold(columns.subjects, &self.source.values[0])
        self.source.sizes[1] = self.hold(columns.headers, &self.source.values[1])
        self.source.sizes[2] = self.hold(columns.data, &self.source.values[2])
        if columns.header_validity is not None:
            good = good and self.hold(columns.header_validity, &self.source.validity) >= (count + 7) >> 3
        if not good:
            fail(&fault, BATCH_SHORT, 0)
            raise error_of(fault)

    cdef int64_t hold(self, buffer, const uint8_t **data) except -1:
        cdef View view = View(buffer)
        self.views.append(view)
        data[0] = view.data
        return view.size


cdef bint read_row(const Source *source, int64_t row, int64_t after, Message *message, Fault *fault) noexcept nogil:
    cdef int i
    cdef int64_t start, stop
    message.sequence = <int64_t>load64(source.sequences + 8 * row)
    message.timestamp = <int64_t>load64(source.timestamps + 8 * row)
    if message.sequence <= after:
        return fail(fault, BATCH_ORDER, row, <uint64_t>message.sequence, after)
    for i in range(3):
        start = load_int32(source.offsets[i] + 4 * row)
        stop = load_int32(source.offsets[i] + 4 * row + 4)
        if start < 0 or stop < start or stop > source.sizes[i]:
            return fail(fault, BATCH_OFFSETS, row)
        message.parts[i] = source.values[i] + start
        message.sizes[i] = stop - start
    if source.validity != NULL and not source.validity[row >> 3] >> (row & 7) & 1:
        message.sizes[1] = 0
    if message.sizes[0] > MAX_NAME:
        return fail(fault, BATCH_SUBJECT, row, message.sizes[0])
    return True


# --- archive v2 ---------------------------------------------------------------------------------------------------


cdef bint walk_entries(
    const uint8_t *p, int64_t at, int64_t end, int64_t limit, Sink *sink, int64_t *next, Fault *fault
) noexcept nogil:
    cdef uint64_t numbers[5]  # name size, zigzag timestamp, sequence, header size, payload size
    cdef uint64_t last = 0
    cdef int64_t first = at, cursor, previous, name, headers, payload
    cdef int i
    next[0] = at
    while at < end and (at < limit or at == first):
        cursor = at
        for i in range(5):
            previous = cursor
            cursor = uvarint(p, cursor, end, &numbers[i])
            if cursor < 0:
                return fail(fault, ENTRY_NUMBER, previous)
            if cursor == 0 or (i == 2 and numbers[2] == 0):
                return True
        if numbers[2] >> 63:
            return fail(fault, ENTRY_RANGE, at, numbers[2])
        if (
            numbers[0] > <uint64_t>MAX_NAME
            or numbers[3] > <uint64_t>MAX_ENTRY_BYTES
            or numbers[4] > <uint64_t>MAX_ENTRY_BYTES - numbers[3]
        ):
            return fail(fault, ENTRY_LARGE, at)
        if numbers[2] <= last:
            return fail(fault, ENTRY_ORDER, at, numbers[2], last)
        name = numbers[0]
        headers = numbers[3]
        payload = numbers[4]
        if name + headers + payload > end - cursor:
            return True
        if not put_row(
            sink,
            numbers[2],
            <int64_t>(numbers[1] >> 1 ^ (0 - (numbers[1] & 1))),
            p + cursor,
            name,
            p + cursor + name,
            headers,
            p + cursor + name + headers,
            payload,
        ):
            return fail(fault, CHANGED, 0)
        at = cursor + name + headers + payload
        last = numbers[2]
        next[0] = at
    return True


def decode_entries(buffer, Py_ssize_t offset, max_bytes):
    cdef View view = View(buffer)
    if not 0 <= offset <= view.size:
        raise ValueError("offset is outside the buffer")
    cdef int64_t limit = offset + <int64_t>min(max(max_bytes, 0), MAX_TAKE_BYTES)
    cdef int64_t stop = offset
    cdef Fault fault
    cdef Sink sink
    cdef bint good
    cdef Output out = Output()
    memset(&sink, 0, sizeof(Sink))
    with nogil:
        good = walk_entries(view.data, offset, view.size, limit, &sink, &stop, &fault)
    if good:
        out.allocate(&sink)
        with nogil:
            good = walk_entries(view.data, offset, view.size, limit, &sink, &stop, &fault)
    if not good:
        raise error_of(fault)
    return out.columns(&sink), stop


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return <uint64_t>value << 1 ^ <uint64_t>(value >> 63)


cdef bint write_entries(const Source *source, uint8_t *out, int64_t *ends, int64_t *size, Fault *fault) noexcept nogil:
    """Measure the encoding, or, given `out` and `ends` for the size measured before, write it."""
    cdef Message message
    cdef uint64_t numbers[5]
    cdef int64_t row, at = 0, need, last = 0, limit = size[0]
    cdef uint8_t *p
    cdef int i
    for row in range(source.count):
        if not read_row(source, row, last, &message, fault):
            return False
        last = message.sequence
        if message.sizes[1] + message.sizes[2] > MAX_ENTRY_BYTES:
            return fail(fault, BATCH_LARGE_ENTRY, row)
        numbers[0] = message.sizes[0]
        numbers[1] = zigzag(message.timestamp)
        numbers[2] = message.sequence
        numbers[3] = message.sizes[1]
        numbers[4] = message.sizes[2]
        need = message.sizes[0] + message.sizes[1] + message.sizes[2]
        for i in range(5):
            need += uvarint_size(numbers[i])
        if out != NULL:
            if need > limit - at:
                return fail(fault, CHANGED, 0)
            p = out + at
            for i in range(5):
                p = put_uvarint(p, numbers[i])
            for i in range(3):
                copy_to(p, message.parts[i], message.sizes[i])
                p += message.sizes[i]
            ends[row] = at + need
        at += need
    size[0] = at
    return True


def encode_entries(columns):
    cdef Input batch = Input(columns)
    cdef Source source = batch.source
    cdef Fault fault
    cdef int64_t size = 0, measured
    cdef bint good
    with nogil:
        good = write_entries(&source, NULL, NULL, &size, &fault)
    if not good:
        raise error_of(fault)
    measured = size
    cdef bytes encoded = blank(size)
    cdef bytes ends = blank(8 * source.count)
    cdef uint8_t *out = start_of(encoded)
    cdef int64_t *packed = <int64_t *>start_of(ends)
    with nogil:
        good = write_entries(&source, out, packed, &size, &fault)
        if good and size != measured:
            good = fail(&fault, CHANGED, 0)
    if not good:
        raise error_of(fault)
    return encoded, ends


cdef inline void add256(uint64_t *total, const uint64_t *value) noexcept nogil:
    cdef uint64_t carry = 0, partial
    cdef int i
    for i in range(4):
        partial = total[i] + carry
        carry = partial < carry
        total[i] = partial + value[i]
        carry += total[i] < partial


def sum_digest(encoded, ends, bytes total not None):
    if len(total) != 32:
        raise ValueError("a digest has 32 bytes")
    cdef View view = View(encoded)
    cdef View packed = View(ends)
    cdef bytes key = _twin.STREAM_DIGEST_KEY
    cdef Stream empty, stream
    cdef uint64_t value[4]
    cdef uint64_t result[4]
    cdef int64_t i, start = 0, stop
    cdef Fault fault
    cdef bint good = True
    memcpy(result, start_of(total), 32)
    begin(&empty, start_of(key))
    with nogil:
        if packed.size & 7:
            good = fail(&fault, DIGEST_ENDS, 0)
        for i in range(packed.size >> 3 if good else 0):
            stop = <int64_t>load64(packed.data + 8 * i)
            if stop < start or stop > view.size:
                good = fail(&fault, DIGEST_ENDS, 0)
                break
            stream = empty
            update(&stream, view.data + start, stop - start)
            hash256(&stream, value)
            add256(result, value)
            start = stop
    if not good:
        raise error_of(fault)
    return PyBytes_FromStringAndSize(<char *>result, 32)


# --- archive v1 ---------------------------------------------------------------------------------------------------


cdef inline bint contains(const uint8_t *ordered, int64_t count, uint64_t value) noexcept nogil:
    cdef int64_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if load64(ordered + 8 * middle) < value:
            low = middle + 1
        else:
            high = middle
    return low < count and load64(ordered + 8 * low) == value


cdef struct Walk:
    const uint8_t *p
    int64_t end
    int64_t limit
    uint64_t first_seq
    const uint8_t *deleted
    int64_t deleted_count
    Stream keyed  # the hash before any data
    int64_t at
    uint64_t last


cdef bint walk_records(Walk *walk, Sink *sink, Fault *fault) noexcept nogil:
    cdef const uint8_t *p = walk.p
    cdef const uint8_t *body
    cdef Stream stream
    cdef uint64_t sequence
    cdef int64_t at = walk.at, taken = 0, start, length, subject, prefix, content, headers
    cdef bint has_headers, erased
    while at < walk.end and (taken < walk.limit or taken == 0):
        if walk.end - at < RECORD_EMPTY:
            return fail(fault, BLOCK_SHORT, at)
        length = load32(p + at)
        has_headers = length >> 31
        length &= 0x7FFFFFFFULL
        subject = p[at + 20] | <int64_t>p[at + 21] << 8
        prefix = subject + 4 * has_headers
        if length > MAX_RECORD_BYTES or length < RECORD_EMPTY + prefix:
            return fail(fault, BLOCK_LENGTH, at)
        if length > walk.end - at:
            return fail(fault, BLOCK_SHORT, at)
        body = p + at + RECORD_HEAD
        content = length - RECORD_EMPTY - prefix  # header block and payload
        if not sink.fill:
            stream = walk.keyed
            update(&stream, p + at + 4, 16)
            if prefix == subject:
                update(&stream, body, subject + content)
            else:
                update(&stream, body, subject)
                update(&stream, body + prefix, content)
            if hash64(&stream) != load64(body + prefix + content):
                return fail(fault, BLOCK_CHECKSUM, at)
        start = at
        at += length
        sequence = load64(p + start + 4)
        if sequence & TOMBSTONE:
            if sink.fill:
                if sink.taken.tombstones >= sink.counted.tombstones:
                    return fail(fault, CHANGED, 0)
                sink.tombstones[sink.taken.tombstones] = sequence & ~(TOMBSTONE | ERASED)
            sink.taken.tombstones += 1
            continue
        erased = sequence >> 63
        sequence &= ~ERASED
        if sequence < walk.first_seq or sequence <= walk.last:
            continue
        walk.last = sequence
        if erased or (walk.deleted_count and contains(walk.deleted, walk.deleted_count, sequence)):
            continue
        headers = 0
        if has_headers:
            headers = load32(body + subject)
            if headers > content:
                return fail(fault, BLOCK_HEADERS, start)
        if not put_row(
            sink,
            sequence,
            <int64_t>load64(p + start + 12),
            body,
            subject,
            body + prefix,
            headers,
            body + prefix + headers,
            content - headers,
        ):
            return fail(fault, CHANGED, 0)
        taken += length
    walk.at = at
    return True


def decode_records(
    block, bytes key not None, Py_ssize_t offset, max_bytes, uint64_t first_seq, uint64_t after_seq, deleted
):
    cdef View view = View(block)
    cdef View hidden = View(deleted)
    if not 0 <= offset <= view.size:
        raise ValueError("offset is outside the block")
    if hidden.size & 7:
        raise ValueError("deleted sequences have 8 bytes each")
    if len(key) != 32:
        raise ValueError("a HighwayHash key has 32 bytes")
    cdef Walk first, walk
    first.p = view.data
    first.end = view.size
    first.limit = <int64_t>min(max(max_bytes, 0), MAX_TAKE_BYTES)
    first.first_seq = first_seq
    first.deleted = hidden.data
    first.deleted_count = hidden.size >> 3
    first.at = offset
    first.last = after_seq
    begin(&first.keyed, start_of(key))
    cdef Fault fault
    cdef Sink sink
    cdef bint good
    cdef Output out = Output()
    memset(&sink, 0, sizeof(Sink))
    walk = first
    with nogil:
        good = walk_records(&walk, &sink, &fault)
    if good:
        out.allocate(&sink)
        walk = first
        with nogil:
            good = walk_records(&walk, &sink, &fault)
    if not good:
        raise error_of(fault)
    return out.columns(&sink), out.tombstones, walk.at, walk.last


cdef bint write_records(
    const Source *source,
    int64_t *row,
    const Stream *keyed,
    int64_t max_bytes,
    uint8_t *out,
    int64_t *size,
    Fault *fault,
) noexcept nogil:
    """Measure the records that fit, or, given `out` for the rows and the size measured before, write them."""
    cdef Message message
    cdef Stream stream
    cdef int64_t first = row[0], at = 0, last = 0, length, limit = size[0]
    cdef uint32_t flagged, headers
    cdef uint16_t subject
    cdef uint64_t checksum
    cdef uint8_t *p
    cdef int i
    while row[0] < source.count:
        if not read_row(source, row[0], last, &message, fault):
            return False
        if message.sequence >= <int64_t>TOMBSTONE:
            return fail(fault, BATCH_RANGE, row[0], message.sequence)
        last = message.sequence
        length = RECORD_EMPTY + message.sizes[0] + message.sizes[1] + message.sizes[2] + 4 * (message.sizes[1] > 0)
        if length > MAX_RECORD_BYTES:
            return fail(fault, BATCH_LARGE_RECORD, row[0])
        if row[0] > first and length > max_bytes - at:
            break
        if out != NULL:
            if length > limit - at:
                return fail(fault, CHANGED, 0)
            flagged = <uint32_t>length | <uint32_t>(message.sizes[1] > 0) << 31
            subject = <uint16_t>message.sizes[0]
            p = out + at
            memcpy(p, &flagged, 4)
            memcpy(p + 4, &message.sequence, 8)
            memcpy(p + 12, &message.timestamp, 8)
            memcpy(p + 20, &subject, 2)
            stream = keyed[0]
            update(&stream, p + 4, 16)
            p += RECORD_HEAD
            for i in range(3):
                if i == 1 and message.sizes[1]:
                    headers = <uint32_t>message.sizes[1]
                    memcpy(p, &headers, 4)
                    p += 4
                copy_to(p, message.parts[i], message.sizes[i])
                update(&stream, p, message.sizes[i])
                p += message.sizes[i]
            checksum = hash64(&stream)
            memcpy(p, &checksum, 8)
        at += length
        row[0] += 1
    size[0] = at
    return True


def encode_records(columns, Py_ssize_t row, bytes key not None, max_bytes):
    cdef Input batch = Input(columns)
    cdef Source source = batch.source
    if not 0 <= row <= source.count:
        raise ValueError("row is outside the batch")
    if len(key) != 32:
        raise ValueError("a HighwayHash key has 32 bytes")
    cdef int64_t limit = <int64_t>min(max(max_bytes, 0), MAX_TAKE_BYTES)
    cdef int64_t size = 0, measured, stop = row, again = row
    cdef Stream keyed
    cdef Fault fault
    cdef bint good
    begin(&keyed, start_of(key))
    with nogil:
        good = write_records(&source, &stop, &keyed, limit, NULL, &size, &fault)
    if not good:
        raise error_of(fault)
    measured = size
    cdef bytes encoded = blank(size)
    cdef uint8_t *out = start_of(encoded)
    with nogil:
        source.count = stop
        good = write_records(&source, &again, &keyed, limit, out, &size, &fault)
        if good and (size != measured or again != stop):
            good = fail(&fault, CHANGED, 0)
    if not good:
        raise error_of(fault)
    return encoded, stop


# --- index.db -----------------------------------------------------------------------------------------------------


cdef bint walk_subjects(
    const uint8_t *p, int64_t *at, int64_t end, uint64_t *count, bint always_last, Fault *fault
) noexcept nogil:
    cdef uint64_t size, total, number
    cdef int64_t cursor, previous
    cdef int i, numbers
    while count[0] > 0 and at[0] < end:
        cursor = uvarint(p, at[0], end, &size)
        if cursor < 0:
            return fail(fault, INDEX_NUMBER, at[0])
        if cursor == 0:
            return True
        if size > <uint64_t>MAX_NAME:
            return fail(fault, INDEX_SUBJECT, at[0], size)
        if size:
            cursor += size
            if cursor > end:
                return True
            numbers = 2
            i = 0
            total = 0
            while i < numbers:
                previous = cursor
                cursor = uvarint(p, cursor, end, &number)
                if cursor < 0:
                    return fail(fault, INDEX_NUMBER, previous)
                if cursor == 0:
                    return True
                if i == 0 and (number > 1 or always_last):
                    numbers = 3
                i += 1
        at[0] = cursor
        count[0] -= 1
    return True


def skip_index_subjects(buffer, Py_ssize_t offset, uint64_t count, version):
    cdef View view = View(buffer)
    if not 0 <= offset <= view.size:
        raise ValueError("offset is outside the buffer")
    cdef bint always_last = version >= 4
    cdef int64_t at = offset
    cdef Fault fault
    cdef bint good
    with nogil:
        good = walk_subjects(view.data, &at, view.size, &count, always_last, &fault)
    if not good:
        raise error_of(fault)
    return at, count


# --- packed int64 -------------------------------------------------------------------------------------------------


def extremes(values):
    cdef View view = View(values)
    cdef int64_t value, least, most, i
    if view.size == 0 or view.size & 7:
        raise ValueError("values have 8 bytes each, and there is one at least")
    with nogil:
        least = most = <int64_t>load64(view.data)
        for i in range(1, view.size >> 3):
            value = <int64_t>load64(view.data + 8 * i)
            least = min(least, value)
            most = max(most, value)
    return least, most


def first_fall(values, int64_t after):
    cdef View view = View(values)
    cdef int64_t value, i, found = -1
    if view.size & 7:
        raise ValueError("values have 8 bytes each")
    with nogil:
        for i in range(view.size >> 3):
            value = <int64_t>load64(view.data + 8 * i)
            if value <= after:
                found = i
                break
            after = value
    return found


# --- subjects and masks -------------------------------------------------------------------------------------

include "_growing.pxi"
include "_sha256.pxi"
include "_json.pxi"
include "_masks.pxi"
include "_subjects.pxi"
