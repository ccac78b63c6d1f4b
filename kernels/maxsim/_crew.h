/* Threads that take their share of a call's work, for compiled code that touches no Python object meanwhile. */

#ifndef MAXSIM_CREW_H
#define MAXSIM_CREW_H

#include <Python.h>

#define CREW_MODULE "maxsim._crew"
#define CREW_CAPSULE CREW_MODULE ".run"

typedef void crew_share(void *work, Py_ssize_t number);

/* Call `share(work, n)` for every n below `shares`, in any order, in this thread and in as many helpers, fewer where
 * others have them or the machine cannot start them. All is done on return. */
typedef void crew_run(crew_share *share, void *work, Py_ssize_t shares, int helpers);

static inline void crew_alone(crew_share *share, void *work, Py_ssize_t shares, int helpers) {
    (void)helpers;
    for (Py_ssize_t number = 0; number < shares; number++) share(work, number);
}

/* All shares: by the caller alone or, of `many`, with the help of a crew and without the interpreter's lock. Nobody may
 * write to what the work reads meanwhile. */
static inline void crew_take(crew_run *run, int many, crew_share *share, void *work, Py_ssize_t shares, int helpers) {
    if (!many) {
        crew_alone(share, work, shares, helpers);
        return;
    }
    PyThreadState *thread = PyEval_SaveThread();
    run(share, work, shares, helpers);
    PyEval_RestoreThread(thread);
}

/* The crew of this process or, where it was not built, nobody but the caller. */
static inline crew_run *crew_of_process(void) {
    PyObject *module = PyImport_ImportModule(CREW_MODULE);
    crew_run *const *run = module == NULL ? NULL : PyCapsule_Import(CREW_CAPSULE, 0);
    Py_XDECREF(module);
    if (run != NULL) return *run;
    PyErr_Clear();
    return crew_alone;
}

#endif
