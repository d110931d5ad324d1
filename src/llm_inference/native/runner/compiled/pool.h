/* A few threads that go through the stages of one piece of work together, each taking tasks of the stage while it has
 * some.
 *
 * A stage is over when its tasks are done, whoever did them: a thread that the system has put aside, since the machine
 * has other work, delays a stage only while it holds a task. It catches up later. A thread that waits spins for some
 * microseconds, since most waits are that short, and then sleeps. The caller is thread 0.
 */
#ifndef LLM_POOL_H
#define LLM_POOL_H

#include <stdint.h>

typedef struct llm_pool llm_pool;

/* One thread's place in the work. */
typedef struct {
    llm_pool *pool;
    int thread;
    int num_taken; /* tasks of this stage that it has taken */
    uint64_t stage;
} place_t;

/* NULL when memory or threads are short; `*error` says which. */
llm_pool *pool_create(int num_threads, int32_t *error);
void pool_destroy(llm_pool *pool);
int pool_num_threads(const llm_pool *pool);

/* Returns when no thread is left in the last work: what it reads may then change. */
void pool_settle(llm_pool *pool);
/* Calls work(context, place) on every thread that comes in time, and returns when thread 0 has returned from it. Behind
 * `pool_settle`. Late threads still go through `work`: outside of tasks it reads nothing that may change before the
 * next `pool_settle`. */
void pool_run(llm_pool *pool, void (*work)(void *context, place_t *place), void *context);

/* Inside of `work`: the number of a task, once for each of 0 .. num_tasks - 1; or -1 when all are taken. */
int pool_take(place_t *place, int num_tasks);
/* Behind the -1. Returns when all tasks of the stage are done; what was written in them is then seen. Every thread
 * names the same number of tasks for the same stage. */
void pool_finish(place_t *place, int num_tasks);

#endif
