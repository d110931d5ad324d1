/* Sixteen lanes of float or int32 and the few operations that the kernels are made of.
 *
 * AVX-512 by its instructions; elsewhere by the compiler's vectors of 64 bytes, which it takes apart as the machine
 * needs it. Only `dot4` has more variants: everything hangs on it.
 */
#ifndef LLM_SIMD_H
#define LLM_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

typedef __m512 f32x16;
typedef __m512i i32x16;
typedef __m512i u8x64;

INLINE f32x16 f_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void f_store(float *p, f32x16 x) { _mm512_storeu_ps(p, x); }
INLINE f32x16 f_set(float x) { return _mm512_set1_ps(x); }
INLINE f32x16 f_add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
INLINE f32x16 f_sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
INLINE f32x16 f_mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
INLINE f32x16 f_div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
INLINE f32x16 f_fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE f32x16 f_max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
INLINE f32x16 f_min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
INLINE f32x16 f_abs(f32x16 a) { return _mm512_abs_ps(a); }
INLINE f32x16 f_round(f32x16 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE f32x16 f_from_int(i32x16 a) { return _mm512_cvtepi32_ps(a); }
INLINE i32x16 f_to_int(f32x16 a) { return _mm512_cvtps_epi32(a); } /* to nearest, ties to even */
INLINE float f_sum(f32x16 a) { return _mm512_reduce_add_ps(a); }
INLINE float f_largest(f32x16 a) { return _mm512_reduce_max_ps(a); }
/* The largest absolute value of both: as whole numbers, whose order is the same, since NaN is the largest there. */
INLINE float f_largest_size(f32x16 a, f32x16 b) {
    const __m512i size = _mm512_set1_epi32(INT32_MAX);
    __m512i sizes = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), size),
                                     _mm512_and_si512(_mm512_castps_si512(b), size));
    int32_t most = _mm512_reduce_max_epi32(sizes);
    float largest;
    memcpy(&largest, &most, 4);
    return largest;
}
INLINE f32x16 f_from_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
/* a * 2^n for whole n in float. */
INLINE f32x16 f_scale(f32x16 a, f32x16 n) { return _mm512_scalef_ps(a, n); }

/* Lanes from .. to - 1 of a, `other` elsewhere. Any numbers. */
INLINE f32x16 f_keep(f32x16 a, int from, int to, f32x16 other) {
    from = from < 0 ? 0 : from > 16 ? 16 : from;
    to = to < 0 ? 0 : to > 16 ? 16 : to;
    return _mm512_mask_blend_ps((__mmask16)(((1u << to) - 1) & ~((1u << from) - 1)), other, a);
}

INLINE i32x16 i_load(const int32_t *p) { return _mm512_loadu_si512(p); }
INLINE i32x16 i_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE i32x16 i_add(i32x16 a, i32x16 b) { return _mm512_add_epi32(a, b); }
INLINE i32x16 i_sub(i32x16 a, i32x16 b) { return _mm512_sub_epi32(a, b); }
INLINE i32x16 i_shift_left_7(i32x16 a) { return _mm512_slli_epi32(a, 7); }
INLINE i32x16 i_shift_right_7(i32x16 a) { return _mm512_srai_epi32(a, 7); }
INLINE int32_t i_sum(i32x16 a) { return _mm512_reduce_add_epi32(a); }
/* The low byte of each lane. */
INLINE void i_store_bytes(void *p, i32x16 a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }

INLINE u8x64 u_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE u8x64 u_low_nibbles(u8x64 a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE u8x64 u_high_nibbles(u8x64 a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
INLINE void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* acc[lane] + sum over i of bytes[4 * lane + i] (unsigned) * quad[i] (signed), exactly. */
INLINE i32x16 dot4(i32x16 acc, u8x64 bytes, const int8_t *quad) {
    int32_t all;
    memcpy(&all, quad, 4);
    __m512i a = _mm512_set1_epi32(all);
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(bytes), "v"(a));
    return acc;
#else
    __m512i even = _mm512_madd_epi16(_mm512_and_si512(bytes, _mm512_set1_epi16(255)),
                                     _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(bytes, 8), _mm512_srai_epi16(a, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
#endif
}

#else /* any machine */

#pragma GCC diagnostic ignored "-Wpsabi" /* every function here is inlined */

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));

#define EACH_LANE for (int lane = 0; lane < 16; lane++)

INLINE f32x16 f_load(const float *p) { f32x16 x; memcpy(&x, p, 64); return x; }
INLINE void f_store(float *p, f32x16 x) { memcpy(p, &x, 64); }
INLINE f32x16 f_set(float x) { return x - (f32x16){0}; }
INLINE f32x16 f_add(f32x16 a, f32x16 b) { return a + b; }
INLINE f32x16 f_sub(f32x16 a, f32x16 b) { return a - b; }
INLINE f32x16 f_mul(f32x16 a, f32x16 b) { return a * b; }
INLINE f32x16 f_div(f32x16 a, f32x16 b) { return a / b; }
INLINE f32x16 f_fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FMA__) /* by name: no compiler may join other products with sums, see build.py */
    __m256 *sums = (__m256 *)&c;
    const __m256 *factors = (const __m256 *)&a, *others = (const __m256 *)&b;
    sums[0] = _mm256_fmadd_ps(factors[0], others[0], sums[0]);
    sums[1] = _mm256_fmadd_ps(factors[1], others[1], sums[1]);
    return c;
#else
    return a * b + c;
#endif
}
INLINE f32x16 f_max(f32x16 a, f32x16 b) { EACH_LANE a[lane] = a[lane] > b[lane] ? a[lane] : b[lane]; return a; }
INLINE f32x16 f_min(f32x16 a, f32x16 b) { EACH_LANE a[lane] = a[lane] < b[lane] ? a[lane] : b[lane]; return a; }
INLINE f32x16 f_abs(f32x16 a) { EACH_LANE a[lane] = fabsf(a[lane]); return a; }
INLINE f32x16 f_round(f32x16 a) { EACH_LANE a[lane] = rintf(a[lane]); return a; }
INLINE f32x16 f_from_int(i32x16 a) { f32x16 x; EACH_LANE x[lane] = (float)a[lane]; return x; }
INLINE i32x16 f_to_int(f32x16 a) { i32x16 x; EACH_LANE x[lane] = (int32_t)rintf(a[lane]); return x; }
INLINE float f_sum(f32x16 a) { float sum = 0; EACH_LANE sum += a[lane]; return sum; }
INLINE float f_largest(f32x16 a) { float most = a[0]; EACH_LANE most = a[lane] > most ? a[lane] : most; return most; }
INLINE float f_largest_size(f32x16 a, f32x16 b) {
    i32x16 sizes, others;
    memcpy(&sizes, &a, 64);
    memcpy(&others, &b, 64);
    sizes &= INT32_MAX;
    others &= INT32_MAX;
    int32_t most = 0;
    EACH_LANE sizes[lane] = sizes[lane] > others[lane] ? sizes[lane] : others[lane];
    EACH_LANE most = sizes[lane] > most ? sizes[lane] : most;
    float largest;
    memcpy(&largest, &most, 4);
    return largest;
}
INLINE f32x16 f_scale(f32x16 a, f32x16 n) {
    i32x16 bits = (f_to_int(n) + 127) << 23;
    f32x16 power;
    memcpy(&power, &bits, 64);
    return a * power;
}
INLINE f32x16 f_keep(f32x16 a, int from, int to, f32x16 other) {
    EACH_LANE a[lane] = lane >= from && lane < to ? a[lane] : other[lane];
    return a;
}
INLINE f32x16 f_from_half(const uint16_t *p) {
#if defined(__F16C__)
    f32x16 x;
    __m256 low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)));
    memcpy(&x, &low, 32);
    memcpy((char *)&x + 32, &high, 32);
    return x;
#else
    f32x16 x;
    EACH_LANE {
        uint32_t half = p[lane], sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
        if (rest < 0x400u) { /* zero and subnormal numbers */
            x[lane] = (sign ? -1.0f : 1.0f) * (float)rest * 0x1p-24f;
        } else {
            /* What is infinite or no number has the largest exponent in both. */
            uint32_t more = rest < 0x7c00u ? 127u - 15u : 255u - 31u;
            uint32_t bits = sign | ((rest << 13) + (more << 23));
            memcpy((char *)&x + 4 * lane, &bits, 4);
        }
    }
    return x;
#endif
}

INLINE i32x16 i_load(const int32_t *p) { i32x16 x; memcpy(&x, p, 64); return x; }
INLINE i32x16 i_set(int32_t x) { return x - (i32x16){0}; }
INLINE i32x16 i_add(i32x16 a, i32x16 b) { return a + b; }
INLINE i32x16 i_sub(i32x16 a, i32x16 b) { return a - b; }
INLINE i32x16 i_shift_left_7(i32x16 a) { return a << 7; }
INLINE i32x16 i_shift_right_7(i32x16 a) { return a >> 7; }
INLINE int32_t i_sum(i32x16 a) { int32_t sum = 0; EACH_LANE sum += a[lane]; return sum; }
INLINE void i_store_bytes(void *p, i32x16 a) { EACH_LANE ((int8_t *)p)[lane] = (int8_t)a[lane]; }
INLINE u8x64 u_load(const void *p) { u8x64 x; memcpy(&x, p, 64); return x; }
INLINE u8x64 u_low_nibbles(u8x64 a) { return a & 15; }
INLINE u8x64 u_high_nibbles(u8x64 a) { return a >> 4; }
INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }

INLINE i32x16 dot4(i32x16 acc, u8x64 bytes, const int8_t *quad) {
#if defined(__AVX2__)
    int32_t all;
    memcpy(&all, quad, 4);
    __m256i a = _mm256_set1_epi32(all), parts[2], sums[2];
    memcpy(parts, &bytes, 64);
    memcpy(sums, &acc, 64);
    for (int part = 0; part < 2; part++) {
#if defined(__AVXVNNI__)
        sums[part] = _mm256_dpbusd_avx_epi32(sums[part], parts[part], a);
#else
        /* In 16 bits, since the instruction for bytes saturates. */
        __m256i even = _mm256_madd_epi16(_mm256_and_si256(parts[part], _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8));
        __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(parts[part], 8), _mm256_srai_epi16(a, 8));
        sums[part] = _mm256_add_epi32(sums[part], _mm256_add_epi32(even, odd));
#endif
    }
    memcpy(&acc, sums, 64);
    return acc;
#else
    EACH_LANE {
        int32_t sum = 0;
        for (int i = 0; i < 4; i++) sum += (int32_t)bytes[4 * lane + i] * quad[i];
        acc[lane] += sum;
    }
    return acc;
#endif
}

#endif

/* e^x. Relative error about 1e-7; outside [-87, 88] as at its ends. exp(0) is 1 exactly. */
INLINE f32x16 f_exp(f32x16 x) {
    x = f_min(f_max(x, f_set(-87.0f)), f_set(88.0f));
    f32x16 n = f_round(f_mul(x, f_set(1.44269504f)));
    f32x16 r = f_fma(n, f_set(-0.693145752f), x); /* ln 2 in two parts */
    r = f_fma(n, f_set(-1.42860677e-6f), r);
    f32x16 p = f_set(1.0f / 5040);
    p = f_fma(p, r, f_set(1.0f / 720));
    p = f_fma(p, r, f_set(1.0f / 120));
    p = f_fma(p, r, f_set(1.0f / 24));
    p = f_fma(p, r, f_set(1.0f / 6));
    p = f_fma(p, r, f_set(0.5f));
    p = f_fma(p, r, f_set(1.0f));
    p = f_fma(p, r, f_set(1.0f));
    return f_scale(p, n);
}

#endif
