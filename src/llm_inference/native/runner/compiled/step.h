/* One step of a decoder of the Llama family, with quantized weights or with floats: what library.py calls.
 *
 * Everything that a struct points to belongs to the caller and must live as long as the runner (a description) or the
 * call (a step). Nothing here aborts or prints: what can fail says so by its result.
 *
 * Numbers. A matrix [outs, ins] is kept in panels of 32 outputs and groups of inputs (64 in 8 bits, 32 in 4 bits), see
 * linear.c and packing.py. Activations are rounded to int8, each token and group of 32 by itself, products are summed
 * in int32 within a group and in float32 over groups, in order: a token's result does not depend on its company. A
 * matrix of floats has panels without groups, see linear_float.c, and activations are not rounded.
 */
#ifndef LLM_STEP_H
#define LLM_STEP_H

#include <stdint.h>

#define LLM_ABI_VERSION 2

enum { LLM_OK = 0, LLM_OUT_OF_MEMORY = 1, LLM_NO_THREADS = 2, LLM_UNSUPPORTED = 3 };
enum { LLM_SILU = 0, LLM_GELU = 1, LLM_GELU_TANH = 2, LLM_RELU = 3 };

typedef struct {
    const uint8_t *panels; /* 64-byte aligned */
    const float *bias;     /* [outs rounded up to 32], zeros behind; or NULL */
    int32_t outs, ins;
    int32_t bits; /* 8 or 4; 32: floats, and then all matrices of the model are */
} llm_matrix;

typedef struct {
    llm_matrix qkv;     /* queries, keys, values one after the other */
    llm_matrix output;  /* of the attention */
    llm_matrix gate_up; /* 16 rows of the gate, 16 of up, and so on: outs = 2 * (inner rounded up to 16) */
    llm_matrix down;
    const float *attention_norm, *mlp_norm; /* [hidden rounded up to 64], zeros behind */
    int32_t window;                         /* tokens that a token sees, itself included; 0: all before it */
} llm_layer;

typedef struct {
    int32_t num_layers, hidden_size, inner_size, num_heads, num_kv_heads, head_dim, vocab_size, activation;
    int32_t cache_bits; /* of keys and values: 8, or 32 for floats */
    float norm_epsilon, rope_scale;
    const float *frequencies; /* [head_dim / 2]: angle per position */
    const float *last_norm;
    const llm_layer *layers;
    llm_matrix embedding, head; /* the same panels where they are tied */
} llm_model;

/* T tokens of S sequences; sequence s has tokens query_begins[s] .. query_begins[s + 1] - 1, and blocks
 * block_ids[block_begins[s] ..] in the order of its positions. Rows are tokens of which something is wanted: the first
 * num_logits of them get logits, the others hidden states behind the last norm. */
typedef struct {
    int32_t num_tokens, num_sequences, num_rows, num_logits;
    const int32_t *token_ids, *positions;             /* [T] */
    const int32_t *query_begins, *block_begins;       /* [S + 1] */
    const int32_t *block_ids;
    const int32_t *rows; /* [num_rows] */
    float *logits;       /* [num_logits, vocab_size] */
    float *hidden;       /* [num_rows - num_logits, hidden_size] */
} llm_step;

typedef struct llm_runner llm_runner;

int32_t llm_abi_version(void);

/* What the kernels were compiled for: "avx512-vnni", "avx512", "avx-vnni", "avx2" or "generic". */
const char *llm_instruction_set(void);

/* NULL and `*error` when it cannot be made. Starts num_threads - 1 threads, which sleep between steps. */
llm_runner *llm_create(const llm_model *model, int32_t num_threads, int32_t *error);

/* `data`: [layer, key or value, block, kv head, 32 * (head_dim + 8)] bytes, or [.., 32 * head_dim] floats, 64-byte
 * aligned. See cache.c for what lies in the last of these. Cleared memory is not needed. */
void llm_set_cache(llm_runner *runner, uint8_t *data, int64_t num_blocks);

/* Returns LLM_OK or LLM_OUT_OF_MEMORY, after which the runner is as it was before. */
int32_t llm_run_step(llm_runner *runner, const llm_step *step);

/* Joins the threads. */
void llm_destroy(llm_runner *runner);

/* For tests and benchmarks: out [num_tokens, outs] = x [num_tokens, ins] times a matrix, by the same kernels, on the
 * calling thread. */
int32_t llm_multiply(const llm_matrix *matrix, const float *x, int32_t num_tokens, float *out);

#endif
