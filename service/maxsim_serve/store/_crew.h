/* A few threads that take their share of a call's work, asleep in between. They touch no object's count and run no
 * Python: whoever calls may let go of the interpreter's lock.
 *
 * They are started when they are wanted for the first time, and end with the process. A forked child has none, and
 * starts its own.
 */

#ifndef MAXSIM_CREW_H
#define MAXSIM_CREW_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

typedef void share(void *work, Py_ssize_t number);

static struct {
    pthread_mutex_t lock;
    pthread_cond_t called, left;
    int helpers; /* that were started */
    /* The work at hand: `open` from its beginning until its caller has found nothing left to take; `calls` tells one
     * from the next; `inside` helpers may still touch it. */
    int open, inside;
    unsigned long calls;
    share *share;
    void *work;
    Py_ssize_t shares;
    atomic_long next;
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .called = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER};

/* Of those who call at the same time one is helped. */
static pthread_mutex_t crew_in_use = PTHREAD_MUTEX_INITIALIZER;

static void crew_take_shares(share *share, void *work, Py_ssize_t shares) {
    for (long number; (number = atomic_fetch_add(&crew.next, 1)) < shares;) share(work, number);
}

static void *crew_helper(void *nothing) {
    unsigned long helped = 0;
    pthread_mutex_lock(&crew.lock);
    for (;;) {
        while (!crew.open || crew.calls == helped) pthread_cond_wait(&crew.called, &crew.lock);
        helped = crew.calls;
        crew.inside++;
        share *share = crew.share;
        void *work = crew.work;
        const Py_ssize_t shares = crew.shares;
        pthread_mutex_unlock(&crew.lock);
        crew_take_shares(share, work, shares);
        pthread_mutex_lock(&crew.lock);
        if (--crew.inside == 0) pthread_cond_signal(&crew.left);
    }
    return nothing;
}

/* The locks may have been held by threads that a child does not have. */
static void crew_forget(void) {
    pthread_mutex_init(&crew.lock, NULL);
    pthread_mutex_init(&crew_in_use, NULL);
    pthread_cond_init(&crew.called, NULL);
    pthread_cond_init(&crew.left, NULL);
    crew.helpers = crew.open = crew.inside = 0;
}

/* Signals are for the threads that Python knows of. */
static void crew_start(int helpers) {
    if (crew.helpers >= helpers) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; crew.helpers < helpers; crew.helpers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, crew_helper, NULL)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* To be called once, before all else. */
static int crew_prepare(void) { return pthread_atfork(NULL, NULL, crew_forget); }

/* Call `share(work, n)` for every n below `shares`, in any order, in this thread and in those that are helpers by now,
 * `helpers` of them at the least if the machine can start them. All is done on return. */
static void crew_run(share *share, void *work, Py_ssize_t shares, int helpers) {
    if (pthread_mutex_trylock(&crew_in_use)) {
        for (Py_ssize_t number = 0; number < shares; number++) share(work, number);
        return;
    }
    crew_start(helpers);
    pthread_mutex_lock(&crew.lock);
    atomic_store(&crew.next, 0);
    crew.share = share;
    crew.work = work;
    crew.shares = shares;
    crew.calls++;
    crew.open = 1;
    pthread_cond_broadcast(&crew.called);
    pthread_mutex_unlock(&crew.lock);
    crew_take_shares(share, work, shares);
    pthread_mutex_lock(&crew.lock);
    crew.open = 0;
    while (crew.inside) pthread_cond_wait(&crew.left, &crew.lock);
    pthread_mutex_unlock(&crew.lock);
    pthread_mutex_unlock(&crew_in_use);
}

#endif
