/* SHA-256 of many spans: padding and byte order, over the compression function of one instruction set. */
#include "../internal.h"

#include <string.h>

#define BLOCK 64

static void store_big_endian(uint8_t *p, uint32_t x) {
    p[0] = (uint8_t)(x >> 24);
    p[1] = (uint8_t)(x >> 16);
    p[2] = (uint8_t)(x >> 8);
    p[3] = (uint8_t)x;
}

static void digest(cal_sha256_compress compress, const uint8_t *data, size_t size, uint8_t *out) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const size_t whole = size / BLOCK, rest = size % BLOCK;
    if (whole > 0) {
        compress(state, data, whole);
    }
    /* What is left, 0x80, zeros, and the length in bits: two blocks if the length no longer fits the first. */
    uint8_t tail[2 * BLOCK] = {0};
    const size_t tail_blocks = rest + 1 + 8 <= BLOCK ? 1 : 2;
    if (rest > 0) {
        memcpy(tail, data + whole * BLOCK, rest);
    }
    tail[rest] = 0x80;
    const uint64_t bits = (uint64_t)size * 8;
    store_big_endian(tail + tail_blocks * BLOCK - 8, (uint32_t)(bits >> 32));
    store_big_endian(tail + tail_blocks * BLOCK - 4, (uint32_t)bits);
    compress(state, tail, tail_blocks);
    for (int i = 0; i < 8; i++) {
        store_big_endian(out + 4 * i, state[i]);
    }
}

static int outside(int64_t from, int64_t to, size_t size) {
    return from < 0 || to < from || (uint64_t)to > size;
}

int32_t cal_sha256_spans_i64(uint32_t features, const uint8_t *data, size_t size, const int64_t *offsets,
                             size_t count, uint8_t *out) {
    const cal_sha256_compress compress = cal_choose_sha256(features);
    if (!compress) {
        return CAL_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < count; i++) {
        if (outside(offsets[i], offsets[i + 1], size)) {
            return CAL_E_OFFSETS;
        }
        digest(compress, data + offsets[i], (size_t)(offsets[i + 1] - offsets[i]), out + 32 * i);
    }
    return CAL_OK;
}

int32_t cal_sha256_spans_i32(uint32_t features, const uint8_t *data, size_t size, const int32_t *offsets,
                             size_t count, uint8_t *out) {
    const cal_sha256_compress compress = cal_choose_sha256(features);
    if (!compress) {
        return CAL_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < count; i++) {
        if (outside(offsets[i], offsets[i + 1], size)) {
            return CAL_E_OFFSETS;
        }
        digest(compress, data + offsets[i], (size_t)(offsets[i + 1] - offsets[i]), out + 32 * i);
    }
    return CAL_OK;
}
