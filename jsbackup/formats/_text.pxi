# Part of the compiled kernel (`_kernels.pyx`): text in UTF-8. `_kernels_py.py` is the readable twin.

cdef bint walk_text(
    const uint8_t *offsets, int64_t count, const uint8_t *data, int64_t end, uint8_t *out, int64_t *ends, int64_t *size,
    Fault *fault,
) noexcept nogil:
    """Count the bytes of the replaced text; write it too if there is an `out` of `size` bytes."""
    cdef int64_t row, at, stop, step, done = 0, room = size[0]
    for row in range(count):
        at, stop = load_int32(offsets + 4 * row), load_int32(offsets + 4 * row + 4)
        if not 0 <= at <= stop <= end:
            return fail(fault, TEXT_OFFSETS, row)
        while at < stop:
            step = 1 if data[at] < 0x80 else utf8_size(data + at, stop - at)
            if out != NULL:
                if done + (step or 3) > room:
                    return fail(fault, CHANGED, 0)
                if step == 1:
                    out[done] = data[at]
                elif step:
                    memcpy(out + done, data + at, step)
                else:
                    out[done], out[done + 1], out[done + 2] = 0xEF, 0xBF, 0xBD
            done += step or 3
            at += step or 1
        if done > MOST_TEXT:
            return fail(fault, TEXT_LARGE, row, MOST_TEXT)
        if out != NULL:
            ends[row + 1] = done
    size[0] = done
    return True


def replace_strays(offsets, data):
    cdef View where = View(offsets), view = View(data)
    if where.size < 4 or where.size & 3:
        raise ValueError("offsets have 4 bytes each, and there is one at least")
    cdef int64_t count = (where.size >> 2) - 1, size = 0, i
    cdef Fault fault
    cdef bint good
    with nogil:
        good = walk_text(where.data, count, view.data, view.size, NULL, NULL, &size, &fault)
    if not good:
        raise error_of(fault)
    cdef bytes text = blank(size), ends = blank(8 * (count + 1)), narrow = blank(4 * (count + 1))
    cdef uint8_t *out = start_of(text)
    cdef int64_t *wide = <int64_t *>start_of(ends)
    cdef int32_t *last = <int32_t *>start_of(narrow)
    with nogil:
        wide[0] = 0
        good = walk_text(where.data, count, view.data, view.size, out, wide, &size, &fault)
        if good:
            for i in range(count + 1):
                last[i] = <int32_t>wide[i]
    if not good:
        raise error_of(fault)
    return narrow, text
