/* Attention over keys and values of 8 bits.
 *
 * Queries and probabilities are rounded to 15 bits and split into a high and a low byte, so that both products are sums
 * of whole numbers by `dot4`, and far more exact than the 8 bits of the cache.
 */
#include <math.h>

#include "attention_inside.h"

#define MAX_ROWS 6   /* queries in registers */
#define LIMIT 16256  /* of 15-bit numbers: 127 * 128 */

/* 15 bits of sixteen numbers that lie within -LIMIT .. LIMIT, as high * 128 + low. */
INLINE i32x16 split(f32x16 x, int8_t *high, int8_t *low) {
    i32x16 whole = f_to_int(x);
    i32x16 upper = i_shift_right_7(i_add(whole, i_set(64)));
    i_store_bytes(high, upper);
    i_store_bytes(low, i_sub(whole, i_shift_left_7(upper)));
    return whole;
}

void round_query(const attention_t *a, const scratch_t *s, int32_t row, int32_t token, int32_t head) {
    const int32_t dim = a->head_dim;
    float query[MAX_HEAD_DIM];
    memcpy(query, a->queries + token * a->query_stride + head * dim, sizeof(float) * (size_t)dim);
    memset(query + dim, 0, sizeof(float) * (size_t)((MAX_HEAD_DIM - dim) % 16));
    rotate(query, a->rotation + (ptrdiff_t)token * dim, dim);
    f32x16 most = f_set(0.0f);
    for (int32_t i = 0; i < dim; i += 16) most = f_max(most, f_abs(f_load(query + i)));
    const float largest = f_largest(most), inverse = largest > 1e-30f ? LIMIT / largest : 0.0f;
    i32x16 sum = i_set(0);
    for (int32_t i = 0; i < dim; i += 16) {
        ptrdiff_t at = (ptrdiff_t)row * MAX_HEAD_DIM + i;
        sum = i_add(sum, split(f_mul(f_load(query + i), f_set(inverse)), s->query_high + at, s->query_low + at));
    }
    s->query_scale[row] = largest / LIMIT / sqrtf((float)dim);
    s->query_sum[row] = s->query_scale[row] * (float)i_sum(sum);
}

/* A tile that is asked for, a few lines at a time, while something else is computed. Tiles lie anywhere and are short,
 * so that the machine does not foresee them; asked for at once they would hold up what asks. */
typedef struct {
    const uint8_t *at, *end;
} ahead_t;

static ahead_t ahead_of(const uint8_t *tile, int32_t dim) {
    return (ahead_t){tile, tile ? tile + cache_tile_bytes(dim, 8) : NULL};
}

INLINE void fetch_lines(ahead_t *ahead) {
    for (int i = 0; i < 3 && ahead->at < ahead->end; i++, ahead->at += 64) prefetch(ahead->at);
}

/* Scores of `rows` queries with one block of keys. */
INLINE void score_rows(const int rows, const uint8_t *tile, int32_t dim, const scratch_t *s, int32_t row,
                       ahead_t *ahead, float *out) {
    i32x16 high[MAX_ROWS][2], low[MAX_ROWS][2];
    for (int r = 0; r < rows; r++) high[r][0] = high[r][1] = low[r][0] = low[r][1] = i_set(0);
    const int8_t *query_high = s->query_high + (ptrdiff_t)row * MAX_HEAD_DIM;
    const int8_t *query_low = s->query_low + (ptrdiff_t)row * MAX_HEAD_DIM;
    for (int32_t i = 0; i < dim; i += 4) {
        fetch_lines(ahead);
        u8x64 left = u_load(tile + i * BLOCK), right = u_load(tile + i * BLOCK + 64);
        for (int r = 0; r < rows; r++) {
            high[r][0] = dot4(high[r][0], left, query_high + r * MAX_HEAD_DIM + i);
            high[r][1] = dot4(high[r][1], right, query_high + r * MAX_HEAD_DIM + i);
            low[r][0] = dot4(low[r][0], left, query_low + r * MAX_HEAD_DIM + i);
            low[r][1] = dot4(low[r][1], right, query_low + r * MAX_HEAD_DIM + i);
        }
    }
    const float *scales = (const float *)(tile + BLOCK * dim), *minima = scales + BLOCK;
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            f32x16 sum = f_from_int(i_add(i_shift_left_7(high[r][half]), low[r][half]));
            f32x16 least = f_mul(f_load(minima + 16 * half), f_set(s->query_sum[row + r]));
            f32x16 scale = f_mul(f_load(scales + 16 * half), f_set(s->query_scale[row + r]));
            f_store(out + (ptrdiff_t)r * PARTITION + 16 * half, f_fma(scale, sum, least));
        }
}

/* Rounded probabilities of `rows` queries times 32 dimensions of values, over all blocks of a partition. */
INLINE void weigh_rows(const int rows, const uint8_t *const *tiles, int32_t num_tiles, int32_t dim, int32_t from,
                       const scratch_t *s, int32_t row, ahead_t *ahead) {
    i32x16 high[MAX_ROWS][2], low[MAX_ROWS][2];
    for (int r = 0; r < rows; r++) high[r][0] = high[r][1] = low[r][0] = low[r][1] = i_set(0);
    for (int32_t block = 0; block < num_tiles; block++) {
        const uint8_t *tile = tiles[block] + 4 * from;
        const int8_t *weight_high = s->high + (ptrdiff_t)row * PARTITION + block * BLOCK;
        const int8_t *weight_low = s->low + (ptrdiff_t)row * PARTITION + block * BLOCK;
        for (int32_t i = 0; i < BLOCK; i += 4) {
            fetch_lines(&ahead[block]);
            u8x64 left = u_load(tile + i * dim), right = u_load(tile + i * dim + 64);
            for (int r = 0; r < rows; r++) {
                high[r][0] = dot4(high[r][0], left, weight_high + r * PARTITION + i);
                high[r][1] = dot4(high[r][1], right, weight_high + r * PARTITION + i);
                low[r][0] = dot4(low[r][0], left, weight_low + r * PARTITION + i);
                low[r][1] = dot4(low[r][1], right, weight_low + r * PARTITION + i);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            f32x16 sum = f_from_int(i_add(i_shift_left_7(high[r][half]), low[r][half]));
            f_store(s->part + (ptrdiff_t)(row + r) * MAX_HEAD_DIM + from + 16 * half,
                    f_fma(sum, f_set(s->weight_scale[row + r]), f_set(s->minima[row + r])));
        }
}

#define EACH_COUNT(count, call) \
    switch (count) { \
    case 1: call(1); break; \
    case 2: call(2); break; \
    case 3: call(3); break; \
    case 4: call(4); break; \
    case 5: call(5); break; \
    default: call(6); break; \
    }

static void score_block(int32_t rows, const uint8_t *tile, int32_t dim, const scratch_t *s, ahead_t *ahead,
                        float *out) {
    for (int32_t row = 0; row < rows; row += MAX_ROWS) {
#define SCORE(n) score_rows(n, tile, dim, s, row, ahead, out + (ptrdiff_t)row * PARTITION)
        EACH_COUNT(rows - row, SCORE)
    }
}

/* `ahead`: one for each block of a partition. */
static void weigh_blocks(int32_t rows, const uint8_t *const *tiles, int32_t num_tiles, int32_t dim,
                         const scratch_t *s, ahead_t *ahead) {
    for (int32_t from = 0; from < dim; from += 32)
        for (int32_t row = 0; row < rows; row += MAX_ROWS) {
#define WEIGH(n) weigh_rows(n, tiles, num_tiles, dim, from, s, row, ahead)
            EACH_COUNT(rows - row, WEIGH)
        }
}

/* Scores of one row, of which it sees from .. to - 1 and at least one, to rounded probabilities. */
static void soften(const scratch_t *s, int32_t row, int32_t from, int32_t to, const uint8_t *const *tiles,
                   int32_t num_tiles, int32_t dim) {
    float *scores = s->scores + (ptrdiff_t)row * PARTITION;
    int8_t *high = s->high + (ptrdiff_t)row * PARTITION, *low = s->low + (ptrdiff_t)row * PARTITION;
    from = from > 0 ? from : 0;
    to = to < num_tiles * BLOCK ? to : num_tiles * BLOCK;
    const int32_t begin = from / 16 * 16, end = ROUND_UP(to, 16);
    memset(high, 0, (size_t)begin);
    memset(low, 0, (size_t)begin);
    memset(high + end, 0, (size_t)(num_tiles * BLOCK - end));
    memset(low + end, 0, (size_t)(num_tiles * BLOCK - end));
    const f32x16 nothing = f_set(-INFINITY), zero = f_set(0.0f);
    f32x16 most = nothing;
    for (int32_t i = begin; i < end; i += 16) {
        f32x16 score = seen(f_load(scores + i), i, from, to, nothing);
        f_store(scores + i, score);
        most = f_max(most, score);
    }
    const float largest = s->part_largest[row] = f_largest(most);
    f32x16 sum = zero, minima = zero, greatest = zero;
    for (int32_t i = begin; i < end; i += 16) {
        const float *scales = (const float *)(tiles[i / BLOCK] + BLOCK * dim) + i % BLOCK;
        f32x16 weight = seen(f_exp(f_sub(f_load(scores + i), f_set(largest))), i, from, to, zero);
        /* Slots that were never written hold anything, even what is no number. */
        f32x16 scaled = f_mul(weight, seen(f_load(scales), i, from, to, zero));
        sum = f_add(sum, weight);
        minima = f_fma(weight, seen(f_load(scales + BLOCK), i, from, to, zero), minima);
        greatest = f_max(greatest, scaled);
        f_store(scores + i, scaled);
    }
    s->part_sum[row] = f_sum(sum);
    s->minima[row] = f_sum(minima);
    const float most_weight = f_largest(greatest), inverse = most_weight > 1e-30f ? LIMIT / most_weight : 0.0f;
    s->weight_scale[row] = most_weight / LIMIT;
    for (int32_t i = begin; i < end; i += 16) split(f_mul(f_load(scores + i), f_set(inverse)), high + i, low + i);
}

/* The values are asked for while the
 * keys are multiplied, and the keys of `next` while the values are. */
void attend_bytes(const attention_t *a, const attention_task_t *task, const tiles_t *tiles, const tiles_t *next,
                  const scratch_t *s) {
    const int32_t heads = a->num_heads / a->num_kv_heads, rows = task->num_tokens * heads, dim = a->head_dim;
    ahead_t ahead[PARTITION / BLOCK];
    for (int32_t block = 0; block < tiles->count; block++) {
        ahead[block] = ahead_of(tiles->values[block], dim);
        score_block(rows, tiles->keys[block], dim, s, &ahead[block], s->scores + block * BLOCK);
    }
    for (int32_t row = 0; row < rows; row++) {
        const int32_t position = a->step->positions[task->first_token + row / heads];
        const int32_t from = first_seen(position, a->window) - tiles->begin, to = position + 1 - tiles->begin;
        if (to <= 0 || from >= tiles->count * BLOCK) { /* sees nothing here */
            s->part_sum[row] = s->weight_scale[row] = s->minima[row] = 0.0f;
            memset(s->high + (ptrdiff_t)row * PARTITION, 0, PARTITION);
            memset(s->low + (ptrdiff_t)row * PARTITION, 0, PARTITION);
        } else {
            soften(s, row, from, to, tiles->values, tiles->count, dim);
        }
    }
    for (int32_t block = 0; block < PARTITION / BLOCK; block++)
        ahead[block] = ahead_of(block < next->count ? next->keys[block] : NULL, dim);
    weigh_blocks(rows, tiles->values, tiles->count, dim, s, ahead);
}
