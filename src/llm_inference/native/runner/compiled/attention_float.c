/* Attention over keys and values that are floats. The products are those of linear_float.c in small: a block's keys are
 * a panel of 32 outputs, its values are one of as many outputs as a head has dimensions.
 */
#include <math.h>

#include "attention_inside.h"
#include "product.h"

static ahead_t ahead_of(const uint8_t *tile, int32_t dim, int lines) {
    return (ahead_t){tile, tile ? tile + cache_tile_bytes(dim, FLOAT_BITS) : NULL, lines};
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
    for (int32_t from = 0; from < BLOCK; from += 2 * WIDTH) {
        vector_t sums[MAX_ROWS][4];
        for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = v_set(0.0f);
        add_products(rows, 2, WIDTH, dim, queries, MAX_HEAD_DIM, 1, keys + from, BLOCK, ahead, sums);
        for (int r = 0; r < rows; r++) {
            v_store(scores + r * PARTITION + from, sums[r][0]);
            v_store(scores + r * PARTITION + from + WIDTH, sums[r][1]);
        }
    }
}

/* Probabilities of `rows` queries times `vectors` vectors of dimensions of values, of which the last has `lanes`, over
 * the first `count` tokens. `next`: what is read after all of them. */
INLINE void weigh_rows(const int rows, const int vectors, const int lanes, const tiles_t *tiles, int32_t count,
                       int32_t dim, int32_t from, const float *weights, const uint8_t *next, float *out) {
    vector_t sums[MAX_ROWS][4];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = v_set(0.0f);
    for (int32_t begin = 0; begin < count; begin += BLOCK) {
        const float *values = (const float *)(const void *)tiles->values[begin / BLOCK] + from;
        ahead_t ahead = ahead_of(begin + BLOCK < count ? tiles->values[begin / BLOCK + 1] : next, dim, 4);
        add_products(rows, vectors, lanes, count - begin < BLOCK ? count - begin : BLOCK, weights + begin, PARTITION, 1,
                     values, dim, &ahead, sums);
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) v_store(out + r * MAX_HEAD_DIM + from + WIDTH * v, sums[r][v]);
}

static void score_block(int32_t rows, const float *keys, int32_t dim, const scratch_t *s, ahead_t ahead,
                        float *scores) {
    for (int32_t row = 0; row < rows; row += MAX_ROWS) {
        const float *queries = s->queries + (ptrdiff_t)row * MAX_HEAD_DIM;
#define SCORE(n) score_rows(n, keys, dim, queries, &ahead, scores + (ptrdiff_t)row * PARTITION)
        WITH_ROWS(rows - row, SCORE)
    }
}

/* `count`: tokens that any row sees; behind them lies what was never written, which may be no number. */
static void weigh_blocks(int32_t rows, const tiles_t *tiles, int32_t count, int32_t dim, const uint8_t *next,
                         const scratch_t *s) {
    const int32_t most = rows <= MAX_ROWS / 2 ? 4 * WIDTH : 2 * WIDTH;
    for (int32_t from = 0; from < dim;) {
        const int32_t left = dim - from;
        const int32_t some = left >= most ? most : left >= 2 * WIDTH ? 2 * WIDTH : left > WIDTH ? WIDTH : left;
        const uint8_t *then = from + some < dim ? NULL : next;
        for (int32_t row = 0; row < rows; row += MAX_ROWS) {
            const float *weights = s->scores + (ptrdiff_t)row * PARTITION;
            float *out = s->part + (ptrdiff_t)row * MAX_HEAD_DIM;
#define WEIGH_4(n) weigh_rows((n) <= MAX_ROWS / 2 ? (n) : 1, 4, WIDTH, tiles, count, dim, from, weights, then, out)
#define WEIGH_2(n) weigh_rows(n, 2, WIDTH, tiles, count, dim, from, weights, then, out)
#define WEIGH_1(n) weigh_rows(n, 1, WIDTH, tiles, count, dim, from, weights, then, out)
#define WEIGH_PART(n) weigh_rows(n, 1, some, tiles, count, dim, from, weights, then, out)
            if (some == 4 * WIDTH) {
                WITH_ROWS(rows - row, WEIGH_4)
            } else if (some == 2 * WIDTH) {
                WITH_ROWS(rows - row, WEIGH_2)
            } else if (some == WIDTH) {
                WITH_ROWS(rows - row, WEIGH_1)
            } else {
                WITH_ROWS(rows - row, WEIGH_PART)
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
    for (int32_t i = from / 16 * 16; i < to; i += 16)
        most = f_max(most, seen(f_load(scores + i), i, from, to, nothing));
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
        score_block(rows, (const float *)(const void *)tiles->keys[block], dim, s, ahead_of(then, dim, 2),
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
