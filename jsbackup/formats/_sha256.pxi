# Part of the compiled kernel (`_kernels.pyx`): SHA-256 and HMAC.

cdef extern from *:
    """
    /* FIPS 180-4. With the instructions for it where the processor has them, asked once, when the module is loaded. */
    static const uint32_t SHA256_ROUNDS[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };

    static inline uint32_t turn_right(uint32_t x, int by) { return x >> by | x << (32 - by); }

    static inline uint32_t load_big_endian(const uint8_t *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }

    static void sha256_plain(uint32_t *state, const uint8_t *p, int64_t blocks) {
        uint32_t w[64], s[8], one, two;
        int i;
        for (; blocks > 0; blocks--, p += 64) {
            for (i = 0; i < 16; i++) w[i] = load_big_endian(p + 4 * i);
            for (; i < 64; i++) {
                one = turn_right(w[i - 15], 7) ^ turn_right(w[i - 15], 18) ^ w[i - 15] >> 3;
                two = turn_right(w[i - 2], 17) ^ turn_right(w[i - 2], 19) ^ w[i - 2] >> 10;
                w[i] = w[i - 16] + one + w[i - 7] + two;
            }
            memcpy(s, state, 32);
            for (i = 0; i < 64; i++) {
                one = s[7] + (turn_right(s[4], 6) ^ turn_right(s[4], 11) ^ turn_right(s[4], 25));
                one += ((s[4] & s[5]) ^ (~s[4] & s[6])) + SHA256_ROUNDS[i] + w[i];
                two = turn_right(s[0], 2) ^ turn_right(s[0], 13) ^ turn_right(s[0], 22);
                two += (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
                memmove(s + 1, s, 28);
                s[4] += one;
                s[0] = one + two;
            }
            for (i = 0; i < 8; i++) state[i] += s[i];
        }
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <cpuid.h>
    #include <immintrin.h>
    __attribute__((target("sha,sse4.1,ssse3")))
    static void sha256_instructions(uint32_t *state, const uint8_t *p, int64_t blocks) {
        const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
        /* The instructions want the eight words as ABEF and CDGH. */
        __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
        __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
        __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xF0);
        for (; blocks > 0; blocks--, p += 64) {
            __m128i before_abef = abef, before_cdgh = cdgh, w[4], x;
            int i;
            for (i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), order);
            #if defined(__GNUC__) && !defined(__clang__)
            #pragma GCC unroll 16
            #endif
            for (i = 0; i < 16; i++) {
                x = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(SHA256_ROUNDS + 4 * i)));
                cdgh = _mm_sha256rnds2_epu32(cdgh, abef, x);
                abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(x, 0x0E));
                if (i < 12) {
                    x = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
                    x = _mm_add_epi32(x, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
                    w[i & 3] = _mm_sha256msg2_epu32(x, w[(i + 3) & 3]);
                }
            }
            abef = _mm_add_epi32(abef, before_abef);
            cdgh = _mm_add_epi32(cdgh, before_cdgh);
        }
        low = _mm_shuffle_epi32(abef, 0x1B);
        high = _mm_shuffle_epi32(cdgh, 0xB1);
        _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(low, high, 0xF0));
        _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(high, low, 8));
    }

    static int has_sha256(void) {
        unsigned int a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 9 & 1) || !(c >> 19 & 1)) return 0; /* SSSE3, SSE4.1 */
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
    }
    #else
    static void sha256_instructions(uint32_t *state, const uint8_t *p, int64_t blocks) {}
    static int has_sha256(void) { return 0; }
    #endif

    """
    void sha256_plain(uint32_t *state, const uint8_t *p, int64_t blocks) noexcept nogil
    void sha256_instructions(uint32_t *state, const uint8_t *p, int64_t blocks) noexcept nogil
    bint has_sha256() noexcept nogil

cdef struct Keyed:
    uint32_t inner[8]  # after the key's block
    uint32_t outer[8]

cdef uint32_t SHA256_START[8]
SHA256_START[:] = [
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19
]
cdef bint SHA256_INSTRUCTIONS = has_sha256()
cdef const uint8_t *HEX = b"0123456789abcdef"


def use_sha256_instructions(wanted):
    global SHA256_INSTRUCTIONS
    SHA256_INSTRUCTIONS = wanted and has_sha256()
    return bool(SHA256_INSTRUCTIONS)


cdef inline void sha256_blocks(uint32_t *state, const uint8_t *p, int64_t blocks) noexcept nogil:
    if SHA256_INSTRUCTIONS:
        sha256_instructions(state, p, blocks)
    else:
        sha256_plain(state, p, blocks)


cdef inline void put_big_endian(uint8_t *p, uint64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        p[i] = <uint8_t>(value >> 8 * (size - 1 - i))


cdef void sha256_end(uint32_t *state, const uint8_t *p, int64_t size, uint64_t before, uint8_t *digest) noexcept nogil:
    """Hash the last `size` bytes, after whole blocks of `before` bytes in all."""
    cdef uint8_t last[128]
    cdef int64_t whole = size >> 6, rest = size & 63
    cdef int blocks = 1 if rest < 56 else 2, i
    sha256_blocks(state, p, whole)
    copy_to(last, p + 64 * whole, rest)
    last[rest] = 0x80
    memset(last + rest + 1, 0, 64 * blocks - 9 - rest)
    put_big_endian(last + 64 * blocks - 8, 8 * (before + <uint64_t>size), 8)
    sha256_blocks(state, last, blocks)
    for i in range(8):
        put_big_endian(digest + 4 * i, state[i], 4)


cdef void begin_hmac(Keyed *keyed, const uint8_t *key, int64_t size) noexcept nogil:
    cdef uint8_t block[64]
    cdef uint32_t state[8]
    cdef int i
    memset(block, 0, 64)
    if size > 64:
        memcpy(state, SHA256_START, 32)
        sha256_end(state, key, size, 0, block)
    else:
        copy_to(block, key, size)
    for i in range(64):
        block[i] ^= 0x36
    memcpy(keyed.inner, SHA256_START, 32)
    sha256_blocks(keyed.inner, block, 1)
    for i in range(64):
        block[i] ^= 0x36 ^ 0x5C
    memcpy(keyed.outer, SHA256_START, 32)
    sha256_blocks(keyed.outer, block, 1)


cdef void hmac_hex(const Keyed *keyed, const uint8_t *p, int64_t size, uint8_t *out) noexcept nogil:
    """Write the 64 hex digits of the HMAC."""
    cdef uint32_t state[8]
    cdef uint8_t digest[32]
    cdef int i
    memcpy(state, keyed.inner, 32)
    sha256_end(state, p, size, 64, digest)
    memcpy(state, keyed.outer, 32)
    sha256_end(state, digest, 32, 64, digest)
    for i in range(32):
        out[2 * i] = HEX[digest[i] >> 4]
        out[2 * i + 1] = HEX[digest[i] & 15]
