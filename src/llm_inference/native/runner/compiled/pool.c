#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "step.h"

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

/* How long to spin before sleeping: within a step the others are nearly always done sooner. Between steps there is the
 * sampling of tokens and a server to run, for which the core is wanted. */
#define SPIN_NS 50000
#define RELAXES_PER_LOOK 64

/* The lower bits of a ticket count the tasks that are taken, the upper ones stages. */
#define TASK_BITS 24
#define STAGE_OF(ticket) ((ticket) >> TASK_BITS)
#define TASK_OF(ticket) ((int)((ticket) & ((1u << TASK_BITS) - 1)))

/* Something that threads wait for. On cache lines of its own. */
typedef struct {
    _Alignas(64) atomic_int num_sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} bell_t;

typedef struct {
    llm_pool *pool;
    pthread_t id;
    int index;
} worker_t;

struct llm_pool {
    _Alignas(64) _Atomic uint64_t ticket; /* of the present stage */
    _Alignas(64) atomic_int num_done;     /* tasks of it */
    _Alignas(64) _Atomic uint64_t number; /* of the work, from 1 on */
    _Atomic uint64_t open;                /* the number of the work that may be entered; 0: none */
    atomic_int num_inside, stop;          /* threads in it, apart from the caller */
    bell_t begun, passed;
    int num_threads, num_started;
    uint64_t first_stage;
    void (*work)(void *, place_t *);
    void *context;
    worker_t *workers;
};

static void bell_init(bell_t *bell) {
    atomic_init(&bell->num_sleepers, 0);
    pthread_mutex_init(&bell->mutex, NULL);
    pthread_cond_init(&bell->changed, NULL);
}

static void bell_free(bell_t *bell) {
    pthread_cond_destroy(&bell->changed);
    pthread_mutex_destroy(&bell->mutex);
}

/* After a change. A sleeper counts itself before it looks a last time, both in one order for all threads: so either it
 * has seen the change, or it is counted here. */
static void bell_ring(bell_t *bell) {
    if (atomic_load(&bell->num_sleepers) == 0) return;
    pthread_mutex_lock(&bell->mutex);
    pthread_cond_broadcast(&bell->changed);
    pthread_mutex_unlock(&bell->mutex);
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Until `*value >> shift` is no longer `known`. */
static void wait_for_change(bell_t *bell, _Atomic uint64_t *value, int shift, uint64_t known) {
    int64_t begun = 0;
    for (int i = 1;; i++) {
        if (atomic_load_explicit(value, memory_order_acquire) >> shift != known) return;
        RELAX();
        if (i % RELAXES_PER_LOOK == 0) {
            int64_t now = now_ns();
            if (begun == 0) begun = now;
            if (now - begun > SPIN_NS) break;
        }
    }
    pthread_mutex_lock(&bell->mutex);
    atomic_fetch_add(&bell->num_sleepers, 1);
    while (atomic_load(value) >> shift == known) pthread_cond_wait(&bell->changed, &bell->mutex);
    atomic_fetch_sub(&bell->num_sleepers, 1);
    pthread_mutex_unlock(&bell->mutex);
}

static void *worker_main(void *argument) {
    worker_t *worker = argument;
    llm_pool *pool = worker->pool;
    for (uint64_t known = 0;;) {
        wait_for_change(&pool->begun, &pool->number, 0, known);
        if (atomic_load(&pool->stop)) return NULL;
        known = atomic_load(&pool->number);
        /* The caller closes a work before it waits for those inside: either it sees this thread, or this thread sees
         * that it is too late. */
        atomic_fetch_add(&pool->num_inside, 1);
        if (atomic_load(&pool->open) == known) {
            place_t place = {pool, worker->index, 0, pool->first_stage};
            pool->work(pool->context, &place);
        }
        atomic_fetch_sub(&pool->num_inside, 1);
    }
}

llm_pool *pool_create(int num_threads, int32_t *error) {
    llm_pool *pool = NULL;
    *error = LLM_OUT_OF_MEMORY;
    if (posix_memalign((void **)&pool, 64, sizeof *pool)) return NULL;
    memset(pool, 0, sizeof *pool);
    pool->num_threads = num_threads;
    bell_init(&pool->begun);
    bell_init(&pool->passed);
    pool->workers = calloc((size_t)num_threads, sizeof *pool->workers);
    if (pool->workers == NULL) {
        pool_destroy(pool);
        return NULL;
    }
    for (int i = 1; i < num_threads; i++) {
        worker_t *worker = &pool->workers[i];
        *worker = (worker_t){.pool = pool, .index = i};
        if (pthread_create(&worker->id, NULL, worker_main, worker)) {
            *error = LLM_NO_THREADS;
            pool_destroy(pool);
            return NULL;
        }
        pool->num_started = i;
    }
    *error = LLM_OK;
    return pool;
}

void pool_destroy(llm_pool *pool) {
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->number, 1);
    bell_ring(&pool->begun);
    for (int i = 1; i <= pool->num_started; i++) pthread_join(pool->workers[i].id, NULL);
    free(pool->workers);
    bell_free(&pool->begun);
    bell_free(&pool->passed);
    free(pool);
}

int pool_num_threads(const llm_pool *pool) { return pool->num_threads; }

void pool_settle(llm_pool *pool) {
    for (int i = 1; atomic_load(&pool->num_inside) > 0; i++) {
        RELAX();
        if (i % RELAXES_PER_LOOK == 0) sched_yield();
    }
}

void pool_run(llm_pool *pool, void (*work)(void *, place_t *), void *context) {
    pool->work = work;
    pool->context = context;
    pool->first_stage = STAGE_OF(atomic_load(&pool->ticket));
    const uint64_t number = atomic_load(&pool->number) + 1;
    atomic_store(&pool->open, number);
    atomic_store(&pool->number, number);
    bell_ring(&pool->begun);
    place_t place = {pool, 0, 0, pool->first_stage};
    work(context, &place);
    atomic_store(&pool->open, 0);
}

int pool_take(place_t *place, int num_tasks) {
    llm_pool *pool = place->pool;
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (STAGE_OF(ticket) == place->stage && TASK_OF(ticket) < num_tasks)
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acquire,
                                                  memory_order_acquire)) {
            place->num_taken++;
            return TASK_OF(ticket);
        }
    return -1;
}

void pool_finish(place_t *place, int num_tasks) {
    llm_pool *pool = place->pool;
    if (num_tasks == 0) return;
    const int taken = place->num_taken;
    place->num_taken = 0;
    if (taken > 0 && atomic_fetch_add(&pool->num_done, taken) + taken == num_tasks) {
        /* Nobody else has anything to do here before the stage changes. */
        atomic_store_explicit(&pool->num_done, 0, memory_order_relaxed);
        atomic_store(&pool->ticket, (place->stage + 1) << TASK_BITS);
        bell_ring(&pool->passed);
    } else if (STAGE_OF(atomic_load_explicit(&pool->ticket, memory_order_acquire)) == place->stage) {
        wait_for_change(&pool->passed, &pool->ticket, TASK_BITS, place->stage);
    }
    place->stage++;
}
