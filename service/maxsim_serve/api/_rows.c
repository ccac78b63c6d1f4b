/* The results of a rerank by id, as JSON or MessagePack, in one pass from scores, positions and ids.
 *
 * What it writes is to the byte what msgspec writes for the same results, without an object a result: ten
 * milliseconds after the ids were parsed, a thousand objects are a thousand waits for memory, and here those
 * waits overlap. Only what is common is written; the rest (a score that JSON would show with an exponent or
 * null, an id that JSON must escape) is refused, and left to msgspec.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Ids that are asked of memory ahead; an id is in two lines, its length in one, its first bytes in the next. */
#define AHEAD 12
/* Most bytes that a result takes besides its id. */
#define AROUND 96

#define PUT(out, text) (memcpy(out, text, sizeof text - 1), (out) + sizeof text - 1)

struct row {
    float score;
    int64_t index;
    const char *id;
    Py_ssize_t id_bytes;
};

/* Each returns the end of what it wrote, or NULL for what it does not write. */
typedef char *writer(char *out, const struct row *row);

static char *put_integer(char *out, uint64_t value) {
    int digits = 1;
    for (uint64_t power = 10; digits < 20 && value >= power; power *= 10) digits++;
    for (int i = digits; i--; value /= 10) out[i] = (char)('0' + value % 10);
    return out + digits;
}

/* The shortest decimal that reads back as the same double (Steele and White's fixed-point printout): digits
 * until what is left, a fraction in 64 bits, is less than half the distance to the next double. */
static char *put_score(char *out, float score) {
    const float size = fabsf(score);
    if (!(size < 0x1p24f) || (size < 0x1p-10f && size != 0)) return NULL;
    const uint32_t whole = (uint32_t)size;
    uint64_t rest = (uint64_t)((size - whole) * 0x1p64f);
    uint64_t gap = 1;
    if (size != 0) gap <<= 11 + ilogbf(size);
    if (signbit(score)) *out++ = '-';
    out = put_integer(out, whole);
    *out++ = '.';
    do {
        const unsigned __int128 next = (unsigned __int128)rest * 10;
        *out++ = (char)('0' + (int)(next >> 64));
        rest = (uint64_t)next;
        gap = gap > UINT64_MAX / 10 ? UINT64_MAX : gap * 10;
    } while (rest >= gap && -rest >= gap);
    const uint64_t half = (uint64_t)1 << 63;
    if (rest > half || (rest == half && out[-1] % 2)) out[-1]++;
    return out;
}

static char *put_json(char *out, const struct row *row) {
    out = put_score(PUT(out, "{\"relevance_score\":"), row->score);
    if (!out) return NULL;
    out = put_integer(PUT(out, ",\"index\":"), (uint64_t)row->index);
    out = PUT(out, ",\"id\":\"");
    for (Py_ssize_t i = 0; i < row->id_bytes; i++) {
        const unsigned char byte = (unsigned char)row->id[i];
        if (byte < 0x20 || byte == '"' || byte == '\\') return NULL;
        *out++ = (char)byte;
    }
    return PUT(out, "\"},");
}

/* A big-endian number of some bytes behind its MessagePack type. */
static char *put_typed(char *out, int type, uint64_t value, int bytes) {
    *out++ = (char)type;
    while (bytes--) *out++ = (char)(value >> 8 * bytes);
    return out;
}

static char *put_msgpack(char *out, const struct row *row) {
    const double score = row->score;
    uint64_t bits;
    memcpy(&bits, &score, sizeof bits);
    if (!isfinite(score)) return NULL;
    out = put_typed(PUT(out, "\x83\xafrelevance_score"), 0xcb, bits, 8);
    out = PUT(out, "\xa5index");
    const uint64_t index = (uint64_t)row->index, bytes = (uint64_t)row->id_bytes;
    if (index < 0x80) *out++ = (char)index;
    else if (index < 0x100) out = put_typed(out, 0xcc, index, 1);
    else if (index < 0x10000) out = put_typed(out, 0xcd, index, 2);
    else if (index <= UINT32_MAX) out = put_typed(out, 0xce, index, 4);
    else return NULL;
    out = PUT(out, "\xa2id");
    if (bytes < 0x20) *out++ = (char)(0xa0 | bytes);
    else if (bytes < 0x100) out = put_typed(out, 0xd9, bytes, 1);
    else if (bytes < 0x10000) out = put_typed(out, 0xda, bytes, 2);
    else return NULL;
    memcpy(out, row->id, row->id_bytes);
    return out + bytes;
}

/* A list's beginning, for so many items. */
static char *open_msgpack(char *out, uint64_t count) {
    if (count < 0x10) return *out++ = (char)(0x90 | count), out;
    return count < 0x10000 ? put_typed(out, 0xdc, count, 2) : put_typed(out, 0xdd, count, 4);
}

static int row_at(struct row *row, const float *scores, const int64_t *positions, PyObject *ids, Py_ssize_t i) {
    if (positions[i] < 0 || positions[i] >= PyList_GET_SIZE(ids)) {
        PyErr_Format(PyExc_IndexError, "position %lld of %zd ids", (long long)positions[i], PyList_GET_SIZE(ids));
        return 0;
    }
    row->score = scores[i];
    row->index = positions[i];
    row->id = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(ids, positions[i]), &row->id_bytes);
    return row->id != NULL;
}

/* (scores float32 [k], positions int64 [k], ids) -> bytes, or None where there is a row that `put` refuses. */
static PyObject *list_of_rows(PyObject *arguments, writer *put, int json) {
    Py_buffer scores, positions;
    PyObject *ids, *written = NULL;
    struct row row;
    if (!PyArg_ParseTuple(arguments, "y*y*O!", &scores, &positions, &PyList_Type, &ids)) return NULL;
    const Py_ssize_t count = positions.len / (Py_ssize_t)sizeof(int64_t);
    if (scores.len / (Py_ssize_t)sizeof(float) != count) {
        PyErr_SetString(PyExc_ValueError, "there must be as many scores as positions");
        goto end;
    }
    /* How much it can be; on the way, the ids come from memory. */
    Py_ssize_t most = AROUND;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            const int64_t ahead = ((int64_t *)positions.buf)[i + AHEAD];
            if (ahead >= 0 && ahead < PyList_GET_SIZE(ids)) {
                __builtin_prefetch(PyList_GET_ITEM(ids, ahead));
                __builtin_prefetch((char *)PyList_GET_ITEM(ids, ahead) + 48);
            }
        }
        if (!row_at(&row, scores.buf, positions.buf, ids, i)) goto end;
        most += AROUND + row.id_bytes;
    }
    written = PyBytes_FromStringAndSize(NULL, most);
    if (!written) goto end;
    char *const begin = PyBytes_AS_STRING(written), *out = begin;
    if (json) *out++ = '[';
    else out = open_msgpack(out, (uint64_t)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        out = row_at(&row, scores.buf, positions.buf, ids, i) ? put(out, &row) : NULL;
        if (!out) {
            Py_DECREF(written);
            written = Py_NewRef(Py_None);
            goto end;
        }
    }
    if (json && count) out[-1] = ']';
    else if (json) *out++ = ']';
    _PyBytes_Resize(&written, out - begin);
end:
    PyBuffer_Release(&scores);
    PyBuffer_Release(&positions);
    return written;
}

static PyObject *as_json(PyObject *module, PyObject *arguments) {
    (void)module;
    return list_of_rows(arguments, put_json, 1);
}

static PyObject *as_msgpack(PyObject *module, PyObject *arguments) {
    (void)module;
    return list_of_rows(arguments, put_msgpack, 0);
}

static PyMethodDef methods[] = {
    {"as_json", as_json, METH_VARARGS, "(scores float32 [k], positions int64 [k], ids) -> a JSON list, or None"},
    {"as_msgpack", as_msgpack, METH_VARARGS, "The same in MessagePack."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_rows", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&definition); }
