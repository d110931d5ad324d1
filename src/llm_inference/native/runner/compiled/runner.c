/* Making and unmaking a runner, and the plan of a step: what is decided once, before all threads begin. */
#include "runner.h"

#include <stdlib.h>
#include <string.h>

int32_t llm_abi_version(void) { return LLM_ABI_VERSION; }

const char *llm_instruction_set(void) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    return "avx512-vnni";
#elif defined(__AVX512BW__) && defined(__AVX512VL__)
    return "avx512";
#elif defined(__AVXVNNI__)
    return "avx-vnni";
#elif defined(__AVX2__)
    return "avx2";
#else
    return "generic";
#endif
}

static strides_t strides_of(const llm_model *model) {
    strides_t strides = {
        .hidden = ROUND_UP(model->hidden_size, PAD),
        .qkv = ROUND_UP((model->num_heads + 2 * model->num_kv_heads) * model->head_dim, PAD),
        .queries = ROUND_UP(model->num_heads * model->head_dim, PAD),
        .inner = ROUND_UP(model->inner_size, PAD),
    };
    strides.widest = strides.hidden;
    if (strides.qkv > strides.widest) strides.widest = strides.qkv;
    if (strides.inner > strides.widest) strides.widest = strides.inner;
    return strides;
}

/* All matrices are of floats, or none is. */
static int32_t bits_of(const llm_model *model) { return model->head.bits; }

llm_runner *llm_create(const llm_model *model, int32_t num_threads, int32_t *error) {
    *error = LLM_UNSUPPORTED;
    if (model->head_dim % 4 || model->head_dim > MAX_HEAD_DIM || num_threads < 1) return NULL;
    *error = LLM_OUT_OF_MEMORY;
    llm_runner *runner = calloc(1, sizeof *runner);
    if (runner == NULL) return NULL;
    runner->model = *model;
    runner->strides = strides_of(model);
    runner->pool = pool_create(num_threads, error);
    if (runner->pool == NULL) {
        llm_destroy(runner);
        return NULL;
    }
    runner->threads = calloc((size_t)num_threads, sizeof *runner->threads);
    int enough = runner->threads != NULL;
    const int32_t widest = runner->strides.widest;
    for (int i = 0; enough && i < num_threads; i++) {
        thread_memory_t *memory = &runner->threads[i];
        enough = rounded_reserve(&memory->rounded, ALONE, widest, bits_of(model)) &&
                 buffer_reserve(&memory->row, (size_t)widest * sizeof(float)) &&
                 buffer_reserve(&memory->attention, attention_scratch_bytes(model->num_heads / model->num_kv_heads));
    }
    if (!enough) {
        *error = LLM_OUT_OF_MEMORY;
        llm_destroy(runner);
        return NULL;
    }
    return runner;
}

void llm_set_cache(llm_runner *runner, uint8_t *data, int64_t num_blocks) {
    runner->cache = data;
    runner->num_blocks = num_blocks;
}

void llm_destroy(llm_runner *runner) {
    const int num_threads = runner->pool != NULL ? pool_num_threads(runner->pool) : 0;
    if (runner->pool != NULL) pool_destroy(runner->pool); /* a late thread still reads what is freed below */
    for (int i = 0; runner->threads != NULL && i < num_threads; i++) {
        rounded_free(&runner->threads[i].rounded);
        buffer_free(&runner->threads[i].row);
        buffer_free(&runner->threads[i].attention);
    }
    free(runner->threads);
    buffer_t *buffers[] = {&runner->hidden, &runner->wanted, &runner->qkv, &runner->queries, &runner->inner,
                           &runner->rotation, &runner->tasks, &runner->partials, &runner->partial_begins,
                           &runner->sequences};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) buffer_free(buffers[i]);
    rounded_free(&runner->rounded);
    free(runner);
}

/* Of all layers, the window that sees the most: 0 where there is none in one of them. */
static int32_t widest_window(const llm_model *model) {
    int32_t widest = 0;
    for (int32_t i = 0; i < model->num_layers; i++) {
        if (model->layers[i].window == 0) return 0;
        if (model->layers[i].window > widest) widest = model->layers[i].window;
    }
    return widest;
}

/* A sequence whose new tokens fit into one tile has too few tasks for several threads when its context is long: its
 * partitions are computed apart then. Longer chunks have a task for each tile instead. */
static int plan_attention(llm_runner *runner, const llm_step *step) {
    const llm_model *model = &runner->model;
    const int32_t tile = attention_tile(model->num_heads / model->num_kv_heads);
    const size_t sequences = (size_t)step->num_sequences;
    if (!buffer_reserve(&runner->partial_begins, sequences * sizeof(int64_t)) ||
        !buffer_reserve(&runner->sequences, (size_t)step->num_tokens * sizeof(int32_t)))
        return 0;
    int64_t *begins = runner->partial_begins.data, num_floats = 0;
    int32_t *sequence_of = runner->sequences.data;
    size_t num_tasks = 0;
    const int32_t window = widest_window(model);
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const int32_t begin = step->query_begins[s], tokens = step->query_begins[s + 1] - begin;
        int32_t first, count;
        partitions_of(step, s, window, &first, &count);
        const int apart = tokens <= tile && count > 1;
        begins[s] = apart ? num_floats : -1;
        if (apart) num_floats += (int64_t)tokens * model->num_heads * count * partial_floats(model->head_dim);
        num_tasks += (size_t)model->num_kv_heads * (size_t)(apart ? count : (tokens + tile - 1) / tile);
        for (int32_t token = begin; token < begin + tokens; token++) sequence_of[token] = s;
    }
    if (!buffer_reserve(&runner->tasks, num_tasks * sizeof(attention_task_t)) ||
        !buffer_reserve(&runner->partials, (size_t)num_floats * sizeof(float)))
        return 0;
    attention_task_t *task = runner->tasks.data;
    /* The longest ones first, so that the last to be taken are short: the end of each prompt's chunk. */
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const int32_t begin = step->query_begins[s], tokens = step->query_begins[s + 1] - begin;
        int32_t first, count;
        partitions_of(step, s, window, &first, &count);
        for (int32_t head = 0; head < model->num_kv_heads; head++) {
            if (begins[s] >= 0) {
                for (int32_t i = 0; i < count; i++)
                    *task++ = (attention_task_t){s, head, begin, tokens, first + i};
                continue;
            }
            for (int32_t at = (tokens - 1) / tile * tile; at >= 0; at -= tile)
                *task++ = (attention_task_t){s, head, begin + at, tokens - at < tile ? tokens - at : tile, -1};
        }
    }
    runner->num_tasks = (int32_t)num_tasks;
    return 1;
}

int prepare_step(llm_runner *runner, const llm_step *step) {
    const llm_model *model = &runner->model;
    const strides_t *strides = &runner->strides;
    const size_t row = (size_t)step->num_tokens * sizeof(float);
    const int32_t more = step->num_rows > step->num_tokens ? step->num_rows : step->num_tokens;
    const size_t most = (size_t)more * sizeof(float);
    if (!buffer_reserve(&runner->hidden, row * (size_t)strides->hidden) ||
        !buffer_reserve(&runner->wanted, (size_t)step->num_rows * sizeof(float) * (size_t)strides->hidden) ||
        !buffer_reserve(&runner->qkv, row * (size_t)strides->qkv) ||
        !buffer_reserve(&runner->queries, row * (size_t)strides->queries) ||
        !buffer_reserve(&runner->inner, most * (size_t)strides->inner) ||
        !buffer_reserve(&runner->rotation, row * (size_t)model->head_dim) ||
        !rounded_reserve(&runner->rounded, more, strides->widest, bits_of(model)) || !plan_attention(runner, step))
        return 0;
    runner->step = step;
    runner->num_tokens = step->num_tokens;
    runner->num_rows = step->num_rows;
    runner->num_logits = step->num_logits;
    runner->rows = step->rows;
    runner->logits = step->logits;
    runner->states = step->hidden;
    runner->attention = (attention_t){
        .step = step,
        .num_heads = model->num_heads,
        .num_kv_heads = model->num_kv_heads,
        .head_dim = model->head_dim,
        .cache_bits = model->cache_bits,
        .queries = runner->qkv.data,
        .query_stride = strides->qkv,
        .rotation = runner->rotation.data,
        .out = runner->queries.data,
        .out_stride = strides->queries,
        .partial_begins = runner->partial_begins.data,
        .partials = runner->partials.data,
    };
    return 1;
}

int32_t llm_run_step(llm_runner *runner, const llm_step *step) {
    pool_settle(runner->pool);
    if (!prepare_step(runner, step)) return LLM_OUT_OF_MEMORY;
    pool_run(runner->pool, run_step, runner);
    return LLM_OK;
}

int32_t llm_multiply(const llm_matrix *matrix, const float *x, int32_t num_tokens, float *out) {
    const int32_t width = ROUND_UP(matrix->ins, PAD);
    rounded_buffers_t buffers = {0};
    buffer_t row = {0};
    const int enough = rounded_reserve(&buffers, num_tokens, width, matrix->bits) &&
                       buffer_reserve(&row, (size_t)width * sizeof(float));
    if (enough) {
        const activations_t rounded = rounded_view(&buffers, width, num_tokens);
        for (int32_t token = 0; token < num_tokens; token++) {
            memcpy(row.data, x + (ptrdiff_t)token * matrix->ins, sizeof(float) * (size_t)matrix->ins);
            round_row(row.data, width, &rounded, token);
        }
        const destination_t to = {PUT, LLM_SILU, out, matrix->outs, matrix->outs};
        multiply_panels(matrix, &rounded, 0, num_tokens, 0, num_panels(matrix), &to);
    }
    buffer_free(&row);
    rounded_free(&buffers);
    return enough ? LLM_OK : LLM_OUT_OF_MEMORY;
}

#ifdef LLM_PROFILE
void llm_profile(const llm_runner *runner, int64_t *ns) { memcpy(ns, runner->stage_ns, sizeof runner->stage_ns); }
#endif
