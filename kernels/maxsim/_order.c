/* The order of a few thousand scores: a radix sort, 8 bits a pass, which keeps equals in their order.
 *
 * A score's key is its bits, turned so that keys ascend where scores descend: zeros are one number, NaN is last.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define DIGITS 256
#define PASSES 4
/* Scores that need no memory but the stack's. */
#define FEW 2048

struct entry {
    uint32_t key;
    uint32_t position;
};

static uint32_t key_of(float score) {
    uint32_t bits;
    if (score != score) return UINT32_MAX;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

static void sort(const float *scores, size_t count, struct entry *entries, struct entry *other, int64_t *positions,
                 size_t wanted) {
    uint32_t counts[PASSES][DIGITS] = {{0}};
    for (size_t i = 0; i < count; i++) {
        const uint32_t key = key_of(scores[i]);
        entries[i] = (struct entry){key, (uint32_t)i};
        for (int pass = 0; pass < PASSES; pass++) counts[pass][key >> 8 * pass & 255]++;
    }
    for (int pass = 0; pass < PASSES; pass++) {
        uint32_t *first = counts[pass], sum = 0;
        if (count && first[entries[0].key >> 8 * pass & 255] == count) continue; /* all have this digit */
        for (int digit = 0; digit < DIGITS; digit++) {
            const uint32_t here = first[digit];
            first[digit] = sum;
            sum += here;
        }
        for (size_t i = 0; i < count; i++) other[first[entries[i].key >> 8 * pass & 255]++] = entries[i];
        struct entry *sorted = other;
        other = entries;
        entries = sorted;
    }
    for (size_t i = 0; i < wanted; i++) positions[i] = entries[i].position;
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
    PyObject *done = NULL;
    if (wanted > count || count > UINT32_MAX)
        PyErr_Format(PyExc_ValueError, "%zu positions of %zu scores", wanted, count);
    else if (count > FEW && !(entries = PyMem_Malloc(2 * count * sizeof *entries)))
        PyErr_NoMemory();
    else {
        sort(scores.buf, count, entries, entries + count, positions.buf, wanted);
        done = Py_NewRef(Py_None);
    }
    if (entries != few) PyMem_Free(entries);
    PyBuffer_Release(&scores);
    PyBuffer_Release(&positions);
    return done;
}

static PyMethodDef methods[] = {
    {"order", (PyCFunction)(void (*)(void))order, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_order", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__order(void) { return PyModuleDef_Init(&definition); }
