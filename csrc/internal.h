/* Shared by the files of csrc/; not part of the ABI. */
#ifndef CALIBER_INTERNAL_H
#define CALIBER_INTERNAL_H

#include "caliber.h"

/* Rows scored at once: the query is widened once for all of them, and four chains hide the adders' latency. */
#define CAL_ROWS 4

/* out[r] = canonical dot product, or canonical sum of squared differences, of rows[r] and query. */
typedef void (*cal_reduce)(const float *const rows[CAL_ROWS], const float *query, size_t dimensions,
                           double out[CAL_ROWS]);

typedef struct {
    cal_reduce dot;
    cal_reduce squared_distance;
} cal_vector_ops;

extern const cal_vector_ops cal_vectors_scalar;

/* Consumes blocks of 64 bytes into the eight state words. */
typedef void (*cal_sha256_compress)(uint32_t state[8], const uint8_t *data, size_t blocks);

void cal_sha256_compress_scalar(uint32_t state[8], const uint8_t *data, size_t blocks);

#if defined(CALIBER_X86)
extern const cal_vector_ops cal_vectors_avx2;
void cal_sha256_compress_shani(uint32_t state[8], const uint8_t *data, size_t blocks);
#endif

extern const uint32_t cal_sha256_constants[64];

/* dispatch.c: NULL if features asks for what this machine or build lacks. */
const cal_vector_ops *cal_choose_vectors(uint32_t features);
cal_sha256_compress cal_choose_sha256(uint32_t features);

#endif
