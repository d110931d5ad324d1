/* Attention over keys and values that are floats. The products are those of linear_float.c in small: a block's keys are a
 * panel of 32 outputs, its values are one of as many outputs as a head has dimensions.
 */
#include <math.h>

#include "attention_inside.h"

/* Queries and vectors of sums in registers: 12 queries with two, or 6 with four. */
#if defined(__AVX512F__)
#define MAX_ROWS 12
#else
#define MAX_ROWS 3
#endif

/* A tile that is asked for, a few lines at a time, while another one is multiplied: see attention_bytes.c. */
typedef struct {
    const uint8_t *at, *end;
} ahead_t;

static ahead_t ahead_of(const uint8_t *tile, int32_t dim) {
    return (ahead_t){tile, tile ? tile + cache_tile_bytes(dim, FLOAT_BITS) : NULL};
}

INLINE void fetch_lines(ahead_t *ahead, int lines) {
    for (int i = 0; i < lines && ahead->at < ahead->end; i++, ahead->at += 64) prefetch(ahead->at);
}

void put_float_query(const attention_t *a, const scratch_t *s, int32_t row, int32_t token, int32_t head) {
    const int32_t dim = a->head_dim;
    float *query = s->queries + (ptrdiff_t)row * MAX_HEAD_DIM;
    memcpy(query, a->queries + token * a->query_stride + head * dim, sizeof(float) * (size_t)dim);
    rotate(query, a->rotation + (ptrdiff_t)token * dim, dim);
    const f32x16 scale = f_set(1.0f / sqrtf((float)dim));
    for (int32_t i = 0; i < dim; i += 16) f_store(query + i, f_mul(f_load(query + i), scale));
}

/* Scores of `rows` queries with one block of keys. */
INLINE void score_rows(const int rows, const float *keys, int32_t dim, const float *queries, ahead_t *ahead,
                       float *scores) {
    f32x16 sums[MAX_ROWS][2];
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = f_set(0.0f);
    for (int32_t i = 0; i < dim; i++, keys += BLOCK) {
        fetch_lines(ahead, 2);
        const f32x16 left = f_load(keys), right = f_load(keys + 16);
        for (int r = 0; r < rows; r++) {
            const f32x16 query = f_set(queries[r * MAX_HEAD_DIM + i]);
            sums[r][0] = f_fma(query, left, sums[r][0]);
            sums[r][1] = f_fma(query, right, sums[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        f_store(scores + r * PARTITION, sums[r][0]);
        f_store(scores + r * PARTITION + 16, sums[r][1]);
    }
}

/* The first `lanes` of a vector; what lies behind them may be no memory of ours. */
INLINE f32x16 f_load_part(const float *p, int lanes) {
    if (lanes == 16) return f_load(p);
    float part[16] = {0};
    memcpy(part, p, sizeof(float) * (size_t)lanes);
    return f_load(part);
}

/* Probabilities of `rows` queries times 16 * `vectors` dimensions of values, of which the last vector has `lanes`, over
 * the first `count` tokens. `next`: what is read after all of them. */
INLINE void weigh_rows(const int rows, const int vectors, const int lanes, const tiles_t *tiles, int32_t count,
                       int32_t dim, int32_t from, const float *weights, const uint8_t *next, float *out) {
    f32x16 sums[MAX_ROWS][4];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = f_set(0.0f);
    for (int32_t begin = 0; begin < count; begin += BLOCK) {
        const float *values = (const float *)(const void *)tiles->values[begin / BLOCK] + from;
        const int32_t some = count - begin < BLOCK ? count - begin : BLOCK;
        ahead_t ahead = ahead_of(begin + BLOCK < count ? tiles->values[begin / BLOCK + 1] : next, dim);
        for (int32_t i = 0; i < some; i++, values += dim) {
            fetch_lines(&ahead, 4);
            for (int v = 0; v < vectors; v++) {
                const f32x16 value = f_load_part(values + 16 * v, v + 1 < vectors ? 16 : lanes);
                for (int r = 0; r < rows; r++)
                    sums[r][v] = f_fma(f_set(weights[r * PARTITION + begin + i]), value, sums[r][v]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) f_store(out + r * MAX_HEAD_DIM + from + 16 * v, sums[r][v]);
}

#if MAX_ROWS == 12
#define MORE_ROWS(call) \
    case 4: call(4); break; \
    case 5: call(5); break; \
    case 6: call(6); break; \
    case 7: call(7); break; \
    case 8: call(8); break; \
    case 9: call(9); break; \
    case 10: call(10); break; \
    case 11: call(11); break;
#else
#define MORE_ROWS(call)
#endif
#define EACH_COUNT(count, call) \
    switch (count) { \
    case 1: call(1); break; \
    case 2: call(2); break; \
    case 3: call(3); break; \
    MORE_ROWS(call) \
    default: call(MAX_ROWS); break; \
    }

static void score_block(int32_t rows, const float *keys, int32_t dim, const scratch_t *s, ahead_t ahead, float *scores) {
    for (int32_t row = 0; row < rows; row += MAX_ROWS) {
        const float *queries = s->queries + (ptrdiff_t)row * MAX_HEAD_DIM;
#define SCORE(n) score_rows(n, keys, dim, queries, &ahead, scores + (ptrdiff_t)row * PARTITION)
        EACH_COUNT(rows - row, SCORE)
    }
}

/* `count`: tokens that any row sees; behind them lies what was never written, which may be no number. */
static void weigh_blocks(int32_t rows, const tiles_t *tiles, int32_t count, int32_t dim, const uint8_t *next,
                         const scratch_t *s) {
    const int32_t wide = rows <= MAX_ROWS / 2 ? 64 : 32;
    for (int32_t from = 0; from < dim;) {
        const int32_t left = dim - from, some = left >= wide ? wide : left >= 32 ? 32 : left > 16 ? 16 : left;
        const uint8_t *then = from + some < dim ? NULL : next;
        for (int32_t row = 0; row < rows; row += MAX_ROWS) {
            const float *weights = s->scores + (ptrdiff_t)row * PARTITION;
            float *out = s->part + (ptrdiff_t)row * MAX_HEAD_DIM;
#define WEIGH_4(n) weigh_rows((n) <= MAX_ROWS / 2 ? (n) : 1, 4, 16, tiles, count, dim, from, weights, then, out)
#define WEIGH_2(n) weigh_rows(n, 2, 16, tiles, count, dim, from, weights, then, out)
#define WEIGH_1(n) weigh_rows(n, 1, 16, tiles, count, dim, from, weights, then, out)
#define WEIGH_PART(n) weigh_rows(n, 1, some, tiles, count, dim, from, weights, then, out)
            if (some == 64) {
                EACH_COUNT(rows - row, WEIGH_4)
            } else if (some == 32) {
                EACH_COUNT(rows - row, WEIGH_2)
            } else if (some == 16) {
                EACH_COUNT(rows - row, WEIGH_1)
            } else {
                EACH_COUNT(rows - row, WEIGH_PART)
            }
        }
        from += some;
    }
}

/* Scores of one row, of which it sees from .. to - 1 and at least one, to probabilities that are not yet divided by
 * their sum. */
static void soften(const scratch_t *s, int32_t row, int32_t from, int32_t to, int32_t num_tokens) {
    float *scores = s->scores + (ptrdiff_t)row * PARTITION;
    from = from > 0 ? from : 0;
    to = to < num_tokens ? to : num_tokens;
    const f32x16 nothing = f_set(-INFINITY), zero = f_set(0.0f);
    f32x16 most = nothing, sum = zero;
    for (int32_t i = from / 16 * 16; i < to; i += 16) most = f_max(most, seen(f_load(scores + i), i, from, to, nothing));
    const float largest = s->part_largest[row] = f_largest(most);
    for (int32_t i = 0; i < num_tokens; i += 16) {
        const f32x16 weight = seen(f_exp(f_sub(f_load(scores + i), f_set(largest))), i, from, to, zero);
        sum = f_add(sum, weight);
        f_store(scores + i, weight);
    }
    s->part_sum[row] = f_sum(sum);
}

void attend_floats(const attention_t *a, const attention_task_t *task, const tiles_t *tiles, const tiles_t *next,
                   const scratch_t *s) {
    const int32_t heads = a->num_heads / a->num_kv_heads, rows = task->num_tokens * heads, dim = a->head_dim;
    const int32_t num_tokens = tiles->count * BLOCK;
    const int32_t end = a->step->positions[task->first_token + task->num_tokens - 1] + 1 - tiles->begin;
    for (int32_t block = 0; block < tiles->count; block++) {
        const uint8_t *then = block + 1 < tiles->count ? tiles->keys[block + 1] : tiles->values[0];
        score_block(rows, (const float *)(const void *)tiles->keys[block], dim, s, ahead_of(then, dim),
                    s->scores + block * BLOCK);
    }
    for (int32_t row = 0; row < rows; row++) {
        const int32_t position = a->step->positions[task->first_token + row / heads];
        const int32_t from = first_seen(position, a->window) - tiles->begin, to = position + 1 - tiles->begin;
        if (to <= 0 || from >= num_tokens) { /* sees nothing here */
            s->part_sum[row] = 0.0f;
            memset(s->scores + (ptrdiff_t)row * PARTITION, 0, sizeof(float) * (size_t)num_tokens);
        } else {
            soften(s, row, from, to, num_tokens);
        }
    }
    weigh_blocks(rows, tiles, end < num_tokens ? end : num_tokens, dim, next->count ? next->keys[0] : NULL, s);
}
