/* Memory of a step, kept from step to step and grown when a larger one comes. */
#ifndef LLM_BUFFERS_H
#define LLM_BUFFERS_H

#include <stddef.h>

#include "linear.h"

typedef struct {
    void *data;
    size_t capacity;
} buffer_t;

/* At least `bytes`, 64-byte aligned. Zeros when it is new; else what was there. 0 when there is no memory. */
int buffer_reserve(buffer_t *buffer, size_t bytes);
void buffer_free(buffer_t *buffer);

/* Memory for so many tokens of at most `width` inputs, rounded to int8, or as floats for matrices of floats. */
typedef struct {
    buffer_t values, scales, offsets, sums, floats;
} rounded_buffers_t;

int rounded_reserve(rounded_buffers_t *buffers, int32_t num_tokens, int32_t width, int32_t bits);
void rounded_free(rounded_buffers_t *buffers);
/* For `num_tokens` tokens of `width` inputs. */
activations_t rounded_view(const rounded_buffers_t *buffers, int32_t width, int32_t num_tokens);

#endif
