# Part of the compiled kernel (`_kernels.pyx`): masks. `_shaping_py.py` is the readable twin.

from libc.stdint cimport INT32_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memchr

from jsbackup.formats import _shaping_py as _shaping
from jsbackup.formats.mask_rules import RuleCount, MaskedRows, ShapedColumn


cdef enum:
    # Steps of a path, and its end.
    MEMBER
    ELEMENT
    EVERY
    ANYWHERE
    DONE

cdef enum:
    # What a rule is for, and what it does.
    IN_PATH
    IN_HEADER
    IN_PAYLOAD
    REDACT
    HASH
    DROP
    ZERO

cdef enum:
    # What is wrong with a message.
    GOOD
    UNREADABLE
    TOO_MUCH
    NO_MEMORY

cdef enum:
    # What is counted for each rule.
    SEEN
    READ
    HIT
    VALUES
    FAILED
    COUNTS

_KINDS = {"member": MEMBER, "element": ELEMENT, "every": EVERY, "anywhere": ANYWHERE}
_PLACES = {"path": IN_PATH, "header": IN_HEADER, "payload": IN_PAYLOAD}
_ACTIONS = {"redact": REDACT, "hash": HASH, "drop": DROP, "zero": ZERO}

cdef struct Place:  # of the way along a path: a step, or its end
    int kind
    int64_t rule
    int64_t index
    const uint8_t *name
    int64_t size

cdef struct Rule:
    int place
    int action
    int64_t first  # place
    const uint8_t *name  # of a header, in lower case
    int64_t size

cdef struct Level:
    bint is_object
    bint pending  # replaced at its end
    int64_t index
    int64_t start  # in the output, of a pending one

cdef struct RuleSet:  # the rules for some messages, in order
    const int32_t *rules
    int64_t count
    bint paths
    bint headers
    int64_t payload  # a rule, -1 if there is none
    const uint64_t *begin  # the places to begin at

cdef struct Masking:
    const Place *places
    const Rule *rules
    const uint64_t *done  # all places at ends
    const Keyed *keyed
    int64_t max_values
    int64_t max_bytes
    int64_t words  # of a set of places
    uint64_t *here
    uint64_t *inside  # of each level: the places for what is in it
    uint64_t *pending  # of each level: the places that it ends
    int64_t *found  # of each rule, in the message
    int64_t *counts
    Level levels[LEVELS]
    Growing *headers  # output, where it is asked for
    Growing *data
    bint with_headers
    bint with_data
    Scratch scratch


cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    static inline int lowest_bit(uint64_t x) { return __builtin_ctzll(x); }
    #else
    static inline int lowest_bit(uint64_t x) { int n = 0; while (!(x & 1)) { x >>= 1; n++; } return n; }
    #endif
    """
    int lowest_bit(uint64_t x) noexcept nogil


cdef bint is_name(const uint8_t *p, int64_t at, int64_t end, const uint8_t *name, int64_t size) noexcept nogil:
    """Whether the content of a string, with escapes, is that name."""
    cdef uint8_t bytes_of[4]
    cdef uint32_t c
    cdef int64_t i = 0
    cdef int width
    while at < end:
        if p[at] != 92:
            if i == size or p[at] != name[i]:
                return False
            at += 1
            i += 1
            continue
        at = escape(p, at, end, &c)
        if at < 0:
            return False
        width = put_utf8(bytes_of, c)
        if size - i < width or memcmp(bytes_of, name + i, width):
            return False
        i += width
    return i == size


cdef inline void clear(uint64_t *places, int64_t words) noexcept nogil:
    places[0] = 0
    if words > 1:
        memset(places, 0, 8 * words)


cdef inline void add_place(uint64_t *places, int64_t place) noexcept nogil:
    places[place >> 6] |= <uint64_t>1 << (place & 63)


cdef bint step_to_member(
    const Masking *m, const uint64_t *places, const uint8_t *p, int64_t at, int64_t end, bint escaped, uint64_t *out
) noexcept nogil:
    """Find the places for the member with the name at `at`; whether there are any."""
    cdef const Place *place
    cdef uint64_t left
    cdef int64_t w, i
    cdef bint same, some = False
    clear(out, m.words)
    for w in range(m.words):
        left = places[w]
        while left:
            i = 64 * w + lowest_bit(left)
            left &= left - 1
            place = &m.places[i]
            if place.kind == ANYWHERE:
                add_place(out, i)
                some = True
            if place.kind == EVERY:
                same = True
            elif place.kind == ELEMENT:
                same = False
            elif escaped:
                same = is_name(p, at, end, place.name, place.size)
            else:
                same = place.size == end - at and (
                    place.size == 0 or (p[at] == place.name[0] and memcmp(p + at, place.name, end - at) == 0)
                )
            if same:
                add_place(out, i + 1)
                some = True
    return some


cdef bint step_to_element(const Masking *m, const uint64_t *places, int64_t index, uint64_t *out) noexcept nogil:
    cdef const Place *place
    cdef uint64_t left
    cdef int64_t w, i
    cdef bint some = False
    clear(out, m.words)
    for w in range(m.words):
        left = places[w]
        while left:
            i = 64 * w + lowest_bit(left)
            left &= left - 1
            place = &m.places[i]
            if place.kind == ANYWHERE:
                add_place(out, i)
            elif place.kind == EVERY or (place.kind == ELEMENT and place.index == index):
                add_place(out, i + 1)
            else:
                continue
            some = True
    return some


cdef bint leads_on(const Masking *m, const uint64_t *places, bint is_object) noexcept nogil:
    """Whether anything in an object or array can be meant."""
    cdef uint64_t left
    cdef int64_t w
    cdef int kind
    for w in range(m.words):
        left = places[w]
        while left:
            kind = m.places[64 * w + lowest_bit(left)].kind
            left &= left - 1
            if kind == ANYWHERE or kind == EVERY or kind == (MEMBER if is_object else ELEMENT):
                return True
    return False


cdef int hash_value(Masking *m, const uint8_t *p, int64_t at, int64_t end, uint8_t *hex) noexcept nogil:
    cdef int written
    if p[at] == 34 and memchr(p + at, 92, end - at) == NULL:
        hmac_hex(m.keyed, p + at, end - at, hex)  # a string without escapes is canonical
        return GOOD
    written = write_canonical(&m.scratch, p, at, end)
    if written <= 0:
        return NO_MEMORY if written < 0 else UNREADABLE
    hmac_hex(m.keyed, m.scratch.out.data, m.scratch.out.size, hex)
    return GOOD


cdef void replace_again(Masking *m, int64_t rule, uint8_t *quoted, int64_t *size) noexcept nogil:
    """Replace the result of a rule, a string in quotes, by that of another one."""
    if m.rules[rule].action == REDACT:
        memcpy(quoted, b'"***"', 5)
        size[0] = 5
    else:
        hmac_hex(m.keyed, quoted, size[0], quoted + 1)
        quoted[65] = 34
        size[0] = 66


cdef int replace_value(
    Masking *m, const uint64_t *places, const uint8_t *p, int64_t at, int64_t end, Growing *out
) noexcept nogil:
    """Write what the rules make of a value whose paths end here, each of the result of the one before. `p` may be the
    output itself, which then shrinks to `at` first."""
    cdef uint8_t quoted[66]
    cdef uint64_t left
    cdef int64_t w, rule, size = 0
    cdef int wrong
    quoted[0] = 34
    for w in range(m.words):
        left = places[w] & m.done[w]
        while left:
            rule = m.places[64 * w + lowest_bit(left)].rule
            left &= left - 1
            m.found[rule] += 1
            if m.found[rule] > m.max_values:
                return TOO_MUCH
            if size == 0 and m.rules[rule].action == HASH:
                wrong = hash_value(m, p, at, end, quoted + 1)
                if wrong:
                    return wrong
                quoted[65] = 34
                size = 66
            else:
                replace_again(m, rule, quoted, &size)
    if p == out.data:
        out.size = at
    return GOOD if put(out, quoted, size) else NO_MEMORY


cdef int mask_json(
    Masking *m, const uint8_t *p, int64_t at, int64_t end, int64_t room, const uint64_t *begin
) noexcept nogil:
    """Write the masked text; what is wrong, if anything is. One walk for all rules: within a value that a rule
    replaces, only those before it are still looked for."""
    cdef uint64_t *here = m.here
    cdef uint64_t *inside
    cdef Level *level
    cdef int64_t copied = at, w, start, stop, lowest
    cdef uint64_t some
    cdef bint escaped, is_object, goes_in, entering = True
    cdef int top = 0, wrong
    memcpy(here, begin, 8 * m.words)
    at = past_space(p, at, end)
    while True:
        if entering:
            # A value, and the places where it is in `here`.
            if at >= end:
                return UNREADABLE
            start = at
            some = 0
            lowest = -1
            for w in range(m.words):
                some |= here[w]
                if lowest < 0 and here[w] & m.done[w]:
                    lowest = m.rules[m.places[64 * w + lowest_bit(here[w] & m.done[w])].rule].first
            inside = m.inside + top * m.words
            goes_in = some and (p[at] == 123 or p[at] == 91)
            if goes_in:
                if top == LEVELS:
                    return UNREADABLE
                for w in range(m.words):
                    inside[w] = here[w] & ~m.done[w]
                    if lowest >= 0:
                        if 64 * w >= lowest:
                            inside[w] = 0
                        elif lowest - 64 * w < 64:
                            inside[w] &= (<uint64_t>1 << (lowest - 64 * w)) - 1
                goes_in = leads_on(m, inside, p[at] == 123)
            if not goes_in:
                at = string_end(p, at + 1, end, room, &escaped) if p[at] == 34 else value_end(p, at, end, room, top)
                if at < 0:
                    return UNREADABLE
                if lowest >= 0:
                    if not put(m.data, p + copied, start - copied):
                        return NO_MEMORY
                    copied = at
                    wrong = replace_value(m, here, p, start, at, m.data)
                    if wrong:
                        return wrong
            else:
                level = &m.levels[top]
                level.is_object = p[at] == 123
                level.index = 0
                level.pending = lowest >= 0
                if level.pending:
                    memcpy(m.pending + top * m.words, here, 8 * m.words)
                    if not put(m.data, p + copied, start - copied):
                        return NO_MEMORY
                    copied = at
                    level.start = m.data.size
                top += 1
                at = past_space(p, at + 1, end)
                if at >= end:
                    return UNREADABLE
                if p[at] != (125 if level.is_object else 93):
                    if not level.is_object:
                        entering = True
                        step_to_element(m, inside, 0, here)
                        continue
                    entering = False
        if not entering:
            # The name of a member.
            if at >= end or p[at] != 34:
                return UNREADABLE
            start = at + 1
            at = string_end(p, start, end, room, &escaped)
            if at < 0:
                return UNREADABLE
            stop = at - 1
            at = past_space(p, at, end)
            if at >= end or p[at] != 58:
                return UNREADABLE
            at = past_space(p, at + 1, end)
            if step_to_member(m, m.inside + (top - 1) * m.words, p, start, stop, escaped, here):
                entering = True
                continue
            if at < end and p[at] == 34:
                at = string_end(p, at + 1, end, room, &escaped)
            else:
                at = value_end(p, at, end, room, top)
            if at < 0:
                return UNREADABLE
        # What comes after a value.
        while top:
            level = &m.levels[top - 1]
            at = past_space(p, at, end)
            if at >= end:
                return UNREADABLE
            if p[at] == 44:
                break
            if p[at] != (125 if level.is_object else 93):
                return UNREADABLE
            at += 1
            top -= 1
            if level.pending:
                if not put(m.data, p + copied, at - copied):
                    return NO_MEMORY
                copied = at
                wrong = replace_value(m, m.pending + top * m.words, m.data.data, level.start, m.data.size, m.data)
                if wrong:
                    return wrong
        if top == 0:
            break
        at = past_space(p, at + 1, end)
        entering = not level.is_object
        if entering:
            level.index += 1
            step_to_element(m, m.inside + (top - 1) * m.words, level.index, here)
    if past_space(p, at, end) != end:
        return UNREADABLE
    return GOOD if put(m.data, p + copied, end - copied) else NO_MEMORY


cdef inline int64_t line_end(const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """Where the CR is that ends a line; -1 if none does, or a lone CR or LF comes before."""
    cdef const uint8_t *found = <const uint8_t *>memchr(p + at, 13, end - at) if at < end else NULL
    if found == NULL or found + 1 >= p + end or found[1] != 10 or memchr(p + at, 10, found - (p + at)) != NULL:
        return -1
    return found - p


cdef bint is_header(const uint8_t *p, int64_t start, int64_t stop, const Rule *rule) noexcept nogil:
    cdef int64_t i
    cdef uint8_t c
    while start < stop and (p[start] == 32 or 9 <= p[start] <= 13):
        start += 1
    while start < stop and (p[stop - 1] == 32 or 9 <= p[stop - 1] <= 13):
        stop -= 1
    if stop - start != rule.size:
        return False
    for i in range(rule.size):
        c = p[start + i]
        if (c | 0x20 if 65 <= c <= 90 else c) != rule.name[i]:
            return False
    return True


cdef bint quote_header(Growing *out, const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """Write a header's value as a canonical string; a byte that is in no character as half of a surrogate pair."""
    cdef int size
    out.size = 0
    if not put_byte(out, 34):
        return False
    while at < end:
        size = 1 if p[at] < 0x80 else utf8_size(p + at, end - at)
        if size > 1:
            if not put(out, p + at, size):
                return False
        elif not put_escaped(out, p[at] if size else <uint32_t>0xDC00 + p[at]):
            return False
        at += max(size, 1)
    return put_byte(out, 34)


cdef int mask_headers(Masking *m, const RuleSet *rules, const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """Write the masked header block; what is wrong, if anything is."""
    cdef uint8_t quoted[66]
    cdef const uint8_t *colon
    cdef int64_t copied = at, line = line_end(p, at, end), start, first, stop, size, i, rule
    if line < 0 or line - at < 8 or memcmp(p + at, b"NATS/1.0", 8) or (line - at > 8 and p[at + 8] != 32):
        return UNREADABLE
    quoted[0] = 34
    while True:
        start = line + 2
        line = line_end(p, start, end)
        if line < 0:
            return UNREADABLE
        if line == start:
            break
        colon = <const uint8_t *>memchr(p + start, 58, line - start)
        if colon == NULL or colon == p + start or p[start] == 32 or p[start] == 9:
            return UNREADABLE
        first = colon - p + 1
        stop = line
        while first < stop and (p[first] == 32 or p[first] == 9):
            first += 1
        while first < stop and (p[stop - 1] == 32 or p[stop - 1] == 9):
            stop -= 1
        size = 0
        for i in range(rules.count):
            rule = rules.rules[i]
            if m.rules[rule].place != IN_HEADER or not is_header(p, start, colon - p, &m.rules[rule]):
                continue
            m.found[rule] += 1
            if size == 0 and m.rules[rule].action == HASH:
                if not quote_header(&m.scratch.out, p, first, stop):
                    return NO_MEMORY
                hmac_hex(m.keyed, m.scratch.out.data, m.scratch.out.size, quoted + 1)
                quoted[65] = 34
                size = 66
            else:
                replace_again(m, rule, quoted, &size)
        if size:
            if not put(m.headers, p + copied, first - copied) or not put(m.headers, quoted + 1, size - 2):
                return NO_MEMORY
            copied = stop
    if line + 2 != end:
        return UNREADABLE
    return GOOD if put(m.headers, p + copied, end - copied) else NO_MEMORY


cdef bint is_json(const uint8_t *p, int64_t at, int64_t end, int64_t room) noexcept nogil:
    at = value_end(p, past_space(p, at, end), end, room, 0)
    return at >= 0 and past_space(p, at, end) == end


cdef bint might_pass(const Masking *m, const RuleSet *rules, int64_t size, int64_t most) noexcept nogil:
    """Whether one of several paths might have made a payload of that size too large, which those after it undid."""
    cdef int64_t i, paths = 0
    for i in range(rules.count):
        if m.rules[rules.rules[i]].place == IN_PATH:
            paths += 1
            size += 66 * m.found[rules.rules[i]]
    return paths > 1 and size > most


cdef int mask_payload(
    Masking *m, const RuleSet *rules, const uint8_t *p, int64_t at, int64_t end, int64_t room, bint apart
) noexcept nogil:
    """Write the masked payload, which is not empty, or as it is if something is wrong; what is wrong with it."""
    cdef int64_t before = m.data.size, most = max(end - at, m.max_bytes)
    cdef int wrong = GOOD
    if rules.paths:
        wrong = mask_json(m, p, at, end, room, rules.begin)
        if wrong == TOO_MUCH and not is_json(p, at, end, room):
            wrong = UNREADABLE
        if wrong == GOOD and m.data.size - before > most:
            wrong = TOO_MUCH
        if wrong == GOOD and apart and might_pass(m, rules, end - at, most):
            wrong = TOO_MUCH
    if wrong == NO_MEMORY:
        return wrong
    if rules.payload >= 0 and (wrong == GOOD or (wrong == UNREADABLE and apart)):
        m.found[rules.payload] = 1
        m.data.size = before
        if m.rules[rules.payload].action == ZERO:
            if not reserve(m.data, end - at):
                return NO_MEMORY
            memset(m.data.data + before, 0, end - at)
            m.data.size += end - at
    elif wrong or not rules.paths:
        m.data.size = before
        if not put(m.data, p + at, end - at):
            return NO_MEMORY
    return wrong


cdef void count_rules(
    Masking *m, const RuleSet *rules, bint with_headers, bint with_data, int bad_headers, int bad_data
) noexcept nogil:
    """Count a message that is sent on."""
    cdef int64_t i, found
    cdef int64_t *count
    cdef int bad
    for i in range(rules.count):
        found = m.found[rules.rules[i]]
        count = m.counts + COUNTS * rules.rules[i]
        if m.rules[rules.rules[i]].place == IN_HEADER:
            count[SEEN] += 1
            bad = bad_headers
            if not with_headers:
                continue
        elif not with_data:
            continue
        else:
            count[SEEN] += 1
            bad = bad_data if m.rules[rules.rules[i]].place == IN_PATH else GOOD
        if bad:
            count[FAILED] += 1
        else:
            count[READ] += 1
            count[HIT] += found > 0
            count[VALUES] += found


cdef int mask_row(
    Masking *m, const Source *source, const RuleSet *rules, const int64_t *start, const int64_t *stop, int with_headers
) noexcept nogil:
    """Write the masked columns of a message; what is wrong with it. `with_headers`: 1 if it has some, 2 if masks are
    applied one by one as far as they can be."""
    cdef bint apart = with_headers & 2
    cdef int64_t headers = m.headers.size, data = m.data.size, i
    cdef int bad_headers = GOOD, bad_data = GOOD, bad
    for i in range(rules.count if rules != NULL else 0):
        m.found[rules.rules[i]] = 0
    if rules != NULL and rules.headers and with_headers & 1:
        bad_headers = mask_headers(m, rules, source.values[1], start[0], stop[0])
        if bad_headers == UNREADABLE:
            m.headers.size = headers
    if m.with_headers and (bad_headers == UNREADABLE or rules == NULL or not (rules.headers and with_headers & 1)):
        if not put(m.headers, source.values[1] + start[0], stop[0] - start[0]):
            return NO_MEMORY
    if rules == NULL or stop[1] == start[1]:
        if m.with_data and not put(m.data, source.values[2] + start[1], stop[1] - start[1]):
            return NO_MEMORY
    elif m.with_data and (not bad_headers or apart):
        bad_data = mask_payload(m, rules, source.values[2], start[1], stop[1], source.sizes[2], apart)
    if bad_headers == NO_MEMORY or bad_data == NO_MEMORY:
        return NO_MEMORY
    bad = bad_data if bad_data == TOO_MUCH else bad_headers or bad_data
    if bad == TOO_MUCH or (bad and not apart):
        m.headers.size = headers
        m.data.size = data
        if m.with_headers and not put(m.headers, source.values[1] + start[0], stop[0] - start[0]):
            return NO_MEMORY
        if m.with_data and not put(m.data, source.values[2] + start[1], stop[1] - start[1]):
            return NO_MEMORY
        return bad
    if rules != NULL:
        count_rules(m, rules, with_headers & 1, stop[1] > start[1], bad_headers, bad_data)
    return bad


cdef struct MaskedOut:
    int32_t *header_ends
    int32_t *data_ends
    uint8_t *faults


cdef bint mask_rows(
    Masking *m,
    const Source *source,
    RuleSet *sets,
    int64_t set_count,
    const uint8_t *rows,
    bint apart,
    MaskedOut *out,
    Fault *fault,
) noexcept nogil:
    cdef int64_t row, i
    cdef int64_t start[2]
    cdef int64_t stop[2]
    cdef int32_t number
    cdef int with_headers, wrong
    out.header_ends[0] = out.data_ends[0] = 0
    for row in range(source.count):
        for i in range(2):
            start[i] = load_int32(source.offsets[i + 1] + 4 * row)
            stop[i] = load_int32(source.offsets[i + 1] + 4 * row + 4)
            if start[i] < 0 or stop[i] < start[i] or stop[i] > source.sizes[i + 1]:
                return fail(fault, BATCH_OFFSETS, row)
        number = load_int32(rows + 4 * row)
        if number < -1 or number >= set_count:
            return fail(fault, CHANGED, row)
        with_headers = source.validity == NULL or source.validity[row >> 3] >> (row & 7) & 1
        if not with_headers:
            stop[0] = start[0]
        wrong = mask_row(m, source, NULL if number < 0 else &sets[number], start, stop, with_headers | 2 * apart)
        if wrong == NO_MEMORY:
            return fail(fault, NO_ROOM, row)
        if m.headers.size > INT32_MAX or m.data.size > INT32_MAX:
            return fail(fault, BATCH_MASKED, row)
        out.faults[row] = <uint8_t>wrong
        out.header_ends[row + 1] = <int32_t>m.headers.size
        out.data_ends[row + 1] = <int32_t>m.data.size
    return True


cdef class Masker:
    cdef Place *places
    cdef Rule *rules
    cdef uint64_t *done
    cdef int64_t rule_count, words, max_values, max_bytes
    cdef Keyed keyed
    cdef object twin
    cdef list kept  # what the names above point into

    def __cinit__(
        self,
        rules,
        bytes secret not None,
        max_values=_shaping.MAX_VALUES,
        max_bytes=_shaping.MAX_MASKED_BYTES,
    ):
        cdef Place *place
        cdef Rule *rule
        cdef int64_t total = sum(len(one.steps) + 1 for one in rules), number = 0, at = 0
        self.twin = _shaping.Masker(rules, secret, max_values, max_bytes)
        self.max_values = max_values
        self.max_bytes = max_bytes
        self.kept = []
        self.rule_count = len(rules)
        self.words = (total + 63) >> 6
        self.places = <Place *>calloc(total + 1, sizeof(Place))
        self.rules = <Rule *>calloc(self.rule_count + 1, sizeof(Rule))
        self.done = <uint64_t *>calloc(self.words + 1, 8)
        if self.places == NULL or self.rules == NULL or self.done == NULL:
            raise MemoryError
        begin_hmac(&self.keyed, start_of(secret), len(secret))
        for one in rules:
            rule = &self.rules[number]
            rule.place = _PLACES[one.place]
            rule.action = _ACTIONS[one.action]
            rule.first = at
            rule.name = self.keep(one.name, &rule.size)
            for step in one.steps:
                place = &self.places[at]
                place.kind = _KINDS[step.kind]
                place.rule = number
                place.index = step.index
                place.name = self.keep(step.name.encode("utf-8", "surrogatepass"), &place.size)
                at += 1
            self.places[at].kind = DONE
            self.places[at].rule = number
            add_place(self.done, at)
            at += 1
            number += 1

    cdef const uint8_t *keep(self, bytes name, int64_t *size):
        self.kept.append(name)
        size[0] = len(name)
        return start_of(name)

    def __dealloc__(self):
        free(self.places)
        free(self.rules)
        free(self.done)

    def reason(self, numbers, headers, data):
        return self.twin.reason(numbers, headers, data)

    def mask(self, columns, sets, rows, apart):
        cdef Input batch = Input(columns)
        cdef Source source = batch.source
        cdef View chosen = View(rows)
        cdef int64_t room = source.count + 1
        if chosen.size >> 2 < source.count:
            raise ValueError("each row has a number of 4 bytes")
        cdef RuleSets known = RuleSets(self, sets)
        cdef int64_t row
        for row in range(source.count):
            if not -1 <= load_int32(chosen.data + 4 * row) < known.count:
                raise ValueError("no set has this number")
        cdef Grown headers = Grown(), data = Grown()
        cdef bytes header_ends = blank(4 * room), data_ends = blank(4 * room), faults = blank(source.count)
        cdef MaskedOut out
        cdef bint good, one_by_one = apart
        cdef Fault fault
        cdef Masking m
        cdef int64_t size = 8 * self.words * (2 * LEVELS + 4)
        cdef int64_t counted = 8 * self.rule_count * (COUNTS + 1)
        cdef uint8_t *memory = <uint8_t *>calloc(size + counted + 8, 1)
        if memory == NULL:
            raise MemoryError
        memset(&m, 0, sizeof(Masking))
        m.places = self.places
        m.rules = self.rules
        m.done = self.done
        m.keyed = &self.keyed
        out.header_ends = <int32_t *>start_of(header_ends)
        out.data_ends = <int32_t *>start_of(data_ends)
        out.faults = start_of(faults)
        m.words = self.words
        m.with_headers = known.headers
        m.with_data = known.data
        m.max_values = self.max_values
        m.max_bytes = self.max_bytes
        m.here = <uint64_t *>memory
        m.inside = m.here + self.words
        m.pending = m.inside + self.words * (LEVELS + 1)
        m.counts = <int64_t *>(memory + size)
        m.found = m.counts + COUNTS * self.rule_count
        m.headers = &headers.out
        m.data = &data.out
        try:
            with nogil:
                # Room for a hash in each row, so that it seldom has to grow.
                fail(&fault, NO_ROOM, 0)
                good = (
                    (not m.with_headers or grow(m.headers, content_size(&source, 1)))
                    and (not m.with_data or grow(m.data, content_size(&source, 2) + 64 * source.count))
                    and mask_rows(&m, &source, known.sets, known.count, chosen.data, one_by_one, &out, &fault)
                )
            if not good:
                if fault.kind == NO_ROOM:
                    raise MemoryError
                raise error_of(fault)
            counts = [RuleCount(*[m.counts[COUNTS * i + j] for j in range(COUNTS)]) for i in range(self.rule_count)]
        finally:
            free(m.scratch.out.data)
            free(m.scratch.moved.data)
            free(m.scratch.pieces)
            free(m.scratch.spare)
            free(memory)
        return MaskedRows(
            ShapedColumn(header_ends, headers) if m.with_headers else None,
            ShapedColumn(data_ends, data) if m.with_data else None,
            faults,
            tuple(counts),
        )


cdef int64_t content_size(const Source *source, int column) noexcept nogil:
    """About how many bytes a column has."""
    cdef int64_t first, last
    if source.count == 0:
        return 0
    first = load_int32(source.offsets[column])
    last = load_int32(source.offsets[column] + 4 * source.count)
    return min(max(last - first, 0), source.sizes[column])


cdef class RuleSets:
    """Sets of rules, by number."""

    cdef RuleSet *sets
    cdef int32_t *rules
    cdef uint64_t *begins
    cdef int64_t count
    cdef bint headers, data  # whether any rule is for these

    def __cinit__(self, Masker masker, sets):
        cdef RuleSet *one
        cdef int64_t at = 0, number = 0
        self.count = len(sets)
        self.sets = <RuleSet *>calloc(self.count + 1, sizeof(RuleSet))
        self.rules = <int32_t *>calloc(sum(map(len, sets)) + 1, 4)
        self.begins = <uint64_t *>calloc(self.count * masker.words + 1, 8)
        if self.sets == NULL or self.rules == NULL or self.begins == NULL:
            raise MemoryError
        for numbers in sets:
            one = &self.sets[number]
            one.rules = self.rules + at
            one.count = len(numbers)
            one.payload = -1
            one.begin = self.begins + number * masker.words
            for rule in numbers:
                if not 0 <= rule < masker.rule_count:
                    raise ValueError("no rule has this number")
                self.rules[at] = rule
                at += 1
                if masker.rules[<int64_t>rule].place == IN_PATH:
                    one.paths = True
                    add_place(self.begins + number * masker.words, masker.rules[<int64_t>rule].first)
                elif masker.rules[<int64_t>rule].place == IN_HEADER:
                    one.headers = self.headers = True
                elif one.payload < 0:
                    one.payload = rule
                self.data = self.data or masker.rules[<int64_t>rule].place != IN_HEADER
            number += 1

    def __dealloc__(self):
        free(self.sets)
        free(self.rules)
        free(self.begins)
