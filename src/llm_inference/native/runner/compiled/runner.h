/* What a runner holds, shared by the file that makes it (runner.c) and the one that computes with it (step.c). */
#ifndef LLM_RUNNER_H
#define LLM_RUNNER_H

#include "attention.h"
#include "buffers.h"
#include "linear.h"
#include "pool.h"
#include "step.h"

/* Up to so many rows every thread prepares all of them for itself: cheaper than to wait for one another. */
#define ALONE 2

typedef struct {
    rounded_buffers_t rounded; /* ALONE rows */
    buffer_t row;              /* one row of floats, as wide as any */
    buffer_t attention;
} thread_memory_t;

/* Strides, in floats; each a multiple of PAD. */
typedef struct {
    int32_t hidden, qkv, queries, inner, widest;
} strides_t;

struct llm_runner {
    llm_model model;
    strides_t strides;
    llm_pool *pool;
    uint8_t *cache;
    int64_t num_blocks;
    thread_memory_t *threads;
    /* [T, stride] each; `wanted` holds the rows of the last layer. */
    buffer_t hidden, wanted, qkv, queries, inner, rotation;
    rounded_buffers_t rounded;
    buffer_t tasks, partials, partial_begins, sequences;
    int32_t num_tasks;
    const llm_step *step; /* the caller's: to be read in tasks alone; of it: */
    int32_t num_tokens, num_rows, num_logits;
    const int32_t *rows;
    float *logits, *states;
    attention_t attention; /* of the layer that is being computed, apart from its pointers into the cache */
    int64_t stage_ns[8];   /* with LLM_PROFILE: what thread 0 spent */
};

/* Plans the step's attention and makes room. 0: no memory. */
int prepare_step(llm_runner *runner, const llm_step *step);
/* What each thread does. */
void run_step(void *runner, place_t *place);

#endif
