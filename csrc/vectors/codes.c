/* Coding rows and queries; the bounds and their proof are in codes.h. */
#include "codes.h"

#include <string.h>

#define LANES 8

/* x to the nearest integer, ties to even, for |x| < 2^51: adding 1.5 * 2^52 leaves no room for a fraction. */
static inline double nearest(double x) {
    const double shift = 6755399441055744.0;
    const double shifted = x + shift;
    return shifted - shift;
}

static double fold(const double lane[LANES]) {
    const double a = lane[0] + lane[4], b = lane[1] + lane[5], c = lane[2] + lane[6], d = lane[3] + lane[7];
    const double e = a + c, f = b + d;
    return e + f;
}

static float largest(const float *row, size_t dimensions) {
    float most = 0.0F;
    for (size_t i = 0; i < dimensions; i++) {
        const float size = fabsf(row[i]);
        most = size > most ? size : most;
    }
    return most;
}

/* An upper bound of a length whose square was summed with rounding. */
static double enlarged(double squares) { return sqrt(squares) * (1.0 + 1.0 / (1 << 20)) + CAL_CODE_SLACK; }

static void code_row(const float *row, double norm, size_t dimensions, size_t stride, uint8_t *codes, float *scale,
                     float *error) {
    if (norm == 0.0) {
        memset(codes, 128, stride);
        *scale = *error = 0.0F;
        return;
    }
    const double shrink = 1.0 / norm;
    *scale = (float)((double)largest(row, dimensions) * shrink / 127.0);
    const double step = (double)*scale, steps = 1.0 / step;
    double lane[LANES] = {0};
    const size_t whole = dimensions - dimensions % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            const double unit = (double)row[i + j] * shrink;
            const double code = nearest(unit * steps);
            const double left = unit - step * code;
            lane[j] += left * left;
            codes[i + j] = (uint8_t)((int32_t)code + 128);
        }
    }
    for (size_t i = whole; i < dimensions; i++) {
        const double unit = (double)row[i] * shrink;
        const double code = nearest(unit * steps);
        const double left = unit - step * code;
        lane[i - whole] += left * left;
        codes[i] = (uint8_t)((int32_t)code + 128);
    }
    memset(codes + dimensions, 128, stride - dimensions);
    *error = (float)enlarged(fold(lane));
}

int32_t cal_code_rows_f32(const float *rows, const double *norms, size_t count, size_t dimensions, size_t stride,
                          uint8_t *codes, float *scales, float *errors) {
    if (!cal_codes_fit(dimensions) || stride != cal_code_stride(dimensions)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++) {
        code_row(rows + i * dimensions, norms[i], dimensions, stride, codes + i * stride, &scales[i], &errors[i]);
    }
    return CAL_OK;
}

void cal_code_query_f32(const float *query, double norm, size_t dimensions, int8_t *codes, cal_code_query *out) {
    const double shrink = 1.0 / norm;
    double most = 0.0;
    for (size_t i = 0; i < dimensions; i += 2) {
        const double pair = fabs((double)query[i]) + (i + 1 < dimensions ? fabs((double)query[i + 1]) : 0.0);
        most = pair > most ? pair : most;
    }
    /* Of two codes whose unrounded sum is at most 127, the rounded sum is at most 128. */
    const double step = most * shrink / 127.0, steps = 1.0 / step;
    double squares = 0.0;
    int32_t sum = 0;
    for (size_t i = 0; i < dimensions; i++) {
        const double unit = (double)query[i] * shrink;
        const double code = nearest(unit * steps);
        const double left = unit - step * code;
        squares += left * left;
        codes[i] = (int8_t)code;
        sum += (int32_t)code;
    }
    memset(codes + dimensions, 0, cal_code_stride(dimensions) - dimensions);
    out->codes = codes;
    out->scale = step;
    out->error = enlarged(squares);
    out->norm = norm;
    out->offset = 128 * sum;
}
