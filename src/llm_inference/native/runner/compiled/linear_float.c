/* Products with matrices of floats, a tile of up to twelve tokens and 32 outputs at a time.
 *
 * A panel is [input][32 outputs]: it is read in a straight line, and two vectors of weights serve all tokens of the tile,
 * whose values are broadcast from memory. Sums run over the inputs in order, whatever the tile: a token's result does not
 * depend on its company.
 */
#include "linear_float.h"

#include "finish.h"
#include "simd.h"

/* Of activations that stay in the second cache of a core while panels pass by, beside a panel. */
#define BYTES_AT_ONCE (512 * 1024)
#define AHEAD_BYTES 8192

static size_t panel_floats(const llm_matrix *matrix) { return (size_t)matrix->ins * PANEL; }

static const float *panel_at(const llm_matrix *matrix, int32_t panel) {
    return (const float *)(const void *)matrix->panels + (size_t)panel * panel_floats(matrix);
}

int32_t float_lanes(int32_t num_tokens) {
    const int32_t num_tiles = (num_tokens + FLOAT_TILE - 1) / FLOAT_TILE;
    return num_tiles ? (num_tokens + num_tiles - 1) / num_tiles : 1;
}

int32_t float_tokens_at_once(const llm_matrix *matrix, int32_t lanes) {
    const int32_t tokens = BYTES_AT_ONCE / (int32_t)sizeof(float) / matrix->ins / lanes * lanes;
    return tokens > lanes ? tokens : lanes;
}

void put_float_row(const float *x, int32_t count, const activations_t *activations, int32_t token) {
    const int32_t lanes = activations->lanes;
    float *to = activations->floats + (ptrdiff_t)(token / lanes) * lanes * activations->width + token % lanes;
    for (int32_t i = 0; i < count; i++) to[(ptrdiff_t)i * lanes] = x[i];
}

void read_float_row(const llm_matrix *matrix, int32_t row, float *out) {
    const float *panel = panel_at(matrix, row / PANEL) + row % PANEL;
    for (int32_t i = 0; i < matrix->ins; i++) out[i] = panel[(ptrdiff_t)i * PANEL];
}

/* What is asked for while a tile is computed: `step` bytes, 64 or 128, for each of the first `count` inputs. A single tile
 * asks for what it will come to itself; of several each asks for a part of the panel behind this one, since what is read
 * once and used several times is too slow a stream for the machine to foresee. */
typedef struct {
    const uint8_t *at;
    int32_t step, count;
} ahead_t;

static ahead_t ahead_of(const llm_matrix *matrix, int32_t panel, int32_t tile, int32_t num_tiles) {
    const uint8_t *here = (const uint8_t *)panel_at(matrix, panel);
    const int32_t ins = matrix->ins, has_next = panel + 1 < num_panels(matrix);
    if (num_tiles == 1) {
        const int32_t own = ins - AHEAD_BYTES / 128;
        return (ahead_t){here + AHEAD_BYTES, 128, has_next ? ins : own > 0 ? own : 0};
    }
    const int32_t lines = 2 * ins, share = (lines + num_tiles - 1) / num_tiles, begin = tile * share;
    const int32_t count = begin + share <= lines ? share : lines - begin;
    return (ahead_t){here + panel_floats(matrix) * sizeof(float) + 64 * (ptrdiff_t)begin, 64,
                     has_next && count > 0 ? count : 0};
}

INLINE void float_tile(const int tokens, const llm_matrix *matrix, int32_t panel, const activations_t *activations,
                       int32_t first, ahead_t ahead, const destination_t *to) {
    const int32_t lanes = activations->lanes, ins = matrix->ins, num_ahead = ahead.count;
    const float *weights = panel_at(matrix, panel);
    const float *x = activations->floats + (ptrdiff_t)(first / lanes) * lanes * activations->width;
    f32x16 y[FLOAT_TILE][2];
    for (int t = 0; t < tokens; t++) y[t][0] = y[t][1] = f_set(0.0f);
    for (int32_t i = 0; i < ins; i++, weights += PANEL, x += lanes) {
        if (i < num_ahead) {
            prefetch(ahead.at + (ptrdiff_t)i * ahead.step);
            if (ahead.step > 64) prefetch(ahead.at + (ptrdiff_t)i * ahead.step + 64);
        }
        const f32x16 left = f_load(weights), right = f_load(weights + 16);
        for (int t = 0; t < tokens; t++) {
            const f32x16 value = f_set(x[t]);
            y[t][0] = f_fma(value, left, y[t][0]);
            y[t][1] = f_fma(value, right, y[t][1]);
        }
    }
    for (int t = 0; t < tokens; t++) finish(matrix, to, first + t, panel * PANEL, y[t][0], y[t][1]);
}

#define TILE_CASE(n) \
    case n: float_tile(n, matrix, panel, activations, first, ahead, to); break;

static void any_float_tile(int32_t tokens, const llm_matrix *matrix, int32_t panel, const activations_t *activations,
                           int32_t first, ahead_t ahead, const destination_t *to) {
    switch (tokens) {
    TILE_CASE(1)
    TILE_CASE(2)
    TILE_CASE(3)
    TILE_CASE(4)
#if FLOAT_TILE == 12
    TILE_CASE(5)
    TILE_CASE(6)
    TILE_CASE(7)
    TILE_CASE(8)
    TILE_CASE(9)
    TILE_CASE(10)
    TILE_CASE(11)
    TILE_CASE(12)
#endif
    }
}

void multiply_float_panels(const llm_matrix *matrix, const activations_t *activations, int32_t first_token,
                           int32_t num_tokens, int32_t first, int32_t last, const destination_t *to) {
    const int32_t lanes = activations->lanes, num_tiles = (num_tokens + lanes - 1) / lanes;
    for (int32_t panel = first; panel < last; panel++)
        for (int32_t tile = 0; tile < num_tiles; tile++) {
            const int32_t left = num_tokens - tile * lanes;
            any_float_tile(left < lanes ? left : lanes, matrix, panel, activations, first_token + tile * lanes,
                           ahead_of(matrix, panel, tile, num_tiles), to);
        }
}
