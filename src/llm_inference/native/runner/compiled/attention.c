/* Attention of a few queries to one kv head, partition after partition of the context.
 *
 * Partitions of the context lie at the same positions whoever computes them, and are joined in order: a query's result
 * does not depend on its company, on chunks, or on whether the partitions were shared out between threads.
 */
#include <math.h>

#include "attention_inside.h"

static int32_t max_rows(int32_t heads) { return heads > TILE_ROWS ? heads : TILE_ROWS / heads * heads; }

int32_t attention_tile(int32_t heads_per_kv_head) { return max_rows(heads_per_kv_head) / heads_per_kv_head; }

size_t attention_scratch_bytes(int32_t heads_per_kv_head) {
    size_t rows = (size_t)max_rows(heads_per_kv_head);
    return rows * (PARTITION * 6 + MAX_HEAD_DIM * (2 + 12) + 8 * sizeof(float)) + 64;
}

static scratch_t lay_out(void *memory, int32_t heads_per_kv_head) {
    size_t rows = (size_t)max_rows(heads_per_kv_head);
    scratch_t s;
    s.scores = memory;
    s.part = s.scores + rows * PARTITION;
    s.whole = s.part + rows * MAX_HEAD_DIM;
    s.queries = s.whole + rows * MAX_HEAD_DIM;
    s.query_scale = s.queries + rows * MAX_HEAD_DIM;
    s.query_sum = s.query_scale + rows;
    s.weight_scale = s.query_sum + rows;
    s.minima = s.weight_scale + rows;
    s.part_largest = s.minima + rows;
    s.part_sum = s.part_largest + rows;
    s.whole_largest = s.part_sum + rows;
    s.whole_sum = s.whole_largest + rows;
    s.high = (int8_t *)(s.whole_sum + rows);
    s.low = s.high + rows * PARTITION;
    s.query_high = s.low + rows * PARTITION;
    s.query_low = s.query_high + rows * MAX_HEAD_DIM;
    return s;
}

/* (largest, sum, values) of more of the context into that of what came before it. */
static void join(float *largest, float *sum, float *values, float more_largest, float more_sum, const float *more,
                 int32_t dim) {
    if (more_sum == 0.0f) return;
    if (*sum == 0.0f) {
        *largest = more_largest, *sum = more_sum;
        memcpy(values, more, sizeof(float) * (size_t)ROUND_UP(dim, 16));
        return;
    }
    const float top = *largest > more_largest ? *largest : more_largest;
    float factors[16] = {*largest - top, more_largest - top};
    f_store(factors, f_exp(f_load(factors)));
    *sum = *sum * factors[0] + more_sum * factors[1];
    *largest = top;
    for (int32_t i = 0; i < dim; i += 16)
        f_store(values + i, f_fma(f_load(values + i), f_set(factors[0]), f_mul(f_load(more + i), f_set(factors[1]))));
}

static void divide(const float *values, float sum, int32_t dim, float *out) {
    const float inverse = 1.0f / sum;
    for (int32_t i = 0; i < dim; i++) out[i] = values[i] * inverse;
}

void partitions_of(const llm_step *step, int32_t sequence, int32_t window, int32_t *first, int32_t *count) {
    int32_t begin = step->query_begins[sequence], end = step->query_begins[sequence + 1];
    *first = first_seen(step->positions[begin], window) / PARTITION;
    *count = step->positions[end - 1] / PARTITION - *first + 1;
}

int32_t partial_floats(int32_t head_dim) { return 16 + ROUND_UP(head_dim, 16); }

static float *partial_at(const attention_t *a, int32_t sequence, int32_t token, int32_t head, int32_t index,
                         int32_t count) {
    int64_t query = (int64_t)(token - a->step->query_begins[sequence]) * a->num_heads + head;
    return a->partials + a->partial_begins[sequence] + (query * count + index) * partial_floats(a->head_dim);
}

void join_partitions(const attention_t *a, int32_t sequence, int32_t token, float *out) {
    int32_t first, count;
    partitions_of(a->step, sequence, a->window, &first, &count);
    for (int32_t head = 0; head < a->num_heads; head++) {
        float values[MAX_HEAD_DIM] = {0}, largest = 0.0f, sum = 0.0f;
        for (int32_t index = 0; index < count; index++) {
            const float *part = partial_at(a, sequence, token, head, index, count);
            join(&largest, &sum, values, part[0], part[1], part + 16, a->head_dim);
        }
        divide(values, sum, a->head_dim, out + head * a->head_dim);
    }
}

static tiles_t tiles_of(const attention_t *a, const attention_task_t *task, int32_t partition) {
    const int32_t *positions = a->step->positions + task->first_token;
    const int32_t *blocks = a->step->block_ids + a->step->block_begins[task->sequence];
    const size_t size = cache_tile_bytes(a->head_dim, a->cache_bits);
    const int32_t seen_from = first_seen(positions[0], a->window), seen_to = positions[task->num_tokens - 1] + 1;
    tiles_t tiles = {.begin = partition * PARTITION};
    int32_t end = tiles.begin + PARTITION;
    if (end > seen_to) end = seen_to;
    if (tiles.begin < seen_from) tiles.begin = seen_from / BLOCK * BLOCK;
    for (int32_t position = tiles.begin; position < end; position += BLOCK) {
        const size_t at = (size_t)blocks[position / BLOCK] * (size_t)a->num_kv_heads + (size_t)task->kv_head;
        tiles.keys[tiles.count] = a->keys + at * size;
        tiles.values[tiles.count++] = a->values + at * size;
    }
    return tiles;
}

static void attend_partition(const attention_t *a, const attention_task_t *task, int32_t partition,
                             const tiles_t *next, const scratch_t *s) {
    const tiles_t tiles = tiles_of(a, task, partition);
    if (a->cache_bits == FLOAT_BITS) attend_floats(a, task, &tiles, next, s);
    else attend_bytes(a, task, &tiles, next, s);
}

static int32_t first_partition(const attention_t *a, const attention_task_t *task) {
    if (task->partition >= 0) return task->partition;
    return first_seen(a->step->positions[task->first_token], a->window) / PARTITION;
}

void attend(const attention_t *a, const attention_task_t *task, const attention_task_t *next, void *scratch) {
    const int32_t heads = a->num_heads / a->num_kv_heads, rows = task->num_tokens * heads, dim = a->head_dim;
    const scratch_t s = lay_out(scratch, heads);
    int32_t first = 0, count = 0;
    if (task->partition >= 0) partitions_of(a->step, task->sequence, a->window, &first, &count);
    if (task->partition >= 0 && task->partition < first) return; /* before the window of this layer */
    const tiles_t none = {0}, soon = next ? tiles_of(a, next, first_partition(a, next)) : none;
    for (int32_t row = 0; row < rows; row++) {
        const int32_t token = task->first_token + row / heads, head = task->kv_head * heads + row % heads;
        if (a->cache_bits == FLOAT_BITS) put_float_query(a, &s, row, token, head);
        else round_query(a, &s, row, token, head);
        s.whole_sum[row] = 0.0f;
    }
    if (task->partition >= 0) {
        attend_partition(a, task, task->partition, &soon, &s);
        for (int32_t row = 0; row < rows; row++) {
            const int32_t head = task->kv_head * heads + row % heads;
            float *part = partial_at(a, task->sequence, task->first_token + row / heads, head,
                                     task->partition - first, count);
            part[0] = s.part_largest[row];
            part[1] = s.part_sum[row];
            memcpy(part + 16, s.part + (ptrdiff_t)row * MAX_HEAD_DIM, sizeof(float) * (size_t)ROUND_UP(dim, 16));
        }
        return;
    }
    const int32_t last = a->step->positions[task->first_token + task->num_tokens - 1] / PARTITION;
    for (int32_t partition = first_partition(a, task); partition <= last; partition++) {
        attend_partition(a, task, partition, partition == last ? &soon : &none, &s);
        for (int32_t row = 0; row < rows; row++) {
            const ptrdiff_t at = (ptrdiff_t)row * MAX_HEAD_DIM;
            join(&s.whole_largest[row], &s.whole_sum[row], s.whole + at, s.part_largest[row], s.part_sum[row],
                 s.part + at, dim);
        }
    }
    for (int32_t row = 0; row < rows; row++) {
        const int32_t head = task->kv_head * heads + row % heads, token = task->first_token + row / heads;
        divide(s.whole + (ptrdiff_t)row * MAX_HEAD_DIM, s.whole_sum[row], dim,
               a->out + token * a->out_stride + head * dim);
    }
}
