/* Where many documents are, by their ids: a hash table whose waits for memory overlap.
 *
 * A look-up in a dict waits for some four lines of memory, one after the other, and for a thousand ids those
 * waits are half a millisecond. Here a block of ids takes each step together and asks memory for the next; and
 * short ids are kept a second time beside each other, since an object of Python's is far from the next.
 *
 * A bucket is empty (-1), or has 31 bits of an id's hash above the 32 of its slot. They are a power of two, at
 * most half of them taken, and probed one after the other. Nothing is taken out: a document that is gone has
 * length 0 in the table, and one that comes again moves its bucket to its new slot.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Ids that take a step together. */
#define BLOCK 64
/* Of the table of slots; the second and the third are looked up. */
#define COLUMNS 4
#define START 1
#define LENGTH 2
/* A name is an id's length plus one, then the id; it begins with 0 where an id is longer or not ASCII. */
#define NAME_BYTES 32

struct index {
    int64_t *buckets;
    uint64_t mask;
    char *names;     /* [slots, NAME_BYTES] */
    PyObject *known; /* ids by slot */
};

static int64_t tag_of(int64_t hash) { return hash & 0x7fffffff00000000; }

/* An id is in two lines of memory, its length in one, its first bytes in the next. */
static void prefetch(const PyObject *id) {
    __builtin_prefetch(id);
    __builtin_prefetch((const char *)id + 48);
}

/* The bucket from `probe` on that is empty or has the tag. */
static uint64_t candidate(const struct index *index, uint64_t probe, int64_t tag) {
    for (;; probe++) {
        const int64_t bucket = index->buckets[probe & index->mask];
        if (bucket < 0 || tag_of(bucket) == tag) return probe & index->mask;
    }
}

/* The length of an id that has a name, -1 for any other. */
static Py_ssize_t named_length(PyObject *id) {
    if (!PyUnicode_CheckExact(id) || !PyUnicode_IS_COMPACT_ASCII(id)) return -1;
    return PyUnicode_GET_LENGTH(id) < NAME_BYTES ? PyUnicode_GET_LENGTH(id) : -1;
}

static int is_at(const struct index *index, int64_t slot, PyObject *id) {
    const char *name = index->names + slot * NAME_BYTES;
    const Py_ssize_t length = named_length(id);
    if (length >= 0) return *name == length + 1 && memcmp(name + 1, PyUnicode_DATA(id), length) == 0;
    return *name == 0 && PyUnicode_Compare(PyList_GET_ITEM(index->known, slot), id) == 0;
}

/* The bucket from `probe` on that is empty or the id's own. */
static uint64_t bucket_of(const struct index *index, uint64_t probe, int64_t tag, PyObject *id) {
    for (;; probe++) {
        probe = candidate(index, probe, tag);
        const int64_t bucket = index->buckets[probe];
        if (bucket < 0 || is_at(index, bucket & UINT32_MAX, id)) return probe;
    }
}

/* (buckets int64, names, known ids by slot, first): put the slots from `first` on into their buckets, and their
 * ids into the names. */
static PyObject *enter(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer buckets, names;
    PyObject *known;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(arguments, "w*w*O!n", &buckets, &names, &PyList_Type, &known, &first)) return NULL;
    const struct index index = {buckets.buf, (uint64_t)buckets.len / sizeof(int64_t) - 1, names.buf, known};
    for (Py_ssize_t slot = first; slot < PyList_GET_SIZE(known); slot++) {
        PyObject *id = PyList_GET_ITEM(known, slot);
        char *name = index.names + slot * NAME_BYTES;
        const Py_ssize_t length = named_length(id);
        *name = (char)(length + 1);
        if (length > 0) memcpy(name + 1, PyUnicode_DATA(id), length);
        const int64_t hash = PyObject_Hash(id);
        index.buckets[bucket_of(&index, hash, tag_of(hash), id)] = tag_of(hash) | slot;
    }
    PyBuffer_Release(&buckets);
    PyBuffer_Release(&names);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* First rows and lengths of at most a block of ids. */
static void find_block(const struct index *index, const int64_t *table, PyObject *const *asked, Py_ssize_t count,
                       int64_t *starts, int64_t *lengths) {
    int64_t hashes[BLOCK];
    uint64_t probes[BLOCK];
    for (Py_ssize_t i = 0; i < count; i++) prefetch(asked[i]);
    for (Py_ssize_t i = 0; i < count; i++) {
        hashes[i] = PyObject_Hash(asked[i]);
        __builtin_prefetch(index->buckets + (hashes[i] & index->mask));
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        probes[i] = candidate(index, hashes[i], tag_of(hashes[i]));
        const int64_t bucket = index->buckets[probes[i]], slot = bucket & UINT32_MAX;
        if (bucket < 0) continue;
        __builtin_prefetch(index->names + slot * NAME_BYTES);
        __builtin_prefetch(table + slot * COLUMNS + START);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const int64_t bucket = index->buckets[bucket_of(index, probes[i], tag_of(hashes[i]), asked[i])];
        const int64_t *row = table + (bucket & UINT32_MAX) * COLUMNS;
        starts[i] = bucket < 0 ? 0 : row[START];
        lengths[i] = bucket < 0 ? 0 : row[LENGTH];
    }
}

/* (buckets, names, known ids, table int64 [slots, 4], asked ids, places int64 [2, asked]) ->
 * (found, tokens, longest): write first rows and lengths of the asked ids as columns, zeros for an id that is not
 * known. Found are those of a length, tokens is the sum of the lengths, longest the largest of them. */
static PyObject *find(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer buckets, names, table, places;
    PyObject *known, *asked;
    if (!PyArg_ParseTuple(arguments, "w*w*O!y*O!w*", &buckets, &names, &PyList_Type, &known, &table, &PyList_Type, &asked,
                          &places))
        return NULL;
    const struct index index = {buckets.buf, (uint64_t)buckets.len / sizeof(int64_t) - 1, names.buf, known};
    const Py_ssize_t count = PyList_GET_SIZE(asked);
    int64_t *starts = places.buf, *lengths = starts + count;
    for (Py_ssize_t first = 0; first < count; first += BLOCK)
        find_block(&index, table.buf, &PyList_GET_ITEM(asked, first), Py_MIN(count - first, BLOCK), starts + first,
                   lengths + first);
    long long found = 0, tokens = 0, longest = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        found += lengths[i] > 0;
        tokens += lengths[i];
        longest = Py_MAX(longest, lengths[i]);
    }
    PyBuffer_Release(&buckets);
    PyBuffer_Release(&names);
    PyBuffer_Release(&table);
    PyBuffer_Release(&places);
    return PyErr_Occurred() ? NULL : Py_BuildValue("LLL", found, tokens, longest);
}

static PyMethodDef methods[] = {
    {"enter", enter, METH_VARARGS, NULL},
    {"find", find, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_lookup", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__lookup(void) { return PyModuleDef_Init(&definition); }
