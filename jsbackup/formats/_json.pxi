# Part of the compiled kernel (`_kernels.pyx`): where values of JSON end, and their canonical form.
#
# What `json_text.py` does, on bytes. No recursion: levels are counted, and text nested deeper than `LEVELS` is not JSON.

from libc.stdlib cimport realloc

cdef enum:
    LEVELS = 128  # MAX_DEPTH of `json_text.py`


# --- characters ---------------------------------------------------------------------------------------------------

cdef extern from *:
    """
    /* The first byte from `at` on that no string of JSON has as it is or that is not ASCII; `end` if there is none.
       `room` is the end of what may be read. */
    #if defined(__SSE2__)
    #include <emmintrin.h>
    static inline int64_t plain_end(const uint8_t *p, int64_t at, int64_t end, int64_t room) {
        const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\\\'), space = _mm_set1_epi8(0x20);
        for (; at < end && room - at >= 16; at += 16) {
            __m128i x = _mm_loadu_si128((const __m128i *)(p + at));
            __m128i found = _mm_or_si128(_mm_cmpeq_epi8(x, quote), _mm_cmpeq_epi8(x, slash));
            int bits = _mm_movemask_epi8(_mm_or_si128(found, _mm_cmplt_epi8(x, space)));
            if (bits) {
                at += __builtin_ctz(bits);
                return at < end ? at : end;
            }
        }
    #else
    static inline int64_t plain_end(const uint8_t *p, int64_t at, int64_t end, int64_t room) {
        const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
        for (; at < end && room - at >= 8; at += 8) {
            uint64_t x, quote, slash;
            memcpy(&x, p + at, 8);
            quote = x ^ ones * '"';
            slash = x ^ ones * '\\\\';
            if ((((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((x - ones * 0x20) & ~x) | x) & tops) break;
        }
    #endif
        for (; at < end; at++)
            if (p[at] < 0x20 || p[at] >= 0x80 || p[at] == '"' || p[at] == '\\\\') break;
        return at < end ? at : end;
    }
    """
    int64_t plain_end(const uint8_t *p, int64_t at, int64_t end, int64_t room) noexcept nogil


cdef inline int utf8_size(const uint8_t *p, int64_t left) noexcept nogil:
    """How long the character is that begins here, of two bytes or more; 0 if it is none."""
    cdef uint8_t first = p[0], least = 0x80, most = 0xBF
    if first < 0xC2 or first > 0xF4 or left < 2:
        return 0
    if first < 0xE0:
        return 2 if p[1] >> 6 == 2 else 0
    if first < 0xF0:
        if first == 0xE0:
            least = 0xA0
        elif first == 0xED:
            most = 0x9F  # no surrogates
        return 3 if left >= 3 and least <= p[1] <= most and p[2] >> 6 == 2 else 0
    if first == 0xF0:
        least = 0x90
    elif first == 0xF4:
        most = 0x8F
    return 4 if left >= 4 and least <= p[1] <= most and p[2] >> 6 == 2 and p[3] >> 6 == 2 else 0


cdef inline int put_utf8(uint8_t *p, uint32_t c) noexcept nogil:
    """Write a character, also half of a surrogate pair; how many bytes it took."""
    if c < 0x80:
        p[0] = <uint8_t>c
        return 1
    if c < 0x800:
        p[0] = <uint8_t>(0xC0 | c >> 6)
        p[1] = <uint8_t>(0x80 | c & 0x3F)
        return 2
    if c < 0x10000:
        p[0] = <uint8_t>(0xE0 | c >> 12)
        p[1] = <uint8_t>(0x80 | c >> 6 & 0x3F)
        p[2] = <uint8_t>(0x80 | c & 0x3F)
        return 3
    p[0] = <uint8_t>(0xF0 | c >> 18)
    p[1] = <uint8_t>(0x80 | c >> 12 & 0x3F)
    p[2] = <uint8_t>(0x80 | c >> 6 & 0x3F)
    p[3] = <uint8_t>(0x80 | c & 0x3F)
    return 4


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    c |= 0x20
    return c - 87 if 97 <= c <= 102 else -1


cdef inline int64_t hex_unit(const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """The value of four hex digits; -1 if there are none."""
    cdef int64_t value = 0
    cdef int i, digit
    if end - at < 4:
        return -1
    for i in range(4):
        digit = hex_digit(p[at + i])
        if digit < 0:
            return -1
        value = value << 4 | digit
    return value


cdef inline int64_t escape(const uint8_t *p, int64_t at, int64_t end, uint32_t *c) noexcept nogil:
    """Where the escape at `at` (a backslash) ends, and what it means; -1 if it is none."""
    cdef int64_t unit, low
    if end - at < 2:
        return -1
    c[0] = p[at + 1]
    if c[0] == 34 or c[0] == 92 or c[0] == 47:
        return at + 2
    if c[0] == 110:
        c[0] = 10
    elif c[0] == 116:
        c[0] = 9
    elif c[0] == 114:
        c[0] = 13
    elif c[0] == 98:
        c[0] = 8
    elif c[0] == 102:
        c[0] = 12
    elif c[0] == 117:
        unit = hex_unit(p, at + 2, end)
        if unit < 0:
            return -1
        c[0] = <uint32_t>unit
        at += 4
        if unit >> 10 == 0x36 and end - at >= 4 and p[at + 2] == 92 and p[at + 3] == 117:
            low = hex_unit(p, at + 4, end)
            if low >> 10 == 0x37:
                c[0] = <uint32_t>(0x10000 + ((unit & 0x3FF) << 10) + (low & 0x3FF))
                at += 6
    else:
        return -1
    return at + 2


# --- what is one value --------------------------------------------------------------------------------------------


cdef inline int64_t past_space(const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    while at < end and p[at] <= 32 and (p[at] == 32 or p[at] == 10 or p[at] == 13 or p[at] == 9):
        at += 1
    return at


cdef inline int64_t string_end(const uint8_t *p, int64_t at, int64_t end, int64_t room, bint *escaped) noexcept nogil:
    """Where the string ends whose content begins at `at`: behind the closing quote. -1 if it is none."""
    cdef uint32_t c
    cdef int size
    escaped[0] = False
    while True:
        at = plain_end(p, at, end, room)
        if at >= end:
            return -1
        if p[at] == 34:
            return at + 1
        if p[at] == 92:
            escaped[0] = True
            at = escape(p, at, end, &c)
            if at < 0:
                return -1
        elif p[at] < 0x80:
            return -1
        else:
            while at < end and p[at] >= 0x80:
                size = utf8_size(p + at, end - at)
                if size == 0:
                    return -1
                at += size


cdef inline bint is_word(const uint8_t *p, int64_t at, int64_t end, const char *word, int64_t size) noexcept nogil:
    return end - at >= size and memcmp(p + at, word, size) == 0


cdef inline bint is_digit(const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    return at < end and 48 <= p[at] <= 57


cdef inline int64_t scalar_end(const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """Where a number or a word ends; -1 if it is none. What may follow is up to the caller."""
    cdef int64_t back
    cdef uint8_t c = p[at]
    if c == 116:
        return at + 4 if is_word(p, at, end, b"true", 4) else -1
    if c == 102:
        return at + 5 if is_word(p, at, end, b"false", 5) else -1
    if c == 110:
        return at + 4 if is_word(p, at, end, b"null", 4) else -1
    if c == 78:
        return at + 3 if is_word(p, at, end, b"NaN", 3) else -1
    if c == 73:
        return at + 8 if is_word(p, at, end, b"Infinity", 8) else -1
    if c == 45:
        at += 1
        if is_word(p, at, end, b"Infinity", 8):
            return at + 8
    if not is_digit(p, at, end):
        return -1
    if p[at] == 48:
        at += 1
    else:
        while is_digit(p, at, end):
            at += 1
    if at < end and p[at] == 46 and is_digit(p, at + 1, end):
        at += 2
        while is_digit(p, at, end):
            at += 1
    if at < end and p[at] | 0x20 == 101:
        back = at
        at += 1
        if at < end and (p[at] == 43 or p[at] == 45):
            at += 1
        if not is_digit(p, at, end):
            return back
        while is_digit(p, at, end):
            at += 1
    return at


cdef int64_t value_end(const uint8_t *p, int64_t at, int64_t end, int64_t room, int depth) noexcept nogil:
    """Where the value at `at` ends, which is `depth` levels down; -1 if it is none, or nested too deeply."""
    cdef uint8_t closing[LEVELS]
    cdef bint escaped
    cdef int top = depth
    while True:
        if at >= end:
            return -1
        if p[at] == 34:
            at = string_end(p, at + 1, end, room, &escaped)
        elif p[at] == 123 or p[at] == 91:
            if top == LEVELS:
                return -1
            closing[top] = p[at] + 2
            top += 1
            at = past_space(p, at + 1, end)
            if at >= end:
                return -1
            if p[at] == closing[top - 1]:
                top -= 1
                at += 1
            elif closing[top - 1] == 93:
                continue
            else:
                at = member_value(p, at, end, room)
                if at < 0:
                    return -1
                continue
        else:
            at = scalar_end(p, at, end)
        if at < 0:
            return -1
        while top > depth:
            at = past_space(p, at, end)
            if at >= end:
                return -1
            if p[at] == 44:
                break
            if p[at] != closing[top - 1]:
                return -1
            top -= 1
            at += 1
        if top == depth:
            return at
        at = past_space(p, at + 1, end)
        if closing[top - 1] == 125:
            at = member_value(p, at, end, room)
            if at < 0:
                return -1


cdef inline int64_t member_value(const uint8_t *p, int64_t at, int64_t end, int64_t room) noexcept nogil:
    """Where the value of the member begins whose name is at `at`; -1 if there is none."""
    cdef bint escaped
    if at >= end or p[at] != 34:
        return -1
    at = string_end(p, at + 1, end, room, &escaped)
    if at < 0:
        return -1
    at = past_space(p, at, end)
    if at >= end or p[at] != 58:
        return -1
    return past_space(p, at + 1, end)


# --- the canonical form -------------------------------------------------------------------------------------------

cdef struct Piece:  # of an object: a member, as it was written
    int64_t start
    int64_t stop

cdef struct Scratch:
    Growing out
    Growing moved
    Piece *pieces
    Piece *spare
    int64_t count
    int64_t room


cdef inline bint put_escaped(Growing *out, uint32_t c) noexcept nogil:
    """Write a character of a string as the canonical form has it."""
    cdef uint8_t *p
    if not reserve(out, 6):
        return False
    p = out.data + out.size
    if c == 34 or c == 92 or (c < 32 and (c == 10 or c == 9 or c == 13 or c == 8 or c == 12)):
        p[0] = 92
        p[1] = <uint8_t>(c if c >= 32 else 110 if c == 10 else 116 if c == 9 else 114 if c == 13 else 98 if c == 8 else 102)
        out.size += 2
    elif c < 32:
        memcpy(p, b"\\u00", 4)
        p[4] = HEX[c >> 4]
        p[5] = HEX[c & 15]
        out.size += 6
    else:
        out.size += put_utf8(p, c)
    return True


cdef int64_t put_string(Growing *out, const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """Write the string at `at`; where it ends. -1 if it is none, -2 if there is no memory."""
    cdef int64_t start = at
    cdef uint32_t c
    at += 1
    while True:
        at = plain_end(p, at, end, end)
        if at >= end:
            return -1
        if p[at] >= 0x80:
            while at < end and p[at] >= 0x80:  # found to be characters before
                at += 1
            continue
        if not put(out, p + start, at - start):
            return -2
        if p[at] == 34:
            return at + 1 if put_byte(out, 34) else -2
        if p[at] != 92:
            return -1
        at = escape(p, at, end, &c)
        if at < 0:
            return -1
        if not put_escaped(out, c):
            return -2
        start = at


cdef bint put_number(Growing *out, const uint8_t *p, int64_t size) noexcept nogil:
    """Write a number or a word. False if there is no memory."""
    cdef int64_t at = 0, whole, fraction = 0, exponent = 0, digits, skipped = 0, power, i
    cdef const uint8_t *after
    cdef bint negative = p[0] == 45, negative_power = False
    at = negative
    whole = at
    while is_digit(p, at, size):
        at += 1
    whole = at - whole
    if whole == 0:
        return put(out, p, size)
    after = p + at + 1
    if at < size and p[at] == 46:
        at += 1
        while is_digit(p, at, size):
            at += 1
            fraction += 1
    if at < size:
        at += 1
        if at < size and (p[at] == 43 or p[at] == 45):
            negative_power = p[at] == 45
            at += 1
        if size - at > 18:
            return put(out, p, size)
        while at < size:
            exponent = 10 * exponent + (p[at] - 48)
            at += 1
        if negative_power:
            exponent = -exponent
    p += negative
    digits = whole + fraction
    while digits > 0 and digit_at(p, whole, after, skipped) == 48:
        skipped += 1
        digits -= 1
    power = exponent - fraction
    while digits > 0 and digit_at(p, whole, after, skipped + digits - 1) == 48:
        digits -= 1
        power += 1
    if digits == 0:
        return put_byte(out, 48)
    if not reserve(out, digits + 64):
        return False
    if negative:
        put_byte(out, 45)
    if power < 0 and max(digits, -power) < 40:
        for i in range(min(digits + power, 0), digits):
            if i == digits + power:
                if i <= 0:
                    put_byte(out, 48)
                put_byte(out, 46)
            put_byte(out, digit_at(p, whole, after, skipped + i) if i >= 0 else 48)
        return True
    for i in range(digits):
        put_byte(out, digit_at(p, whole, after, skipped + i))
    if power >= 0 and digits + power <= 40:
        for i in range(power):
            put_byte(out, 48)
        return True
    put_byte(out, 101)
    return put_decimal(out, power)


cdef inline uint8_t digit_at(const uint8_t *p, int64_t whole, const uint8_t *fraction, int64_t i) noexcept nogil:
    return p[i] if i < whole else fraction[i - whole]


cdef bint put_decimal(Growing *out, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int size = 0
    cdef uint64_t left = <uint64_t>(value if value >= 0 else -value)
    if value < 0 and not put_byte(out, 45):
        return False
    while True:
        size += 1
        digits[20 - size] = <uint8_t>(48 + left % 10)
        left //= 10
        if left == 0:
            return put(out, digits + 20 - size, size)


cdef inline int64_t name_unit(const uint8_t *p, int64_t at, uint8_t *unit) noexcept nogil:
    """The byte at `at` of a name in canonical form, without its escape; the place of the next, 0 at its end."""
    unit[0] = p[at]
    if unit[0] == 34:
        return 0
    if unit[0] != 92:
        return at + 1
    unit[0] = p[at + 1]
    if unit[0] == 117:
        unit[0] = <uint8_t>(hex_digit(p[at + 4]) << 4 | hex_digit(p[at + 5]))
        return at + 6
    if unit[0] != 34 and unit[0] != 92:
        unit[0] = 10 if unit[0] == 110 else 9 if unit[0] == 116 else 13 if unit[0] == 114 else 8 if unit[0] == 98 else 12
    return at + 2


cdef int order_of_names(const uint8_t *p, int64_t one, int64_t other) noexcept nogil:
    """Compare two names in canonical form, by their characters: below 0, 0 or above. Both begin behind their quote.

    Whatever is written, they end at the quotes that `fence` puts behind it."""
    cdef uint8_t left, right
    while True:
        one = name_unit(p, one, &left)
        other = name_unit(p, other, &right)
        if one == 0 or other == 0:
            return (one > 0) - (other > 0)
        if left != right:
            return <int>left - <int>right


cdef inline bint fence(Growing *out) noexcept nogil:
    """Put quotes behind what is written, to end a name that has none."""
    if not reserve(out, 8):
        return False
    memset(out.data + out.size, 34, 8)
    return True


cdef bint add_piece(Scratch *s, int64_t start) noexcept nogil:
    cdef int64_t room
    cdef void *grown
    if s.count == s.room:
        room = 2 * s.room + 64
        grown = realloc(s.pieces, room * sizeof(Piece))
        if grown == NULL:
            return False
        s.pieces = <Piece *>grown
        grown = realloc(s.spare, room * sizeof(Piece))
        if grown == NULL:
            return False
        s.spare = <Piece *>grown
        s.room = room
    s.pieces[s.count].start = start
    s.count += 1
    return True


cdef bint sort_members(Scratch *s, int64_t first) noexcept nogil:
    """Bring the members from piece `first` on into the order of their names; those of one name stay as they were."""
    cdef Piece *pieces = s.pieces + first
    cdef Piece *spare = s.spare + first
    cdef Piece *other
    cdef const uint8_t *text
    cdef int64_t count = s.count - first, width = 1, low, middle, high, i, j, k, begin = pieces[0].start
    if not fence(&s.out):
        return False
    text = s.out.data
    while width < count:
        low = 0
        while low < count:
            middle = min(low + width, count)
            high = min(low + 2 * width, count)
            i = low
            j = middle
            for k in range(low, high):
                if j == high or (i < middle and order_of_names(text, pieces[i].start + 1, pieces[j].start + 1) <= 0):
                    spare[k] = pieces[i]
                    i += 1
                else:
                    spare[k] = pieces[j]
                    j += 1
            low = high
        other = pieces
        pieces = spare
        spare = other
        width *= 2
    s.moved.size = 0
    for i in range(count):
        if i and not put_byte(&s.moved, 44):
            return False
        if not put(&s.moved, text + pieces[i].start, pieces[i].stop - pieces[i].start):
            return False
    memcpy(s.out.data + begin, s.moved.data, s.moved.size)
    return True


cdef int write_canonical(Scratch *s, const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """Write the canonical form of the value at `at` over `s.out`: 1, 0 if it is none that ends at `end`, -1 if there is
    no memory."""
    cdef int64_t firsts[LEVELS]  # the first piece of each level, -1 for an array
    cdef bint disordered[LEVELS]
    cdef int top = 0
    cdef int64_t start, last
    cdef bint member = False
    s.out.size = 0
    s.count = 0
    while True:
        if member:
            if at >= end or p[at] != 34:
                return 0
            if not add_piece(s, s.out.size):
                return -1
            at = put_string(&s.out, p, at, end)
            if at < 0:
                return <int>(at + 1)
            if not fence(&s.out):
                return -1
            last = s.count - 2
            if last >= firsts[top - 1] and not disordered[top - 1]:
                disordered[top - 1] = (
                    order_of_names(s.out.data, s.pieces[last].start + 1, s.pieces[last + 1].start + 1) > 0
                )
            at = past_space(p, at, end)
            if at >= end or p[at] != 58:
                return 0
            if not put_byte(&s.out, 58):
                return -1
            at = past_space(p, at + 1, end)
        if at >= end:
            return 0
        if p[at] == 123 or p[at] == 91:
            if top == LEVELS:
                return 0
            if not put_byte(&s.out, p[at]):
                return -1
            member = p[at] == 123
            firsts[top] = s.count if member else -1
            disordered[top] = False
            top += 1
            at = past_space(p, at + 1, end)
            if at >= end:
                return 0
            if p[at] != (125 if member else 93):
                continue
        elif p[at] == 34:
            at = put_string(&s.out, p, at, end)
            if at < 0:
                return <int>(at + 1)
        else:
            start = at
            at = scalar_end(p, at, end)
            if at < 0:
                return 0
            if not put_number(&s.out, p + start, at - start):
                return -1
        while top > 0:
            at = past_space(p, at, end)
            if at >= end:
                return 0
            member = firsts[top - 1] >= 0
            if member and s.count > firsts[top - 1]:
                s.pieces[s.count - 1].stop = s.out.size
            if p[at] == 44:
                break
            if p[at] != (125 if member else 93):
                return 0
            if member:
                if disordered[top - 1] and not sort_members(s, firsts[top - 1]):
                    return -1
                s.count = firsts[top - 1]
            if not put_byte(&s.out, p[at]):
                return -1
            at += 1
            top -= 1
        if top == 0:
            return at == end
        if not put_byte(&s.out, 44):
            return -1
        at = past_space(p, at + 1, end)
