/* Sums of products of floats in the vectors that a machine has: what linear_float.c and attention_float.c are made of.
 *
 * `rows` of numbers a, each times `vectors` vectors of b: sums[row][vector] += a[row, i] * b[i, vector]  for i in order
 *
 * The vectors of b serve all rows, and numbers of a are broadcast from memory. Sums stay in registers if there are at
 * most MAX_SUMS of them. A row's sums do not depend on how many rows there are.
 */
#ifndef LLM_PRODUCT_H
#define LLM_PRODUCT_H

#include <stddef.h>

#include "simd.h"

#if defined(__AVX512F__)
#define WIDTH 16 /* floats of a vector */
#define MAX_SUMS 24
typedef __m512 vector_t;
INLINE vector_t v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vector_t x) { _mm512_storeu_ps(p, x); }
INLINE vector_t v_set(float x) { return _mm512_set1_ps(x); }
INLINE vector_t v_fma(vector_t a, vector_t b, vector_t c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
#define WIDTH 8
#define MAX_SUMS 12
typedef __m256 vector_t;
INLINE vector_t v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vector_t x) { _mm256_storeu_ps(p, x); }
INLINE vector_t v_set(float x) { return _mm256_set1_ps(x); }
INLINE vector_t v_fma(vector_t a, vector_t b, vector_t c) { return _mm256_fmadd_ps(a, b, c); }
#else
#define WIDTH 4
#define MAX_SUMS 12
typedef float vector_t __attribute__((vector_size(16)));
INLINE vector_t v_load(const float *p) { vector_t x; memcpy(&x, p, 16); return x; }
INLINE void v_store(float *p, vector_t x) { memcpy(p, &x, 16); }
INLINE vector_t v_set(float x) { return x - (vector_t){0}; }
INLINE vector_t v_fma(vector_t a, vector_t b, vector_t c) { return a * b + c; }
#endif

/* Rows with two vectors each. */
#define MAX_ROWS (MAX_SUMS / 2)

/* Memory that is asked for while something else is computed, `lines` lines of 64 bytes at a time. What lies anywhere
 * and is short, or is read once and used several times, the machine does not foresee; asked for at once it would hold
 * up what asks. */
typedef struct {
    const uint8_t *at, *end;
    int lines;
} ahead_t;

INLINE void fetch_ahead(ahead_t *ahead) {
    for (int i = 0; i < ahead->lines && ahead->at < ahead->end; i++, ahead->at += 64) prefetch(ahead->at);
}

/* The first `lanes` of a vector; what lies behind them may be no memory of ours. */
INLINE vector_t v_load_part(const float *p, int lanes) {
    if (lanes == WIDTH) return v_load(p);
    float part[WIDTH] = {0};
    memcpy(part, p, sizeof(float) * (size_t)lanes);
    return v_load(part);
}

/* The last vector has `lanes` numbers. */
INLINE void add_products(const int rows, const int vectors, const int lanes, int32_t count, const float *a,
                         ptrdiff_t a_row, ptrdiff_t a_step, const float *b, ptrdiff_t b_step, ahead_t *ahead,
                         vector_t (*sums)[4]) {
    for (int32_t i = 0; i < count; i++, a += a_step, b += b_step) {
        fetch_ahead(ahead);
        vector_t some[4];
        for (int v = 0; v < vectors; v++) some[v] = v_load_part(b + WIDTH * v, v + 1 < vectors ? WIDTH : lanes);
        for (int r = 0; r < rows; r++) {
            const vector_t number = v_set(a[r * a_row]);
            for (int v = 0; v < vectors; v++) sums[r][v] = v_fma(number, some[v], sums[r][v]);
        }
    }
}

#define CASE_OF(n, call) \
    case n: call(n); break;
#if MAX_ROWS == 12
#define CASES_OF(call) \
    CASE_OF(4, call) CASE_OF(5, call) CASE_OF(6, call) CASE_OF(7, call) CASE_OF(8, call) CASE_OF(9, call) \
    CASE_OF(10, call) CASE_OF(11, call)
#else
#define CASES_OF(call) CASE_OF(4, call) CASE_OF(5, call)
#endif
/* `call` with a number of rows that the compiler knows: `rows`, at most MAX_ROWS. */
#define WITH_ROWS(rows, call) \
    switch (rows) { \
    CASE_OF(1, call) CASE_OF(2, call) CASE_OF(3, call) CASES_OF(call) \
    default: call(MAX_ROWS); break; \
    }

#endif
