/* Products of activations with packed matrices. Activations are rounded beside weights of 8 and 4 bits, and stay floats
 * beside weights that are floats. */
#ifndef LLM_LINEAR_H
#define LLM_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include "step.h"

#define PANEL 32 /* outputs */
#define PAD 64   /* rows of floats are padded with zeros to a multiple of this */

#define ROUND_UP(n, to) (((n) + (to)-1) / (to) * (to))

/* `bits` of a matrix whose weights are floats. */
#define FLOAT_BITS 32

/* Inputs of a weight that share a scale. */
#define GROUP_8 64
#define GROUP_4 32
#define GROUP_OF(bits) ((bits) == 8 ? GROUP_8 : GROUP_4)
/* Inputs of a token that share a scale, whatever they are multiplied with. */
#define ROUNDED_GROUP 32

/* Tokens rounded to int8: value ~ scale of the token's group * int8 value. Or, where `floats` is not NULL, as they are:
 * [tokens / lanes, width, lanes], so that the tokens of a tile lie side by side. */
typedef struct {
    float *floats;
    int32_t lanes;
    int8_t *values;   /* [tokens, width], width a multiple of 64, zeros behind the inputs */
    float *scales;    /* [tokens, width / ROUNDED_GROUP] */
    int32_t *offsets; /* -128 * sum of the group's values: undoes the 128 that is added to 8-bit weights */
    float *sums;      /* scale * sum of the group's values: what a 4-bit group's minimum is multiplied with */
    ptrdiff_t width;
} activations_t;

/* What becomes of y = W x + bias. */
typedef enum {
    PUT,  /* out = y */
    ADD,  /* out += y */
    GATE, /* out[i] = f(y[gate i]) * y[up i], for matrices in the order of `gate_up` */
} target_t;

typedef struct {
    target_t target;
    int32_t activation; /* of GATE */
    float *out;
    ptrdiff_t stride; /* between tokens of out, in floats */
    int32_t limit;    /* outputs to write; a whole number of panels but for the head */
} destination_t;

/* `x` [count], count a multiple of 64, becomes row `token` of `rounded`. Rounded, an infinite number or one that is
 * none makes every product with the row NaN. */
void round_row(const float *x, int32_t count, const activations_t *rounded, int32_t token);

int32_t num_panels(const llm_matrix *matrix);
/* Tokens that should pass by a panel together. */
int32_t tokens_at_once(const llm_matrix *matrix, const activations_t *activations);
/* Panels first .. last - 1, for `num_tokens` tokens from `first_token` on. */
void multiply_panels(const llm_matrix *matrix, const activations_t *rounded, int32_t first_token, int32_t num_tokens,
                     int32_t first, int32_t last, const destination_t *to);

/* Row `row` of the matrix as float32: `out` [ins]. */
void read_row(const llm_matrix *matrix, int32_t row, float *out);

/* In place over `count` values, a multiple of 16. */
void activate(float *x, int32_t count, int32_t activation);

#endif
