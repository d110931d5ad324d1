/* Products with packed matrices, a tile of a few tokens and 32 outputs at a time.
 *
 * A panel holds 32 outputs, group after group of inputs; weights are read once, in a straight line:
 *
 *   8 bits, 64 inputs   16 quads of inputs x [outputs 0-15 | 16-31] x 4 bytes, weight + 128, then 32 scales 2112 bytes
 *   4 bits, 32 inputs   4 pairs of quads x [outputs 0-15 | 16-31] x 4 bytes, the first quad in the low half of each
 *                       byte and the second in the high one, then 32 scales and 32 minima                    640 bytes
 *
 * Scales and minima are in half precision. One `dot4` adds four products to each of sixteen outputs; it takes unsigned
 * weights, so that sums in 8 bits begin at minus what the 128 will have added.
 */
#include "linear.h"

#include <float.h>
#include <math.h>

#include "finish.h"
#include "linear_float.h"
#include "simd.h"

#define GROUP_8_BYTES (GROUP_8 * PANEL + 2 * PANEL)
#define GROUP_4_BYTES (GROUP_4 * PANEL / 2 + 4 * PANEL)

#define AHEAD_BYTES 4096

/* Tokens whose rounded values stay in the cache of a core while panels pass by. */
#define TOKENS_AT_ONCE 192

/* Tokens of a tile: six sums for each must stay in registers. */
#if defined(__AVX512F__)
#define MAX_TILE 4
#else
#define MAX_TILE 2
#endif

static int32_t num_groups(const llm_matrix *matrix) {
    int32_t group = GROUP_OF(matrix->bits);
    return (matrix->ins + group - 1) / group;
}

static size_t panel_bytes(const llm_matrix *matrix) {
    return (size_t)num_groups(matrix) * (matrix->bits == 8 ? GROUP_8_BYTES : GROUP_4_BYTES);
}

int32_t num_panels(const llm_matrix *matrix) { return (matrix->outs + PANEL - 1) / PANEL; }

int32_t tokens_at_once(const llm_matrix *matrix, const activations_t *activations) {
    return matrix->bits == FLOAT_BITS ? float_tokens_at_once(matrix, activations->lanes) : TOKENS_AT_ONCE;
}

/* Adds the products of the 32 inputs at `values` to those that the sums begin with. */
INLINE void dot_8_half(const int tokens, const uint8_t *quads, const int8_t *values, ptrdiff_t width,
                       i32x16 (*sums)[2]) {
    for (int quad = 0; quad < ROUNDED_GROUP / 4; quad++) {
        u8x64 left = u_load(quads + 128 * quad), right = u_load(quads + 128 * quad + 64);
        for (int t = 0; t < tokens; t++) {
            const int8_t *four = values + t * width + 4 * quad;
            sums[t][0] = dot4(sums[t][0], left, four);
            sums[t][1] = dot4(sums[t][1], right, four);
        }
    }
}

/* What is to be asked for while a tile is computed: `lines` of 64 bytes for each group. With several tiles it is the
 * panel behind this one, a part for each: what is read once and used several times is too slow a stream for the machine
 * to foresee. With a single tile it is what the tile itself will come to. */
typedef struct {
    const uint8_t *at;
    int lines;
} ahead_t;

INLINE void fetch_ahead(ahead_t *ahead) {
    for (int i = 0; i < ahead->lines; i++, ahead->at += 64) prefetch(ahead->at);
}

INLINE void dot_8(const int tokens, const uint8_t *panel, int32_t groups, const activations_t *x, ptrdiff_t first,
                  ahead_t ahead, f32x16 (*y)[2]) {
    const int8_t *values = x->values + first * x->width;
    const ptrdiff_t step = x->width / ROUNDED_GROUP;
    const float *scales = x->scales + first * step;
    const int32_t *offsets = x->offsets + first * step;
    for (int32_t group = 0; group < groups; group++) {
        fetch_ahead(&ahead);
        /* Two groups of activations share the weights' scale: their sums are joined before it is multiplied with. */
        i32x16 sums[MAX_TILE][2];
        f32x16 joined[MAX_TILE][2];
        for (int t = 0; t < tokens; t++) sums[t][0] = sums[t][1] = i_set(offsets[t * step + 2 * group]);
        dot_8_half(tokens, panel, values, x->width, sums);
        for (int t = 0; t < tokens; t++) {
            f32x16 scale = f_set(scales[t * step + 2 * group]);
            joined[t][0] = f_mul(f_from_int(sums[t][0]), scale);
            joined[t][1] = f_mul(f_from_int(sums[t][1]), scale);
            sums[t][0] = sums[t][1] = i_set(offsets[t * step + 2 * group + 1]);
        }
        dot_8_half(tokens, panel + GROUP_8 / 2 * PANEL, values + GROUP_8 / 2, x->width, sums);
        panel += GROUP_8 * PANEL;
        values += GROUP_8;
        f32x16 left = f_from_half((const uint16_t *)panel), right = f_from_half((const uint16_t *)panel + 16);
        panel += 2 * PANEL;
        for (int t = 0; t < tokens; t++) {
            f32x16 scale = f_set(scales[t * step + 2 * group + 1]);
            y[t][0] = f_fma(f_fma(f_from_int(sums[t][0]), scale, joined[t][0]), left, y[t][0]);
            y[t][1] = f_fma(f_fma(f_from_int(sums[t][1]), scale, joined[t][1]), right, y[t][1]);
        }
    }
}

INLINE void dot_4(const int tokens, const uint8_t *panel, int32_t groups, const activations_t *x, ptrdiff_t first,
                  ahead_t ahead, f32x16 (*y)[2]) {
    const int8_t *values = x->values + first * x->width;
    const ptrdiff_t step = x->width / ROUNDED_GROUP;
    const float *scales = x->scales + first * step, *weighted = x->sums + first * step;
    for (int32_t group = 0; group < groups; group++) {
        fetch_ahead(&ahead);
        i32x16 sums[MAX_TILE][2];
        for (int t = 0; t < tokens; t++) sums[t][0] = sums[t][1] = i_set(0);
        for (int quad = 0; quad < GROUP_4 / 4; quad += 2) {
            u8x64 left = u_load(panel), right = u_load(panel + 64);
            u8x64 left_high = u_high_nibbles(left), right_high = u_high_nibbles(right);
            left = u_low_nibbles(left), right = u_low_nibbles(right);
            panel += 128;
            for (int t = 0; t < tokens; t++) {
                const int8_t *four = values + t * x->width + 4 * quad;
                sums[t][0] = dot4(sums[t][0], left, four);
                sums[t][1] = dot4(sums[t][1], right, four);
                sums[t][0] = dot4(sums[t][0], left_high, four + 4);
                sums[t][1] = dot4(sums[t][1], right_high, four + 4);
            }
        }
        values += GROUP_4;
        const uint16_t *half = (const uint16_t *)panel;
        f32x16 left = f_from_half(half), right = f_from_half(half + 16);
        f32x16 least_left = f_from_half(half + 32), least_right = f_from_half(half + 48);
        panel += 4 * PANEL;
        for (int t = 0; t < tokens; t++) {
            f32x16 scale = f_set(scales[t * step + group]), sum = f_set(weighted[t * step + group]);
            y[t][0] = f_fma(least_left, sum, f_fma(f_from_int(sums[t][0]), f_mul(left, scale), y[t][0]));
            y[t][1] = f_fma(least_right, sum, f_fma(f_from_int(sums[t][1]), f_mul(right, scale), y[t][1]));
        }
    }
}

INLINE f32x16 silu(f32x16 x) { return f_div(x, f_add(f_set(1.0f), f_exp(f_sub(f_set(0.0f), x)))); }

void activate(float *x, int32_t count, int32_t activation) {
    if (activation == LLM_SILU) {
        for (int32_t i = 0; i < count; i += 16) f_store(x + i, silu(f_load(x + i)));
    } else if (activation == LLM_RELU) {
        for (int32_t i = 0; i < count; i++) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
    } else if (activation == LLM_GELU) {
        for (int32_t i = 0; i < count; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
    } else {
        for (int32_t i = 0; i < count; i++) {
            float inner = 0.79788456f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
            x[i] = 0.5f * x[i] * (1.0f + tanhf(inner));
        }
    }
}

INLINE void tile(const int tokens, const int bits, const llm_matrix *matrix, int32_t panel, const activations_t *x,
                 ptrdiff_t first, ahead_t ahead, const destination_t *to) {
    f32x16 y[MAX_TILE][2];
    for (int t = 0; t < tokens; t++) y[t][0] = y[t][1] = f_set(0.0f);
    const uint8_t *data = matrix->panels + (size_t)panel * panel_bytes(matrix);
    if (bits == 8) dot_8(tokens, data, num_groups(matrix), x, first, ahead, y);
    else dot_4(tokens, data, num_groups(matrix), x, first, ahead, y);
    for (int t = 0; t < tokens; t++) finish(matrix, to, first + t, panel * PANEL, y[t][0], y[t][1]);
}

#define TILES(bits) \
    static void tile_##bits(int tokens, const llm_matrix *matrix, int32_t panel, const activations_t *x, \
                            ptrdiff_t first, ahead_t ahead, const destination_t *to) { \
        switch (tokens) { \
        case 1: tile(1, bits, matrix, panel, x, first, ahead, to); break; \
        case 2: tile(2, bits, matrix, panel, x, first, ahead, to); break; \
        TILES_OF_MORE(bits) \
        } \
    }
#if MAX_TILE == 4
#define TILES_OF_MORE(bits) \
        case 3: tile(3, bits, matrix, panel, x, first, ahead, to); break; \
        case 4: tile(4, bits, matrix, panel, x, first, ahead, to); break;
#else
#define TILES_OF_MORE(bits)
#endif
TILES(8)
TILES(4)

void multiply_panels(const llm_matrix *matrix, const activations_t *rounded, int32_t first_token, int32_t num_tokens,
                     int32_t first, int32_t last, const destination_t *to) {
    if (matrix->bits == FLOAT_BITS) {
        multiply_float_panels(matrix, rounded, first_token, num_tokens, first, last, to);
        return;
    }
    const int32_t num_tiles = (num_tokens + MAX_TILE - 1) / MAX_TILE, groups = num_groups(matrix);
    const int32_t group_lines = (matrix->bits == 8 ? GROUP_8_BYTES : GROUP_4_BYTES) / 64;
    const int lines = (group_lines + num_tiles - 1) / num_tiles;
    for (int32_t panel = first; panel < last; panel++) {
        int32_t token = first_token, end = first_token + num_tokens;
        ahead_t ahead = {matrix->panels + (size_t)(panel + 1) * panel_bytes(matrix), lines};
        if (num_tiles == 1) ahead.at = matrix->panels + (size_t)panel * panel_bytes(matrix) + AHEAD_BYTES;
        if (panel + 1 == num_panels(matrix)) ahead.lines = 0;
        for (int32_t left = num_tiles; left > 0; left--) { /* of about the same size: a tile of one token costs most */
            int32_t tokens = (end - token + left - 1) / left;
            if (matrix->bits == 8) tile_8(tokens, matrix, panel, rounded, token, ahead, to);
            else tile_4(tokens, matrix, panel, rounded, token, ahead, to);
            token += tokens;
            ahead.at += 64 * groups * ahead.lines;
            if (num_tiles - left + 1 >= group_lines) ahead.lines = 0; /* all of it has been asked for */
        }
    }
}

void round_row(const float *x, int32_t count, const activations_t *rounded, int32_t token) {
    if (rounded->floats != NULL) {
        put_float_row(x, count, rounded, token);
        return;
    }
    int8_t *values = rounded->values + token * rounded->width;
    const ptrdiff_t at = token * (rounded->width / ROUNDED_GROUP);
    for (int32_t begin = 0, group = 0; begin < count; begin += ROUNDED_GROUP, group++) {
        f32x16 left = f_load(x + begin), right = f_load(x + begin + 16);
        const float largest = f_largest_size(left, right);
        if (!(largest <= FLT_MAX)) { /* no answer that looks like one: all that it is multiplied with is NaN */
            memset(values + begin, 0, ROUNDED_GROUP);
            rounded->scales[at + group] = rounded->sums[at + group] = NAN;
            rounded->offsets[at + group] = 0;
            continue;
        }
        const f32x16 inverse = f_set(largest > 1e-30f ? 127.0f / largest : 0.0f);
        i32x16 low = f_to_int(f_mul(left, inverse)), high = f_to_int(f_mul(right, inverse));
        i_store_bytes(values + begin, low);
        i_store_bytes(values + begin + 16, high);
        const int32_t sum = i_sum(i_add(low, high));
        const float scale = largest / 127.0f;
        rounded->scales[at + group] = scale;
        rounded->offsets[at + group] = -128 * sum;
        rounded->sums[at + group] = scale * (float)sum;
    }
}

void read_row(const llm_matrix *matrix, int32_t row, float *out) {
    if (matrix->bits == FLOAT_BITS) {
        read_float_row(matrix, row, out);
        return;
    }
    const int32_t lane = row % PANEL, groups = num_groups(matrix);
    const uint8_t *panel = matrix->panels + (size_t)(row / PANEL) * panel_bytes(matrix);
    /* Of each 128 bytes: the four of this row. */
    const ptrdiff_t four = 64 * (lane / 16) + 4 * (lane % 16);
    float halves[PANEL], least[PANEL];
    for (int32_t group = 0; group < groups; group++) {
        const int32_t size = GROUP_OF(matrix->bits);
        const uint8_t *behind = panel + (matrix->bits == 8 ? GROUP_8 * PANEL : GROUP_4 * PANEL / 2);
        const int32_t aligned = lane / 16 * 16;
        f_store(halves + aligned, f_from_half((const uint16_t *)behind + aligned));
        const float scale = halves[lane];
        float values[GROUP_8];
        if (matrix->bits == 8) {
            for (int32_t i = 0; i < size; i++) values[i] = scale * (float)(panel[i / 4 * 128 + four + i % 4] - 128);
        } else {
            f_store(least + aligned, f_from_half((const uint16_t *)behind + PANEL + aligned));
            for (int32_t i = 0; i < size; i++) {
                uint8_t both = panel[i / 8 * 128 + four + i % 4];
                values[i] = least[lane] + scale * (float)(i % 8 < 4 ? both & 15 : both >> 4);
            }
        }
        const int32_t left = matrix->ins - group * size;
        memcpy(out + (ptrdiff_t)group * size, values, sizeof(float) * (size_t)(left < size ? left : size));
        panel += matrix->bits == 8 ? GROUP_8_BYTES : GROUP_4_BYTES;
    }
}
