/* What the files of the attention share: attention.c, which goes over a context, and the two that multiply. */
#ifndef LLM_ATTENTION_INSIDE_H
#define LLM_ATTENTION_INSIDE_H

#include "attention.h"
#include "simd.h"

#define TILE_ROWS 24 /* queries that go over a block of the cache together */

/* Memory of one task. A row is a query token in one head. */
typedef struct {
    float *scores;                /* [rows, PARTITION], then probabilities */
    int8_t *high, *low;           /* [rows, PARTITION]: probabilities times values' scales */
    int8_t *query_high, *query_low; /* [rows, MAX_HEAD_DIM] */
    float *query_scale, *query_sum; /* [rows] */
    float *weight_scale;            /* [rows]: of high and low */
    float *minima;                  /* [rows]: sum of probability times values' minimum */
    float *queries;                 /* [rows, MAX_HEAD_DIM]: of a cache of floats, in place of the rounded ones */
    float *part, *whole;            /* [rows, MAX_HEAD_DIM] */
    float *part_largest, *part_sum, *whole_largest, *whole_sum; /* [rows] */
} scratch_t;

/* The blocks of a partition that any query of a task sees. */
typedef struct {
    int32_t begin; /* position of the first slot */
    int32_t count;
    const uint8_t *keys[PARTITION / BLOCK], *values[PARTITION / BLOCK];
} tiles_t;

/* Lanes of a vector that begins at `at`, of which from .. to - 1 are seen. Most vectors are seen whole. */
INLINE f32x16 seen(f32x16 x, int32_t at, int32_t from, int32_t to, f32x16 other) {
    return at >= from && at + 16 <= to ? x : f_keep(x, from - at, to - at, other);
}

INLINE int32_t first_seen(int32_t position, int32_t window) {
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

/* A query, turned by its position, as the products need it. */
void round_query(const attention_t *attention, const scratch_t *s, int32_t row, int32_t token, int32_t head);
void put_float_query(const attention_t *attention, const scratch_t *s, int32_t row, int32_t token, int32_t head);

/* One partition for all rows of a task, into `part`, `part_largest` and `part_sum`. `next`: what this thread comes to
 * after it. */
void attend_bytes(const attention_t *attention, const attention_task_t *task, const tiles_t *tiles,
                  const tiles_t *next, const scratch_t *s);
void attend_floats(const attention_t *attention, const attention_task_t *task, const tiles_t *tiles,
                   const tiles_t *next, const scratch_t *s);

#endif
