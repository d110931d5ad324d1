/* One step, as each thread sees it: stages whose tasks are shared out, one behind the other.
 *
 *   hidden ─ norm, round ─ qkv ─ cache ─ attention ─ round ─ output, + ─ norm, round ─ gate_up ─ round ─ down, + ─►
 *
 * From the last layer's attention on only the wanted rows go on. Where there are few rows (decodes of one or two
 * sequences), every thread norms and rounds them for itself, which takes less time than a stage.
 *
 * A late thread goes through all of this when the others are done, and the caller may be gone: outside of tasks nothing
 * is read but the runner itself, see pool.h.
 */
#include <math.h>
#include <string.h>

#include "runner.h"
#include "simd.h"

#ifdef LLM_PROFILE
#include <time.h>
static int64_t clock_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}
#define STAGE(index) \
    if (place->thread == 0) { \
        int64_t now = clock_ns(); \
        runner->stage_ns[index] += now - since; \
        since = now; \
    }
#define CLOCK int64_t since = clock_ns();
#else
#define STAGE(index)
#define CLOCK
#endif

typedef enum { NORMED, ATTENDED, INNER } kind_t;

/* Rows to be rounded: `x` [rows, stride]. Of ATTENDED, row i is that of the token `tokens[i]`, or of token i. */
typedef struct {
    kind_t kind;
    const float *x;
    ptrdiff_t stride;
    int32_t count; /* inputs, rounded up to PAD */
    const float *norm;
    const int32_t *tokens;
    const attention_t *attention; /* of ATTENDED: of the layer */
} source_t;

static void norm_row(const llm_model *model, const float *x, const float *weight, int32_t count, float *out) {
    f32x16 squares = f_set(0.0f);
    for (int32_t i = 0; i < count; i += 16) squares = f_fma(f_load(x + i), f_load(x + i), squares);
    const float mean = f_sum(squares) / (float)model->hidden_size;
    const f32x16 inverse = f_set(1.0f / sqrtf(mean + model->norm_epsilon));
    for (int32_t i = 0; i < count; i += 16)
        f_store(out + i, f_mul(f_mul(f_load(x + i), inverse), f_load(weight + i)));
}

static void prepare_row(llm_runner *runner, int thread, const source_t *source, int32_t row,
                        const activations_t *rounded) {
    float *own = runner->threads[thread].row.data;
    const float *x = source->x + row * source->stride;
    if (source->kind == NORMED) {
        norm_row(&runner->model, x, source->norm, source->count, own);
        x = own;
    } else if (source->kind == ATTENDED) {
        const int32_t token = source->tokens ? source->tokens[row] : row;
        const int32_t sequence = ((const int32_t *)runner->sequences.data)[token];
        x = source->x + token * source->stride;
        if (source->attention->partial_begins[sequence] >= 0) {
            const int32_t width = runner->model.num_heads * runner->model.head_dim;
            memset(own + width, 0, sizeof(float) * (size_t)(source->count - width));
            join_partitions(source->attention, sequence, token, own);
            x = own;
        }
    }
    round_row(x, source->count, rounded, row);
}

/* A chunk of the rows for each task, so that every thread has about four. */
static int32_t chunk_of(const llm_runner *runner, int32_t rows) {
    return rows / (4 * pool_num_threads(runner->pool)) + 1;
}

static int32_t tasks_of(int32_t count, int32_t chunk) { return (count + chunk - 1) / chunk; }

/* Into memory that all threads share. */
static activations_t prepare_rows(llm_runner *runner, place_t *place, const source_t *source, int32_t rows) {
    const activations_t shared = rounded_view(&runner->rounded, source->count, rows);
    const int32_t chunk = chunk_of(runner, rows), num_tasks = tasks_of(rows, chunk);
    for (int task; (task = pool_take(place, num_tasks)) >= 0;)
        for (int32_t row = task * chunk; row < (task + 1) * chunk && row < rows; row++)
            prepare_row(runner, place->thread, source, row, &shared);
    pool_finish(place, num_tasks);
    return shared;
}

/* Tasks in an order by which threads that take turns read on where they were: as many runs as there are threads. */
static int32_t in_lanes(int32_t task, int32_t num_tasks, int32_t threads) {
    const int32_t lane = task % threads, longer = num_tasks % threads;
    return lane * (num_tasks / threads) + (lane < longer ? lane : longer) + task / threads;
}

/* Rows of the source, rounded, times the matrix. */
static void multiply(llm_runner *runner, place_t *place, const llm_matrix *matrix, const source_t *source, int32_t rows,
                     const destination_t *to) {
    const int alone = rows <= ALONE;
    activations_t rounded;
    if (alone) rounded = rounded_view(&runner->threads[place->thread].rounded, source->count, rows);
    else rounded = prepare_rows(runner, place, source, rows);
    int prepared = !alone;
    const int32_t panels = num_panels(matrix), threads = pool_num_threads(runner->pool);
    int32_t chunk = panels / (8 * threads);
    if (chunk < 1) chunk = 1;
    const int32_t num_tasks = tasks_of(panels, chunk);
    for (int task; (task = pool_take(place, num_tasks)) >= 0;) {
        /* Not before there is a task: a late thread would read what has changed already. */
        for (int32_t row = 0; !prepared && row < rows; row++)
            prepare_row(runner, place->thread, source, row, &rounded);
        prepared = 1;
        const int32_t first = in_lanes(task, num_tasks, threads) * chunk;
        const int32_t last = first + chunk < panels ? first + chunk : panels;
        const int32_t most = tokens_at_once(matrix, &rounded);
        for (int32_t row = 0; row < rows; row += most) {
            const int32_t some = rows - row < most ? rows - row : most;
            multiply_panels(matrix, &rounded, row, some, first, last, to);
        }
    }
    pool_finish(place, num_tasks);
}

/* out [rows, stride] = or += matrix times the rounded source. */
static void apply(llm_runner *runner, place_t *place, const llm_matrix *matrix, source_t source, int32_t rows,
                  target_t target, float *out, int32_t stride) {
    source.count = ROUND_UP(matrix->ins, PAD);
    const destination_t to = {target, runner->model.activation, out, stride, num_panels(matrix) * PANEL};
    multiply(runner, place, matrix, &source, rows, &to);
}

/* The first layer's input, and the angles of a position. */
static void begin_token(llm_runner *runner, int32_t token) {
    const llm_model *model = &runner->model;
    const llm_step *step = runner->step;
    const int32_t half = model->head_dim / 2;
    read_row(&model->embedding, step->token_ids[token],
             (float *)runner->hidden.data + (ptrdiff_t)token * runner->strides.hidden);
    float *rotation = (float *)runner->rotation.data + (ptrdiff_t)token * model->head_dim;
    for (int32_t i = 0; i < half; i++) {
        const float angle = (float)step->positions[token] * model->frequencies[i];
        rotation[i] = model->rope_scale * cosf(angle);
        rotation[half + i] = model->rope_scale * sinf(angle);
    }
}

static void begin_tokens(llm_runner *runner, place_t *place) {
    const int32_t tokens = runner->num_tokens, chunk = chunk_of(runner, tokens), num_tasks = tasks_of(tokens, chunk);
    for (int task; (task = pool_take(place, num_tasks)) >= 0;)
        for (int32_t token = task * chunk; token < (task + 1) * chunk && token < tokens; token++)
            begin_token(runner, token);
    pool_finish(place, num_tasks);
}

/* A token's new keys and values of a layer into the cache. */
static void write_token(llm_runner *runner, int32_t token, uint8_t *keys, uint8_t *values) {
    const llm_model *model = &runner->model;
    const llm_step *step = runner->step;
    const int32_t dim = model->head_dim, position = step->positions[token];
    const int32_t sequence = ((const int32_t *)runner->sequences.data)[token];
    const int32_t block = step->block_ids[step->block_begins[sequence] + position / BLOCK];
    const float *rotation = (const float *)runner->rotation.data + (ptrdiff_t)token * dim;
    float *key = (float *)runner->qkv.data + (ptrdiff_t)token * runner->strides.qkv + model->num_heads * dim;
    const float *value = key + model->num_kv_heads * dim;
    for (int32_t head = 0; head < model->num_kv_heads; head++, key += dim, value += dim) {
        const size_t tile = (size_t)block * (size_t)model->num_kv_heads + (size_t)head;
        rotate(key, rotation, dim);
        const size_t at = tile * cache_tile_bytes(dim, model->cache_bits);
        write_key(keys + at, dim, model->cache_bits, position % BLOCK, key);
        write_value(values + at, dim, model->cache_bits, position % BLOCK, value);
    }
}

static void write_cache(llm_runner *runner, place_t *place, uint8_t *keys, uint8_t *values) {
    const int32_t tokens = runner->num_tokens, chunk = chunk_of(runner, tokens), num_tasks = tasks_of(tokens, chunk);
    for (int task; (task = pool_take(place, num_tasks)) >= 0;)
        for (int32_t token = task * chunk; token < (task + 1) * chunk && token < tokens; token++)
            write_token(runner, token, keys, values);
    pool_finish(place, num_tasks);
}

static void attend_all(llm_runner *runner, place_t *place, const attention_t *attention) {
    const attention_task_t *tasks = runner->tasks.data;
    const int32_t num_tasks = runner->num_tasks, threads = pool_num_threads(runner->pool);
    for (int task; (task = pool_take(place, num_tasks)) >= 0;) {
        const attention_task_t *next = task + threads < num_tasks ? &tasks[task + threads] : NULL;
        attend(attention, &tasks[task], next, runner->threads[place->thread].attention.data);
    }
    pool_finish(place, num_tasks);
}

/* Residuals of the wanted rows, for the last layer. */
static void gather_wanted(llm_runner *runner, place_t *place) {
    const ptrdiff_t stride = runner->strides.hidden;
    const int32_t rows = runner->num_rows, chunk = chunk_of(runner, rows), num_tasks = tasks_of(rows, chunk);
    float *wanted = runner->wanted.data;
    const float *hidden = runner->hidden.data;
    for (int task; (task = pool_take(place, num_tasks)) >= 0;)
        for (int32_t row = task * chunk; row < (task + 1) * chunk && row < rows; row++)
            memcpy(wanted + row * stride, hidden + runner->rows[row] * stride, sizeof(float) * (size_t)stride);
    pool_finish(place, num_tasks);
}

/* Logits and hidden states of the wanted rows. */
static void finish_rows(llm_runner *runner, place_t *place) {
    const llm_model *model = &runner->model;
    const int32_t stride = runner->strides.hidden, num_logits = runner->num_logits;
    const int32_t num_states = runner->num_rows - num_logits;
    float *own = runner->threads[place->thread].row.data;
    for (int row; (row = pool_take(place, num_states)) >= 0;) {
        const float *x = (const float *)runner->wanted.data + (ptrdiff_t)(num_logits + row) * stride;
        norm_row(model, x, model->last_norm, stride, own);
        memcpy(runner->states + (ptrdiff_t)row * model->hidden_size, own,
               sizeof(float) * (size_t)model->hidden_size);
    }
    pool_finish(place, num_states);
    if (num_logits == 0) return;
    const source_t source = {.kind = NORMED, .x = runner->wanted.data, .stride = stride, .count = stride,
                             .norm = model->last_norm};
    const destination_t to = {PUT, model->activation, runner->logits, model->vocab_size, model->vocab_size};
    multiply(runner, place, &model->head, &source, num_logits, &to);
}

void run_step(void *context, place_t *place) {
    llm_runner *runner = context;
    const llm_model *model = &runner->model;
    const strides_t *strides = &runner->strides;
    const size_t side = (size_t)runner->num_blocks * (size_t)model->num_kv_heads *
                        cache_tile_bytes(model->head_dim, model->cache_bits);
    int32_t rows = runner->num_tokens;
    float *hidden = runner->hidden.data, *inner = runner->inner.data;
    CLOCK
    begin_tokens(runner, place);
    STAGE(0)
    for (int32_t index = 0; index < model->num_layers; index++) {
        const llm_layer *layer = &model->layers[index];
        uint8_t *keys = runner->cache + 2 * (size_t)index * side, *values = keys + side;
        source_t normed = {.kind = NORMED, .x = hidden, .stride = strides->hidden, .norm = layer->attention_norm};
        apply(runner, place, &layer->qkv, normed, rows, PUT, runner->qkv.data, strides->qkv);
        STAGE(1)
        write_cache(runner, place, keys, values);
        STAGE(2)
        attention_t attention = runner->attention;
        attention.window = layer->window;
        attention.keys = keys;
        attention.values = values;
        source_t attended = {.kind = ATTENDED, .x = runner->queries.data, .stride = strides->queries,
                             .attention = &attention};
        if (index == model->num_layers - 1) {
            rows = runner->num_rows;
            if (rows == 0) return;
            gather_wanted(runner, place);
            hidden = runner->wanted.data;
            attended.tokens = runner->rows;
        }
        attend_all(runner, place, &attention);
        STAGE(3)
        apply(runner, place, &layer->output, attended, rows, ADD, hidden, strides->hidden);
        STAGE(4)
        normed.x = hidden;
        normed.norm = layer->mlp_norm;
        apply(runner, place, &layer->gate_up, normed, rows, GATE, inner, strides->inner);
        STAGE(5)
        const source_t wide = {.kind = INNER, .x = inner, .stride = strides->inner};
        apply(runner, place, &layer->down, wide, rows, ADD, hidden, strides->hidden);
        STAGE(6)
    }
    finish_rows(runner, place);
    STAGE(7)
}
