#include "buffers.h"

#include <stdlib.h>
#include <string.h>

#include "linear_float.h"

int buffer_reserve(buffer_t *buffer, size_t bytes) {
    if (bytes <= buffer->capacity) return 1;
    void *data = NULL;
    const size_t whole = bytes + 64; /* vectors may look beyond the last value */
    if (posix_memalign(&data, 64, whole)) return 0;
    memset(data, 0, whole);
    free(buffer->data);
    *buffer = (buffer_t){data, bytes};
    return 1;
}

void buffer_free(buffer_t *buffer) {
    free(buffer->data);
    *buffer = (buffer_t){NULL, 0};
}

int rounded_reserve(rounded_buffers_t *buffers, int32_t num_tokens, int32_t width, int32_t bits) {
    const size_t tokens = (size_t)num_tokens, groups = (size_t)width / ROUNDED_GROUP;
    if (bits == FLOAT_BITS) {
        const size_t rows = tokens + (size_t)float_lanes(num_tokens);
        return buffer_reserve(&buffers->floats, rows * (size_t)width * sizeof(float));
    }
    return buffer_reserve(&buffers->values, tokens * (size_t)width) &&
           buffer_reserve(&buffers->scales, tokens * groups * sizeof(float)) &&
           buffer_reserve(&buffers->offsets, tokens * groups * sizeof(int32_t)) &&
           buffer_reserve(&buffers->sums, tokens * groups * sizeof(float));
}

void rounded_free(rounded_buffers_t *buffers) {
    buffer_free(&buffers->values);
    buffer_free(&buffers->scales);
    buffer_free(&buffers->offsets);
    buffer_free(&buffers->sums);
    buffer_free(&buffers->floats);
}

activations_t rounded_view(const rounded_buffers_t *buffers, int32_t width, int32_t num_tokens) {
    return (activations_t){
        .floats = buffers->floats.data,
        .lanes = float_lanes(num_tokens),
        .values = buffers->values.data,
        .scales = buffers->scales.data,
        .offsets = buffers->offsets.data,
        .sums = buffers->sums.data,
        .width = width,
    };
}
