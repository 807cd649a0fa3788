# Part of the compiled kernel (`_kernels.pyx`): output that grows.
#
# How long a masked payload gets is only known when it is there. So room is checked with each write, and memory that
# cannot be had is an error.

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport free, realloc


cdef struct Growing:
    uint8_t *data
    int64_t size
    int64_t room


cdef bint grow(Growing *out, int64_t more) noexcept nogil:
    cdef int64_t room = out.size + more
    cdef uint8_t *data
    room += (room >> 1) + 256
    data = <uint8_t *>realloc(out.data, room)
    if data == NULL:
        return False
    out.data = data
    out.room = room
    return True


cdef inline bint reserve(Growing *out, int64_t more) noexcept nogil:
    return more <= out.room - out.size or grow(out, more)


cdef inline bint put(Growing *out, const uint8_t *p, int64_t size) noexcept nogil:
    if not reserve(out, size):
        return False
    copy_to(out.data + out.size, p, size)
    out.size += size
    return True


cdef inline bint put_byte(Growing *out, uint8_t byte) noexcept nogil:
    if not reserve(out, 1):
        return False
    out.data[out.size] = byte
    out.size += 1
    return True


cdef class Grown:
    """Bytes that have grown, for whoever takes a buffer."""

    cdef Growing out

    def __dealloc__(self):
        free(self.out.data)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.out.data, self.out.size, 1, flags)

    def __len__(self):
        return self.out.size
