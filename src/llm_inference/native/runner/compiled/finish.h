/* What becomes of a product, for 32 outputs of a token in registers. */
#ifndef LLM_FINISH_H
#define LLM_FINISH_H

#include "linear.h"
#include "simd.h"

/* The outputs output .. output + 31 of a token, without the bias. */
INLINE void finish(const llm_matrix *matrix, const destination_t *to, ptrdiff_t token, int32_t output, f32x16 left,
                   f32x16 right) {
    if (matrix->bias != NULL) {
        left = f_add(left, f_load(matrix->bias + output));
        right = f_add(right, f_load(matrix->bias + output + 16));
    }
    float *out = to->out + token * to->stride + (to->target == GATE ? output / 2 : output);
    if (to->target == GATE) {
        float gate[16];
        f_store(gate, left);
        activate(gate, 16, to->activation);
        f_store(out, f_mul(f_load(gate), right));
    } else if (to->target == ADD) {
        f_store(out, f_add(f_load(out), left));
        f_store(out + 16, f_add(f_load(out + 16), right));
    } else if (output + PANEL <= to->limit) {
        f_store(out, left);
        f_store(out + 16, right);
    } else {
        float both[PANEL];
        f_store(both, left);
        f_store(both + 16, right);
        memcpy(out, both, sizeof(float) * (size_t)(to->limit - output));
    }
}

#endif
