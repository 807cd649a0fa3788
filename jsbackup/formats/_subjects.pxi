# Part of the compiled kernel (`_kernels.pyx`): subjects. `_shaping_py.py` is the readable twin.

cdef enum:
    LITERAL
    ONE_TOKEN
    ALL_REST

cdef struct Token:  # of a pattern
    int kind
    const uint8_t *text
    int64_t size

cdef struct Pattern:
    const Token *tokens
    int64_t count
    bint wide  # begins with a wildcard
    const Token *parts  # of what it is mapped to: literal, or the number of a wildcard as `size`
    int64_t part_count


cdef class Patterns:
    cdef Token *tokens
    cdef Pattern *patterns
    cdef int64_t count, most
    cdef list kept

    def __cinit__(self, patterns, parts=()):
        cdef int64_t at = 0, number = 0
        split = [bytes(one).split(b".") for one in patterns]
        self.kept = [split, parts]
        self.count = len(split)
        self.tokens = <Token *>calloc(sum(map(len, split)) + sum(map(len, parts)) + 1, sizeof(Token))
        self.patterns = <Pattern *>calloc(self.count + 1, sizeof(Pattern))
        if self.tokens == NULL or self.patterns == NULL:
            raise MemoryError
        for tokens in split:
            self.patterns[number].tokens = self.tokens + at
            self.patterns[number].count = len(tokens)
            self.patterns[number].wide = tokens[0] in (b"*", b">")
            self.most = max(self.most, len(tokens))
            for text in tokens:
                self.tokens[at].kind = ONE_TOKEN if text == b"*" else ALL_REST if text == b">" else LITERAL
                self.tokens[at].text = start_of(text)
                self.tokens[at].size = len(text)
                at += 1
            number += 1
        number = 0
        for row in parts:
            self.patterns[number].parts = self.tokens + at
            self.patterns[number].part_count = len(row)
            for part in row:
                if isinstance(part, bytes):
                    self.tokens[at].text = start_of(part)
                    self.tokens[at].size = len(part)
                else:
                    self.tokens[at].kind = ONE_TOKEN
                    self.tokens[at].size = part
                at += 1
            number += 1

    def __dealloc__(self):
        free(self.tokens)
        free(self.patterns)


cdef struct Span:
    int64_t start
    int64_t stop


cdef bint matches(const Pattern *pattern, const uint8_t *p, int64_t at, int64_t end, Span *wildcards) noexcept nogil:
    """Whether a subject matches; where its wildcards are, if that is asked for."""
    cdef const Token *token
    cdef const uint8_t *dot
    cdef int64_t i, stop, found = 0
    for i in range(pattern.count):
        token = &pattern.tokens[i]
        if token.kind == LITERAL:
            stop = at + token.size
            if stop > end or memcmp(p + at, token.text, token.size):
                return False
            if stop < end and p[stop] != 46:
                return False
        else:
            stop = end
            if token.kind == ONE_TOKEN and at < end:
                dot = <const uint8_t *>memchr(p + at, 46, end - at)
                stop = end if dot == NULL else dot - p
            if wildcards != NULL:
                wildcards[found].start = at
                wildcards[found].stop = stop
                found += 1
            if token.kind == ALL_REST:
                return True
        if i + 1 == pattern.count:
            return stop == end
        if stop == end:
            return False
        at = stop + 1
    return False


cdef class SubjectMatcher:
    cdef Patterns patterns

    def __cinit__(self, patterns):
        self.patterns = Patterns(patterns)

    def first(self, columns):
        cdef Input batch = Input(columns)
        cdef Source source = batch.source
        cdef bytes numbers = blank(4 * source.count)
        cdef int32_t *out = <int32_t *>start_of(numbers)
        cdef const Pattern *patterns = self.patterns.patterns
        cdef int64_t count = self.patterns.count, row, start, stop, i
        cdef Fault fault
        cdef bint good = True
        with nogil:
            for row in range(source.count):
                good = subject_span(&source, row, &start, &stop, &fault)
                if not good:
                    break
                out[row] = -1
                for i in range(count):
                    if matches(&patterns[i], source.values[0], start, stop, NULL):
                        out[row] = <int32_t>i
                        break
        if not good:
            raise error_of(fault)
        return numbers

    def sets(self, columns):
        cdef Input batch = Input(columns)
        cdef Source source = batch.source
        cdef bytes numbers = blank(4 * source.count)
        cdef int32_t *out = <int32_t *>start_of(numbers)
        cdef const Pattern *patterns = self.patterns.patterns
        cdef int64_t count = self.patterns.count, words = (count + 63) >> 6, row, start, stop, i, at, known = 0, last = 0
        cdef Growing found
        cdef Fault fault
        cdef bint good = True
        cdef uint64_t *here
        memset(&found, 0, sizeof(Growing))
        try:
            with nogil:
                for row in range(source.count):
                    good = subject_span(&source, row, &start, &stop, &fault)
                    if good and not reserve(&found, 8 * words + 8):
                        good = fail(&fault, NO_ROOM, row)
                    if not good:
                        break
                    here = <uint64_t *>(found.data + found.size)
                    memset(here, 0, 8 * words)
                    for i in range(count):
                        if matches(&patterns[i], source.values[0], start, stop, NULL):
                            add_place(here, i)
                    at = last  # neighbours are often alike
                    if known == 0 or memcmp(found.data + 8 * words * at, here, 8 * words):
                        at = 0
                        while at < known and memcmp(found.data + 8 * words * at, here, 8 * words):
                            at += 1
                    if at == known:
                        known += 1
                        found.size += 8 * words
                    out[row] = <int32_t>at
                    last = at
            if not good:
                if fault.kind == NO_ROOM:
                    raise MemoryError
                raise error_of(fault)
            sets = []
            for at in range(known):
                here = <uint64_t *>(found.data + 8 * words * at)
                sets.append(tuple([i for i in range(count) if here[i >> 6] >> (i & 63) & 1]))
        finally:
            free(found.data)
        return numbers, tuple(sets)


cdef inline bint subject_span(const Source *source, int64_t row, int64_t *start, int64_t *stop, Fault *fault) noexcept nogil:
    start[0] = load_int32(source.offsets[0] + 4 * row)
    stop[0] = load_int32(source.offsets[0] + 4 * row + 4)
    if start[0] < 0 or stop[0] < start[0] or stop[0] > source.sizes[0]:
        return fail(fault, BATCH_OFFSETS, row)
    return True


cdef bint is_reserved(const uint8_t *p, int64_t at, int64_t end) noexcept nogil:
    """Whether a subject is one of buckets or of MQTT."""
    cdef const uint8_t *dot
    if at >= end or p[at] != 36:
        return False
    dot = <const uint8_t *>memchr(p + at, 46, end - at)
    if dot != NULL:
        end = dot - p
    return (
        (end - at == 3 and memcmp(p + at, b"$KV", 3) == 0)
        or (end - at == 2 and memcmp(p + at, b"$O", 2) == 0)
        or (end - at == 5 and memcmp(p + at, b"$MQTT", 5) == 0)
    )


cdef int map_subject(
    const Pattern *maps, int64_t count, const uint8_t *p, int64_t at, int64_t end, Span *wildcards, Growing *out
) noexcept nogil:
    """Write the mapped subject: 1, 0 if no map is for it, -1 if there is no memory."""
    cdef const Token *part
    cdef bint reserved = is_reserved(p, at, end)
    cdef int64_t i, j
    out.size = 0
    for i in range(count):
        if reserved and maps[i].wide:
            return 0
        if not matches(&maps[i], p, at, end, wildcards):
            continue
        for j in range(maps[i].part_count):
            if j and not put_byte(out, 46):
                return -1
            part = &maps[i].parts[j]
            if part.kind == LITERAL:
                if not put(out, part.text, part.size):
                    return -1
            elif not put(out, p + wildcards[part.size - 1].start, wildcards[part.size - 1].stop - wildcards[part.size - 1].start):
                return -1
        return 1
    return 0


cdef class SubjectMapper:
    cdef list stages

    def __cinit__(self, stages):
        self.stages = [Patterns([source for source, _ in stage], [parts for _, parts in stage]) for stage in stages]

    def map(self, columns):
        changed = None
        for stage in self.stages:
            mapped = self.once(columns, stage)
            if mapped is not None:
                changed = mapped
                columns = columns._replace(subject_offsets=mapped.offsets, subjects=mapped.values)
        return changed

    cdef object once(self, columns, Patterns stage):
        cdef Input batch = Input(columns)
        cdef Source source = batch.source
        cdef Grown grown = Grown()
        cdef bytes ends = blank(4 * (source.count + 1))
        cdef int32_t *stops = <int32_t *>start_of(ends)
        cdef Growing one
        cdef Span *wildcards = <Span *>calloc(stage.most + 1, sizeof(Span))
        cdef const uint8_t *p = source.values[0]
        cdef int64_t row, start, stop
        cdef bint good = True, changed = False
        cdef int mapped
        cdef Fault fault
        memset(&one, 0, sizeof(Growing))
        if wildcards == NULL:
            raise MemoryError
        with nogil:
            stops[0] = 0
            if not grow(&grown.out, content_size(&source, 0) + 16 * source.count):
                good = fail(&fault, NO_ROOM, 0)
            for row in range(source.count if good else 0):
                good = subject_span(&source, row, &start, &stop, &fault)
                if not good:
                    break
                mapped = map_subject(stage.patterns, stage.count, p, start, stop, wildcards, &one)
                if mapped == 0:
                    good = put(&grown.out, p + start, stop - start)
                elif mapped > 0:
                    good = put(&grown.out, one.data, one.size)
                    changed = changed or one.size != stop - start or memcmp(one.data, p + start, one.size) != 0
                if mapped < 0 or not good:
                    good = False
                    fail(&fault, NO_ROOM, row)
                    break
                if grown.out.size > INT32_MAX:
                    good = fail(&fault, BATCH_MAPPED, row)
                    break
                stops[row + 1] = <int32_t>grown.out.size
        free(wildcards)
        free(one.data)
        if not good:
            if fault.kind == NO_ROOM:
                raise MemoryError
            raise error_of(fault)
        return ShapedColumn(ends, grown) if changed else None
