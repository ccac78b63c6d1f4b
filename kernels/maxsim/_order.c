/* The best of a few thousand scores, in order: those that may be among them are picked, and sorted by radix, 8 bits
 * a pass, which keeps equals in their order.
 *
 * A score's key is its bits, turned so that keys ascend where scores descend: zeros are one number, NaN is last.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_crew.h"

#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)
#define PASSES 4
/* Scores that need no memory but the stack's. */
#define FEW 2048
/* More than are wanted, that are sooner sorted with them than told apart. */
#define SPARE 64

/* Scores of all lists from which on others help; for fewer it takes longer to wake them, and to have the interpreter's
 * lock again. */
#define MANY 8192

static crew_run *run;

struct entry {
    uint32_t key;
    uint32_t position;
};

static uint32_t key_of(float score) {
    uint32_t bits;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof bits);
    const uint32_t key = bits >> 31 ? bits : ~(bits | 0x80000000u);
    return score != score ? UINT32_MAX : key;
}

/* A key that at least `wanted` keys do not exceed, and few more. Its neighbourhood is narrowed down, a digit a pass:
 * `below` keys are less than `low`, and less than are wanted; those up to `high` are enough. */
static uint32_t last_wanted(const uint32_t *keys, size_t count, size_t wanted) {
    uint32_t low = UINT32_MAX, high = 0;
    for (size_t i = 0; i < count; i++) low = keys[i] < low ? keys[i] : low;
    for (size_t i = 0; i < count; i++) high = keys[i] > high ? keys[i] : high;
    for (size_t below = 0;;) {
        const uint32_t width = high - low;
        int shift = 0;
        while (width >> shift >= DIGITS) shift++;
        uint32_t counts[DIGITS] = {0}, digit = 0;
        for (size_t i = 0; i < count; i++)
            if (keys[i] - low <= width) counts[(keys[i] - low) >> shift]++;
        while (below + counts[digit] < wanted) below += counts[digit++];
        low += digit << shift;
        if ((high - low) >> shift) high = low + (1u << shift) - 1;
        if (!shift || below + counts[digit] <= wanted + SPARE) return high;
    }
}

/* → where they are in order: `entries` or `other`. */
static struct entry *sort(struct entry *entries, struct entry *other, size_t count) {
    uint32_t counts[PASSES][DIGITS] = {{0}};
    for (size_t i = 0; i < count; i++)
        for (int pass = 0; pass < PASSES; pass++) counts[pass][entries[i].key >> DIGIT_BITS * pass & (DIGITS - 1)]++;
    for (int pass = 0; pass < PASSES; pass++) {
        const int shift = DIGIT_BITS * pass;
        uint32_t *first = counts[pass], sum = 0;
        if (count && first[entries[0].key >> shift & (DIGITS - 1)] == count) continue; /* all have this digit */
        for (int digit = 0; digit < DIGITS; digit++) {
            const uint32_t here = first[digit];
            first[digit] = sum;
            sum += here;
        }
        for (size_t i = 0; i < count; i++) other[first[entries[i].key >> shift & (DIGITS - 1)]++] = entries[i];
        struct entry *sorted = other;
        other = entries;
        entries = sorted;
    }
    return entries;
}

/* `keys` is room for as many as there are scores, `entries` for twice as many. */
static void best(const float *scores, size_t count, uint32_t *keys, struct entry *entries, int64_t *positions,
                 size_t wanted) {
    for (size_t i = 0; i < count; i++) keys[i] = key_of(scores[i]);
    const uint32_t last = wanted && wanted <= count / 2 ? last_wanted(keys, count, wanted) : UINT32_MAX;
    size_t picked = 0;
    for (size_t i = 0; i < count; i++) {
        entries[picked] = (struct entry){keys[i], (uint32_t)i};
        picked += keys[i] <= last;
    }
    const struct entry *sorted = sort(entries, entries + count, picked);
    for (size_t i = 0; i < wanted; i++) positions[i] = sorted[i].position;
}

/* (scores float32 [N], positions int64 [k], k <= N < 2^32): fill in where the k best are, best first. */
static PyObject *order(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    (void)module;
    Py_buffer scores, positions;
    if (given != 2) return PyErr_Format(PyExc_TypeError, "order takes 2 arguments, not %zd", given);
    if (PyObject_GetBuffer(arguments[0], &scores, PyBUF_SIMPLE)) return NULL;
    if (PyObject_GetBuffer(arguments[1], &positions, PyBUF_WRITABLE)) {
        PyBuffer_Release(&scores);
        return NULL;
    }
    const size_t count = scores.len / sizeof(float), wanted = positions.len / sizeof(int64_t);
    struct entry few[2 * FEW], *entries = few;
    uint32_t few_keys[FEW], *keys = few_keys;
    PyObject *done = NULL;
    if (count > FEW) {
        entries = PyMem_Malloc(2 * count * sizeof *entries);
        keys = PyMem_Malloc(count * sizeof *keys);
    }
    if (wanted > count || count > UINT32_MAX)
        PyErr_Format(PyExc_ValueError, "%zu positions of %zu scores", wanted, count);
    else if (!entries || !keys)
        PyErr_NoMemory();
    else {
        best(scores.buf, count, keys, entries, positions.buf, wanted);
        done = Py_NewRef(Py_None);
    }
    if (count > FEW) {
        PyMem_Free(entries);
        PyMem_Free(keys);
    }
    PyBuffer_Release(&scores);
    PyBuffer_Release(&positions);
    return done;
}

/* One of the lists that are ordered together. */
struct list {
    Py_buffer scores;
    size_t count, wanted;
    int64_t *positions;
    float *best;
};

static void order_list(void *work, Py_ssize_t number) {
    const struct list *list = (const struct list *)work + number;
    struct entry entries[2 * FEW];
    uint32_t keys[FEW];
    const float *scores = list->scores.buf;
    best(scores, list->count, keys, entries, list->positions, list->wanted);
    for (size_t i = 0; i < list->wanted; i++) list->best[i] = scores[list->positions[i]];
}

/* (list of scores float32 [N_i], N_i <= 2048; list of wanted k_i <= N_i; positions int64 [sum of k_i], best float32
 * [the same], helpers): fill in where the best of each are, best first, and their scores; list after list. Of many the
 * interpreter's lock is let go of, so nobody may write to any of these meanwhile, and as many others help. */
static PyObject *order_all(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *scores, *wanted;
    Py_buffer positions, values;
    int helpers;
    if (!PyArg_ParseTuple(arguments, "O!O!w*w*i", &PyList_Type, &scores, &PyList_Type, &wanted, &positions, &values,
                          &helpers))
        return NULL;
    const Py_ssize_t lists = Py_MIN(PyList_GET_SIZE(scores), PyList_GET_SIZE(wanted));
    const size_t room = Py_MIN(positions.len / sizeof(int64_t), values.len / sizeof(float));
    struct list *list = PyMem_New(struct list, lists);
    size_t all = 0, all_wanted = 0;
    Py_ssize_t ready = 0;
    if (list == NULL) PyErr_NoMemory();
    for (; ready < lists && !PyErr_Occurred(); ready++) {
        struct list *one = &list[ready];
        if (PyObject_GetBuffer(PyList_GET_ITEM(scores, ready), &one->scores, PyBUF_SIMPLE)) break;
        one->count = one->scores.len / sizeof(float);
        one->wanted = PyLong_AsSize_t(PyList_GET_ITEM(wanted, ready));
        one->positions = (int64_t *)positions.buf + all_wanted;
        one->best = (float *)values.buf + all_wanted;
        if (!PyErr_Occurred() && (one->wanted > one->count || one->count > FEW || one->wanted > room - all_wanted))
            PyErr_Format(PyExc_ValueError, "%zu positions of %zu scores, room for %zu", one->wanted, one->count,
                         room - all_wanted);
        all += one->count;
        all_wanted += one->wanted;
    }
    if (!PyErr_Occurred()) crew_take(run, all >= MANY, order_list, list, lists, helpers);
    while (ready > 0) PyBuffer_Release(&list[--ready].scores);
    PyMem_Free(list);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&values);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"order", (PyCFunction)(void (*)(void))order, METH_FASTCALL, NULL},
    {"order_all", order_all, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    (void)module;
    run = crew_of_process();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_order", .m_size = 0, .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__order(void) { return PyModuleDef_Init(&definition); }
