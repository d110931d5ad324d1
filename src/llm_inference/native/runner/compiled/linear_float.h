/* The part of linear.h that is done for matrices of floats. */
#ifndef LLM_LINEAR_FLOAT_H
#define LLM_LINEAR_FLOAT_H

#include "linear.h"

/* Tokens of a tile, where there are so many in all: tiles are of about the same size. */
int32_t float_lanes(int32_t num_tokens);
int32_t float_tokens_at_once(const llm_matrix *matrix, int32_t lanes);
void put_float_row(const float *x, int32_t count, const activations_t *activations, int32_t token);
void read_float_row(const llm_matrix *matrix, int32_t row, float *out);
void multiply_float_panels(const llm_matrix *matrix, const activations_t *activations, int32_t first_token,
                           int32_t num_tokens, int32_t first, int32_t last, const destination_t *to);

#endif
