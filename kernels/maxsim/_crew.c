/* A few threads that take their share of a call's work, asleep in between. They touch no object's count and run no
 * Python: whoever calls may let go of the interpreter's lock.
 *
 * They are started when they are wanted for the first time, and end with the process. A forked child has none, and
 * starts its own.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>

#include "_crew.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t called, left;
    int started, helpers; /* of those, the first so many help */
    /* The work at hand: `open` from its beginning until its caller has found nothing left to take; `calls` tells one
     * from the next; `inside` helpers may still touch it. */
    int open, inside;
    unsigned long calls;
    crew_share *share;
    void *work;
    Py_ssize_t shares;
    atomic_long next;
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .called = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER};

/* Of those who call at the same time one is helped. */
static pthread_mutex_t in_use = PTHREAD_MUTEX_INITIALIZER;

static void take_shares(crew_share *share, void *work, Py_ssize_t shares) {
    for (long number; (number = atomic_fetch_add(&crew.next, 1)) < shares;) share(work, number);
}

static void *help(void *number) {
    unsigned long helped = 0;
    pthread_mutex_lock(&crew.lock);
    for (;;) {
        while (!crew.open || crew.calls == helped || (intptr_t)number >= crew.helpers)
            pthread_cond_wait(&crew.called, &crew.lock);
        helped = crew.calls;
        crew.inside++;
        crew_share *share = crew.share;
        void *work = crew.work;
        const Py_ssize_t shares = crew.shares;
        pthread_mutex_unlock(&crew.lock);
        take_shares(share, work, shares);
        pthread_mutex_lock(&crew.lock);
        if (--crew.inside == 0) pthread_cond_signal(&crew.left);
    }
    return NULL;
}

/* The locks may have been held by threads that a child does not have. */
static void forget(void) {
    pthread_mutex_init(&crew.lock, NULL);
    pthread_mutex_init(&in_use, NULL);
    pthread_cond_init(&crew.called, NULL);
    pthread_cond_init(&crew.left, NULL);
    crew.started = crew.open = crew.inside = 0;
}

/* Signals are for the threads that Python knows of. */
static void start_helpers(int helpers) {
    if (crew.started >= helpers) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; crew.started < helpers; crew.started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)(intptr_t)crew.started)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void run(crew_share *share, void *work, Py_ssize_t shares, int helpers) {
    if (!helpers || pthread_mutex_trylock(&in_use)) {
        crew_alone(share, work, shares, 0);
        return;
    }
    start_helpers(helpers);
    pthread_mutex_lock(&crew.lock);
    atomic_store(&crew.next, 0);
    crew.helpers = helpers;
    crew.share = share;
    crew.work = work;
    crew.shares = shares;
    crew.calls++;
    crew.open = 1;
    pthread_cond_broadcast(&crew.called);
    pthread_mutex_unlock(&crew.lock);
    take_shares(share, work, shares);
    pthread_mutex_lock(&crew.lock);
    crew.open = 0;
    while (crew.inside) pthread_cond_wait(&crew.left, &crew.lock);
    pthread_mutex_unlock(&crew.lock);
    pthread_mutex_unlock(&in_use);
}

static int start(PyObject *module) {
    if (pthread_atfork(NULL, NULL, forget)) {
        PyErr_NoMemory();
        return -1;
    }
    /* A pointer to data: one to a function need not fit. */
    static crew_run *const pointer = run;
    PyObject *capsule = PyCapsule_New((void *)&pointer, CREW_CAPSULE, NULL);
    if (capsule == NULL) return -1;
    const int added = PyModule_AddObjectRef(module, "run", capsule);
    Py_DECREF(capsule);
    return added;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_crew", .m_size = 0, .m_slots = slots};

PyMODINIT_FUNC PyInit__crew(void) { return PyModuleDef_Init(&definition); }
