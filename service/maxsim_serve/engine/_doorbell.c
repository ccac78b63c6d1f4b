/* What one thread waits at for others. It stays awake for a while before it sleeps. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* Looks between two readings of the clock. */
#define LOOKS 64

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock;
    pthread_cond_t woken;
    atomic_int rung;   /* since it was answered */
    atomic_int asleep; /* a ring has to wake the waiter */
    double awake_s;
} doorbell;

/* Looking first: to write takes the memory from whoever rings. */
static int answered(doorbell *bell) { return atomic_load(&bell->rung) && atomic_exchange(&bell->rung, 0); }

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static int answered_awake(doorbell *bell) {
    if (bell->awake_s <= 0) return 0;
    const double end_s = now_s() + bell->awake_s;
    do {
        for (int look = 0; look < LOOKS; look++) {
            if (answered(bell)) return 1;
            RELAX();
        }
    } while (now_s() < end_s);
    return 0;
}

/* Whoever rings either sees the sleeper, or is seen by it: each writes its own before it reads the other's. */
static void sleep_until_answered(doorbell *bell) {
    pthread_mutex_lock(&bell->lock);
    atomic_store(&bell->asleep, 1);
    while (!answered(bell)) pthread_cond_wait(&bell->woken, &bell->lock);
    atomic_store(&bell->asleep, 0);
    pthread_mutex_unlock(&bell->lock);
}

static PyObject *ring(PyObject *self, PyObject *none) {
    (void)none;
    doorbell *bell = (doorbell *)self;
    atomic_store(&bell->rung, 1);
    if (atomic_load(&bell->asleep)) {
        pthread_mutex_lock(&bell->lock); /* it waits, or will look again before it does */
        pthread_mutex_unlock(&bell->lock);
        pthread_cond_signal(&bell->woken);
    }
    Py_RETURN_NONE;
}

static PyObject *answer(PyObject *self, PyObject *none) {
    (void)none;
    doorbell *bell = (doorbell *)self;
    if (!answered(bell)) {
        Py_BEGIN_ALLOW_THREADS
        if (!answered_awake(bell)) sleep_until_answered(bell);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"awake_s", NULL};
    double awake_s;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "d", names, &awake_s)) return NULL;
    doorbell *bell = (doorbell *)type->tp_alloc(type, 0); /* zeros */
    if (bell == NULL) return NULL;
    pthread_mutex_init(&bell->lock, NULL);
    pthread_cond_init(&bell->woken, NULL);
    bell->awake_s = awake_s;
    return (PyObject *)bell;
}

/* Nobody waits: who does holds a reference. */
static void unmake(PyObject *self) {
    doorbell *bell = (doorbell *)self;
    PyTypeObject *type = Py_TYPE(self);
    pthread_mutex_destroy(&bell->lock);
    pthread_cond_destroy(&bell->woken);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"ring", ring, METH_NOARGS, "Let the waiter go on, now or when it comes; from any thread."},
    {"answer", answer, METH_NOARGS, "Wait until it has rung since the last answer. For one thread."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, make}, {Py_tp_dealloc, unmake}, {Py_tp_methods, methods}, {0, NULL}};

static PyType_Spec type_spec = {
    .name = "maxsim_serve.engine._doorbell.Doorbell",
    .basicsize = sizeof(doorbell),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = type_slots,
};

static int start(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &type_spec, NULL);
    const int added = type == NULL ? -1 : PyModule_AddObjectRef(module, "Doorbell", type);
    Py_XDECREF(type);
    return added;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_doorbell", .m_size = 0, .m_slots = slots};

PyMODINIT_FUNC PyInit__doorbell(void) { return PyModuleDef_Init(&definition); }
