/* Products with matrices of floats, a tile of up to MAX_ROWS tokens and a panel of 32 outputs at a time.
 *
 * A panel is [input][32 outputs]: it is read in a straight line. Sums run over the inputs in order, whatever the tile:
 * a token's result does not depend on its company.
 */
#include "linear_float.h"

#include "finish.h"
#include "product.h"

/* Of activations that stay in the second cache of a core while panels pass by, beside a panel. */
#define BYTES_AT_ONCE (512 * 1024)
#define AHEAD_BYTES 8192

static size_t panel_floats(const llm_matrix *matrix) { return (size_t)matrix->ins * PANEL; }

static const float *panel_at(const llm_matrix *matrix, int32_t panel) {
    return (const float *)(const void *)matrix->panels + (size_t)panel * panel_floats(matrix);
}

int32_t float_lanes(int32_t num_tokens) {
    const int32_t num_tiles = (num_tokens + MAX_ROWS - 1) / MAX_ROWS;
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

/* A single tile asks for what it will come to itself; of several each asks for a part of the panel behind this one. */
static ahead_t ahead_of(const llm_matrix *matrix, int32_t panel, int32_t tile, int32_t num_tiles) {
    const int32_t has_next = panel + 1 < num_panels(matrix);
    const ptrdiff_t size = (ptrdiff_t)(panel_floats(matrix) * sizeof(float));
    const uint8_t *here = (const uint8_t *)panel_at(matrix, panel), *next = here + size;
    if (num_tiles == 1) return (ahead_t){here + AHEAD_BYTES, has_next ? next + AHEAD_BYTES : next, 2};
    const ptrdiff_t share = ROUND_UP((size + num_tiles - 1) / num_tiles, 64), begin = tile * share;
    const ptrdiff_t end = begin + share < size ? begin + share : size;
    return (ahead_t){next + begin, has_next ? next + end : next, 1};
}

INLINE void float_tile(const int tokens, const llm_matrix *matrix, int32_t panel, const activations_t *activations,
                       int32_t first, ahead_t ahead, const destination_t *to) {
    const int32_t lanes = activations->lanes;
    const float *weights = panel_at(matrix, panel);
    const float *x = activations->floats + (ptrdiff_t)(first / lanes) * lanes * activations->width;
    float y[MAX_ROWS][PANEL];
    for (int32_t from = 0; from < PANEL; from += 2 * WIDTH) {
        vector_t sums[MAX_ROWS][4];
        for (int t = 0; t < tokens; t++) sums[t][0] = sums[t][1] = v_set(0.0f);
        add_products(tokens, 2, WIDTH, matrix->ins, x, 1, lanes, weights + from, PANEL, &ahead, sums);
        for (int t = 0; t < tokens; t++) {
            v_store(y[t] + from, sums[t][0]);
            v_store(y[t] + from + WIDTH, sums[t][1]);
        }
    }
    for (int t = 0; t < tokens; t++) finish(matrix, to, first + t, panel * PANEL, f_load(y[t]), f_load(y[t] + 16));
}

static void any_float_tile(int32_t tokens, const llm_matrix *matrix, int32_t panel, const activations_t *activations,
                           int32_t first, ahead_t ahead, const destination_t *to) {
#define TILE(n) float_tile(n, matrix, panel, activations, first, ahead, to)
    WITH_ROWS(tokens, TILE)
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
