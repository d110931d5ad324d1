/* Attention over a paged cache, of 8 bits or of floats. */
#ifndef LLM_ATTENTION_H
#define LLM_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "linear.h"
#include "step.h"

#define BLOCK 32       /* tokens of a block of the cache */
#define PARTITION 128  /* tokens of the context that are attended to in one piece */
#define MAX_HEAD_DIM 256

/* Query tokens of one sequence that one thread attends for, with all heads that share a kv head. */
typedef struct {
    int32_t sequence, kv_head;
    int32_t first_token, num_tokens; /* of the step */
    int32_t partition;               /* the one to compute; -1: all of them, one after the other */
} attention_task_t;

/* What all tasks of a layer share. */
typedef struct {
    const llm_step *step;
    int32_t num_heads, num_kv_heads, head_dim, window;
    int32_t cache_bits;           /* 8, or FLOAT_BITS */
    const uint8_t *keys, *values; /* of this layer, [block, kv head, tile] */
    const float *queries;         /* [T, query_stride], not yet rotated */
    ptrdiff_t query_stride;
    const float *rotation; /* [T, head_dim]: cosines, then sines */
    float *out;            /* [T, out_stride] */
    ptrdiff_t out_stride;
    /* Where results of single partitions go, see `partial_at`. */
    const int64_t *partial_begins; /* [S]; -1: the sequence's tasks compute all partitions */
    float *partials;
} attention_t;

/* Bytes of one block of one head, keys or values; `bits` of the cache. */
size_t cache_tile_bytes(int32_t head_dim, int32_t bits);
/* A token's key or value [head_dim] into its place in a tile. */
void write_key(uint8_t *tile, int32_t head_dim, int32_t bits, int32_t offset, const float *key);
void write_value(uint8_t *tile, int32_t head_dim, int32_t bits, int32_t offset, const float *value);

/* Turn `x` [head_dim] by its position. */
void rotate(float *x, const float *rotation, int32_t head_dim);

/* How many query tokens a task has at most. */
int32_t attention_tile(int32_t heads_per_kv_head);
/* Bytes of memory that `attend` works in. */
size_t attention_scratch_bytes(int32_t heads_per_kv_head);
/* `next`: a task that this thread is likely to take next, or NULL: its keys are asked for meanwhile. */
void attend(const attention_t *attention, const attention_task_t *task, const attention_task_t *next, void *scratch);

/* Partitions that any query of a sequence sees: first .. first + count - 1. */
void partitions_of(const llm_step *step, int32_t sequence, int32_t window, int32_t *first, int32_t *count);
/* Floats of a partial result in `partials`: the largest score of one query, the sum of exp(score - largest), and from
 * the 16th on the sum of the values weighted with it. A sum of 0: it sees nothing of the partition. */
int32_t partial_floats(int32_t head_dim);
/* The attention of a token whose partitions were computed apart: `out` [num_heads * head_dim]. */
void join_partitions(const attention_t *attention, int32_t sequence, int32_t token, float *out);

#endif
