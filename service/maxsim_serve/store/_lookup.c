/* Where many documents are, by their ids: a hash table whose waits for memory overlap.
 *
 * A look-up in a dict waits for some four lines of memory, one after the other, and for a thousand ids those
 * waits are half a millisecond. Here each id takes one step at a time, and asks memory for what its next one
 * needs; the ids after it take theirs meanwhile. Short ids are kept a second time, beside where their document
 * is, since an object of Python's is far from the next; of the others it is a fingerprint, and the id itself is
 * compared where that is the same.
 *
 * A bucket is empty (-1), or has 31 bits of an id's hash above the 32 of its slot. They are a power of two, at
 * most half of them taken, and probed one after the other. Nothing is taken out: a document that is gone has
 * length 0 in its line, and one that comes again moves its bucket to its new slot.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../../../kernels/maxsim/_crew.h"
#include "_names.h"

/* Ids between one step and the next. */
#define APART 12
/* A power of two, no less than four such steps. */
#define UNDER_WAY 64

/* Ids of all lists from which on others help; for fewer it takes longer to wake them, and to have the interpreter's
 * lock again. */
#define MANY 4096

/* A slot's line of memory. */
struct line {
    struct name name;
    int64_t segment, start, length, generation;
};

struct index {
    int64_t *buckets;
    uint64_t mask;
    struct line *lines;
    PyObject *known; /* ids by slot */
};

static crew_run *run;

static int64_t tag_of(uint64_t hash) { return hash & 0x7fffffff00000000; }

/* The bucket from `probe` on that is empty or has the tag. */
static ALWAYS_INLINE uint64_t candidate(const struct index *index, uint64_t probe, int64_t tag) {
    for (;; probe++) {
        const int64_t bucket = index->buckets[probe & index->mask];
        if (bucket < 0 || tag_of(bucket) == tag) return probe & index->mask;
    }
}

static ALWAYS_INLINE int is_at(const struct index *index, int64_t slot, const struct name *name, PyObject *id) {
    if (!is_same(&index->lines[slot].name, name)) return 0;
    return is_named(name) || is_same_string(PyList_GET_ITEM(index->known, slot), id);
}

/* The bucket from `probe` on that is empty or the id's own. */
static uint64_t bucket_of(const struct index *index, uint64_t probe, int64_t tag, const struct name *name,
                          PyObject *id) {
    for (;; probe++) {
        probe = candidate(index, probe, tag);
        const int64_t bucket = index->buckets[probe];
        if (bucket < 0 || is_at(index, bucket & UINT32_MAX, name, id)) return probe;
    }
}

/* (buckets int64, lines, known ids by slot, first): put the slots from `first` on into their buckets, and their
 * ids' names into the lines. */
static PyObject *enter(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer buckets, lines;
    PyObject *known;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(arguments, "w*w*O!n", &buckets, &lines, &PyList_Type, &known, &first)) return NULL;
    const struct index index = {buckets.buf, (uint64_t)buckets.len / sizeof(int64_t) - 1, lines.buf, known};
    for (Py_ssize_t slot = first; slot < PyList_GET_SIZE(known); slot++) {
        PyObject *id = PyList_GET_ITEM(known, slot);
        const struct name name = name_of(id);
        if (is_nothing(&name)) {
            PyErr_SetString(PyExc_TypeError, "an id is a string");
            break;
        }
        index.lines[slot].name = name;
        const uint64_t hash = hash_of(&name);
        index.buckets[bucket_of(&index, hash, tag_of(hash), &name, id)] = tag_of(hash) | slot;
    }
    PyBuffer_Release(&buckets);
    PyBuffer_Release(&lines);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* What was found: those of a length, the sum of the lengths, the largest of them. */
struct found {
    int64_t count, tokens, longest;
};

/* Where an id is that is not known. */
static const struct line nowhere;

static const struct line *line_of(const struct index *index, int64_t bucket) {
    return bucket < 0 ? &nowhere : index->lines + (bucket & UINT32_MAX);
}

/* First rows and lengths of `count` ids, zeros for one that is not known. 0, and nothing else is of use, where not all
 * are as they are said to be: `named`, or at least strings, unless the interpreter's lock is `held`. */
static ALWAYS_INLINE int look_up_as(const int named, const struct index *index, PyObject *const *asked,
                                    Py_ssize_t count, int held, int64_t *starts, int64_t *lengths,
                                    struct found *found) {
    struct {
        struct name name;
        uint64_t hash;
        const struct line *line;
    } under_way[UNDER_WAY];
    PyObject *const *known = ((PyListObject *)index->known)->ob_item;
    struct found sum = {0, 0, 0};
    const int last = named ? 2 : 3; /* steps before an id is told from others */
    for (Py_ssize_t first = 0; first < count + (last + 1) * APART; first += APART) {
        Py_ssize_t n, end;
        for (n = first, end = Py_MIN(n + APART, count); n < end; n++) {
            /* An id is in two lines of memory, its length in one, its first bytes in the next. */
            __builtin_prefetch((const char *)asked[n]);
            __builtin_prefetch((const char *)asked[n] + 48);
        }
        for (n = Py_MAX(first - APART, 0), end = Py_MIN(first, count); n < end; n++) {
            const struct name name = name_of(asked[n]);
            if (named && !is_named(&name)) return 0;
            if (!named && is_nothing(&name)) {
                if (!held) return 0;
                if (!PyErr_Occurred()) PyObject_Hash(asked[n]); /* an error, or what no dict of strings knows */
            }
            const uint64_t hash = hash_of(&name);
            under_way[n % UNDER_WAY].name = name;
            under_way[n % UNDER_WAY].hash = hash;
            __builtin_prefetch(index->buckets + (hash & index->mask));
        }
        for (n = Py_MAX(first - 2 * APART, 0), end = Py_MIN(first - APART, count); n < end; n++) {
            const uint64_t hash = under_way[n % UNDER_WAY].hash;
            const struct line *line = line_of(index, index->buckets[candidate(index, hash, tag_of(hash))]);
            under_way[n % UNDER_WAY].line = line;
            __builtin_prefetch(line);
            if (!named && line != &nowhere) __builtin_prefetch(known + (line - index->lines));
        }
        for (n = Py_MAX(first - 3 * APART, 0), end = Py_MIN(first - 2 * APART, count); n < end && !named; n++) {
            const struct line *line = under_way[n % UNDER_WAY].line;
            if (line == &nowhere || is_named(&under_way[n % UNDER_WAY].name)) continue;
            const char *id = (const char *)known[line - index->lines];
            __builtin_prefetch(id);
            __builtin_prefetch(id + 48);
        }
        for (n = Py_MAX(first - (last + 1) * APART, 0), end = Py_MIN(first - last * APART, count); n < end; n++) {
            const struct name *name = &under_way[n % UNDER_WAY].name;
            const struct line *line = under_way[n % UNDER_WAY].line;
            /* The first of the tag is not the id's own once in a blue moon. */
            if (line != &nowhere && !is_at(index, line - index->lines, name, asked[n])) {
                const uint64_t hash = under_way[n % UNDER_WAY].hash;
                line = line_of(index, index->buckets[bucket_of(index, hash, tag_of(hash), name, asked[n])]);
            }
            starts[n] = line->start;
            lengths[n] = line->length;
            sum.count += line->length > 0;
            sum.tokens += line->length;
            sum.longest = Py_MAX(sum.longest, line->length);
        }
    }
    *found = sum;
    return 1;
}

/* Without the interpreter's lock, as long as all ids are strings: 0 where one is not and the lock is not `held`. */
static int look_up(const struct index *index, PyObject *const *asked, Py_ssize_t count, int held, int64_t *starts,
                   int64_t *lengths, struct found *found) {
    return look_up_as(1, index, asked, count, held, starts, lengths, found) ||
           look_up_as(0, index, asked, count, held, starts, lengths, found);
}

/* (buckets, lines, known ids, asked ids, places int64 [2, asked]) -> (found, tokens, longest): write first rows
 * and lengths of the asked ids as columns, zeros for an id that is not known. Found are those of a length, tokens
 * is the sum of the lengths, longest the largest of them. */
static PyObject *find(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer buckets, lines, places;
    PyObject *known, *asked;
    if (!PyArg_ParseTuple(arguments, "w*w*O!O!w*", &buckets, &lines, &PyList_Type, &known, &PyList_Type, &asked,
                          &places))
        return NULL;
    const struct index index = {buckets.buf, (uint64_t)buckets.len / sizeof(int64_t) - 1, lines.buf, known};
    const Py_ssize_t count = PyList_GET_SIZE(asked);
    struct found found;
    look_up(&index, ((PyListObject *)asked)->ob_item, count, 1, places.buf, (int64_t *)places.buf + count, &found);
    PyBuffer_Release(&buckets);
    PyBuffer_Release(&lines);
    PyBuffer_Release(&places);
    if (PyErr_Occurred()) return NULL;
    return Py_BuildValue("LLL", (long long)found.count, (long long)found.tokens, (long long)found.longest);
}

/* One of the lists that are looked up together. */
struct list {
    PyObject *const *asked;
    Py_ssize_t count;
    int64_t *starts, *lengths;
    struct found *found;
    int done;
};

struct lists {
    const struct index *index;
    struct list *of;
};

static void look_up_list(void *work, Py_ssize_t number) {
    const struct lists *lists = work;
    struct list *list = &lists->of[number];
    list->done = look_up(lists->index, list->asked, list->count, 0, list->starts, list->lengths, list->found);
}

/* (buckets, lines, known ids, lists of asked ids, places int64 [2, all asked], found int64 [lists, 3], helpers): as
 * `find` for each of the lists, whose places are one after the other. Of many ids the interpreter's lock is let go of,
 * so nobody may change any of these meanwhile, and as many others help. */
static PyObject *find_all(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer buckets, lines, places, found;
    PyObject *known, *asked;
    int helpers;
    if (!PyArg_ParseTuple(arguments, "w*w*O!O!w*w*i", &buckets, &lines, &PyList_Type, &known, &PyList_Type, &asked,
                          &places, &found, &helpers))
        return NULL;
    const struct index index = {buckets.buf, (uint64_t)buckets.len / sizeof(int64_t) - 1, lines.buf, known};
    const Py_ssize_t count = PyList_GET_SIZE(asked), ids = places.len / (2 * (Py_ssize_t)sizeof(int64_t));
    struct lists lists = {&index, PyMem_New(struct list, count)};
    if (lists.of == NULL) PyErr_NoMemory();
    Py_ssize_t first = 0;
    for (Py_ssize_t number = 0; number < count && !PyErr_Occurred(); number++) {
        PyObject *list = PyList_GET_ITEM(asked, number);
        if (!PyList_Check(list) || PyList_GET_SIZE(list) > ids - first) {
            PyErr_SetString(PyExc_TypeError, "lists of ids wanted, and places for all of them");
            break;
        }
        int64_t *starts = (int64_t *)places.buf + first;
        lists.of[number] = (struct list){((PyListObject *)list)->ob_item, PyList_GET_SIZE(list), starts, starts + ids,
                                         (struct found *)found.buf + number, 0};
        first += PyList_GET_SIZE(list);
    }
    if (!PyErr_Occurred()) {
        crew_take(run, ids >= MANY, look_up_list, &lists, count, helpers);
        for (Py_ssize_t number = 0; number < count && !PyErr_Occurred(); number++) {
            const struct list *list = &lists.of[number];
            if (!list->done) look_up(&index, list->asked, list->count, 1, list->starts, list->lengths, list->found);
        }
    }
    PyMem_Free(lists.of);
    PyBuffer_Release(&buckets);
    PyBuffer_Release(&lines);
    PyBuffer_Release(&places);
    PyBuffer_Release(&found);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"enter", enter, METH_VARARGS, NULL},
    {"find", find, METH_VARARGS, NULL},
    {"find_all", find_all, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    (void)module;
    if (choose_secret()) return -1;
    run = crew_of_process();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_lookup", .m_size = 0, .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__lookup(void) { return PyModuleDef_Init(&definition); }
