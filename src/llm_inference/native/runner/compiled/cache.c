/* Keys and values: how a token is put into a block, in 8 bits rounded, for each head by itself.
 *
 * A tile is a block of 32 tokens of one head:
 *
 *   keys     [head_dim / 4][token][4]             bytes, then 32 scales, then 32 minima, in float32
 *   values   [token / 4][head_dim][4 tokens]      the same
 *
 * so that one `dot4` of keys takes four dimensions of sixteen tokens, and one of values four tokens of sixteen
 * dimensions. The number is minimum + scale * byte. Of floats a tile is
 *
 *   keys     [head_dim][token]
 *   values   [token][head_dim]
 */
#include <math.h>

#include "attention.h"
#include "simd.h"

size_t cache_tile_bytes(int32_t head_dim, int32_t bits) {
    return (size_t)BLOCK * (bits == FLOAT_BITS ? sizeof(float) * (size_t)head_dim : (size_t)(head_dim + 8));
}

/* `bytes` [head_dim], and scale and minimum into the tile. */
static void round_to_bytes(const float *x, int32_t head_dim, float *constants, int32_t offset, uint8_t *bytes) {
    f32x16 lowest = f_set(INFINITY), highest = f_set(-INFINITY);
    for (int32_t i = 0; i < head_dim; i += 16) { /* what lies behind the last belongs to others */
        f32x16 some = f_load(x + i);
        lowest = f_min(lowest, f_keep(some, 0, head_dim - i, f_set(INFINITY)));
        highest = f_max(highest, f_keep(some, 0, head_dim - i, f_set(-INFINITY)));
    }
    const float least = -f_largest(f_sub(f_set(0.0f), lowest)), scale = (f_largest(highest) - least) / 255.0f;
    const f32x16 inverse = f_set(scale > 1e-30f ? 1.0f / scale : 0.0f), end = f_set(255.0f);
    for (int32_t i = 0; i < head_dim; i += 16)
        i_store_bytes(bytes + i, f_to_int(f_min(f_mul(f_sub(f_load(x + i), f_set(least)), inverse), end)));
    constants[offset] = scale;
    constants[BLOCK + offset] = least;
}

void write_key(uint8_t *tile, int32_t head_dim, int32_t bits, int32_t offset, const float *key) {
    if (bits == FLOAT_BITS) {
        float *column = (float *)(void *)tile + offset;
        for (int32_t i = 0; i < head_dim; i++) column[i * BLOCK] = key[i];
        return;
    }
    uint8_t bytes[MAX_HEAD_DIM + 16];
    round_to_bytes(key, head_dim, (float *)(tile + BLOCK * head_dim), offset, bytes);
    for (int32_t i = 0; i < head_dim; i += 4) memcpy(tile + i * BLOCK + 4 * offset, bytes + i, 4);
}

void write_value(uint8_t *tile, int32_t head_dim, int32_t bits, int32_t offset, const float *value) {
    if (bits == FLOAT_BITS) {
        memcpy((float *)(void *)tile + offset * head_dim, value, sizeof(float) * (size_t)head_dim);
        return;
    }
    uint8_t bytes[MAX_HEAD_DIM + 16];
    round_to_bytes(value, head_dim, (float *)(tile + BLOCK * head_dim), offset, bytes);
    uint8_t *row = tile + offset / 4 * 4 * head_dim + offset % 4;
    for (int32_t i = 0; i < head_dim; i++) row[4 * i] = bytes[i];
}

void rotate(float *x, const float *rotation, int32_t head_dim) {
    const int32_t half = head_dim / 2;
    const float *cosine = rotation, *sine = rotation + half;
    for (int32_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}
