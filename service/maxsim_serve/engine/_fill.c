/* What is copied for the device: many arrays, each to its place in one buffer, or one past the caches. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "../../../kernels/maxsim/_crew.h"

/* Bytes from which on others help; for fewer it takes longer to wake them, and to have the interpreter's lock again. */
#define MANY (256 << 10)

struct piece {
    char *to;
    Py_buffer from;
};

static crew_run *run;

/* Of an array that is not contiguous a copy. */
static int contiguous(PyObject *array, Py_buffer *buffer) {
    if (PyObject_GetBuffer(array, buffer, PyBUF_SIMPLE) == 0) return 0;
    PyErr_Clear();
    PyObject *copy = PyMemoryView_GetContiguous(array, PyBUF_READ, 'C');
    const int failed = copy == NULL || PyObject_GetBuffer(copy, buffer, PyBUF_SIMPLE);
    Py_XDECREF(copy); /* the buffer holds it */
    return failed;
}

static void copy(void *work, Py_ssize_t number) {
    const struct piece *piece = (const struct piece *)work + number;
    memcpy(piece->to, piece->from.buf, piece->from.len);
}

/* (buffer, [first byte of each array's place], [array], helpers): copy all arrays to their places, which do
 * not overlap. Of many bytes the interpreter's lock is let go of, so nobody may write to any of these meanwhile, and as
 * many others help. */
static PyObject *fill(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer buffer;
    PyObject *places, *arrays;
    int helpers;
    if (!PyArg_ParseTuple(arguments, "w*O!O!i", &buffer, &PyList_Type, &places, &PyList_Type, &arrays, &helpers))
        return NULL;
    const Py_ssize_t count = Py_MIN(PyList_GET_SIZE(places), PyList_GET_SIZE(arrays));
    struct piece *piece = PyMem_New(struct piece, count);
    Py_ssize_t ready = 0, all = 0;
    if (piece == NULL) PyErr_NoMemory();
    for (; ready < count && !PyErr_Occurred(); ready++) {
        if (contiguous(PyList_GET_ITEM(arrays, ready), &piece[ready].from)) break;
        const Py_ssize_t first = PyLong_AsSsize_t(PyList_GET_ITEM(places, ready)), bytes = piece[ready].from.len;
        if (!PyErr_Occurred() && (first < 0 || first > buffer.len || bytes > buffer.len - first))
            PyErr_Format(PyExc_ValueError, "no room for %zd bytes from %zd on in %zd", bytes, first, buffer.len);
        piece[ready].to = (char *)buffer.buf + first;
        all += bytes;
    }
    if (!PyErr_Occurred()) crew_take(run, all >= MANY, copy, piece, count, helpers);
    while (ready > 0) PyBuffer_Release(&piece[--ready].from);
    PyMem_Free(piece);
    PyBuffer_Release(&buffer);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* Lines that no cache keeps, the last few aside. */
static void copy_past_caches(char *to, const char *from, Py_ssize_t bytes) {
    Py_ssize_t done = 0;
#if defined(__SSE2__)
    if (((uintptr_t)to & 15) == 0)
        for (; done + 64 <= bytes; done += 64)
            for (int part = 0; part < 64; part += 16)
                _mm_stream_si128((__m128i *)(to + done + part), _mm_loadu_si128((const __m128i *)(from + done + part)));
    _mm_sfence();
#endif
    memcpy(to + done, from + done, bytes - done);
}

/* (buffer, array): copy a contiguous array to a buffer of as many bytes, past the caches: a device reads memory sooner
 * than what a core's cache has of it alone. */
static PyObject *write_through(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer buffer, array;
    if (!PyArg_ParseTuple(arguments, "w*y*", &buffer, &array)) return NULL;
    if (array.len == buffer.len)
        copy_past_caches(buffer.buf, array.buf, array.len);
    else
        PyErr_Format(PyExc_ValueError, "%zd bytes for a buffer of %zd", array.len, buffer.len);
    PyBuffer_Release(&buffer);
    PyBuffer_Release(&array);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"fill", fill, METH_VARARGS, NULL},
    {"write_through", write_through, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    (void)module;
    run = crew_of_process();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_fill", .m_size = 0, .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__fill(void) { return PyModuleDef_Init(&definition); }
