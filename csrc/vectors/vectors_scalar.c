/* Canonical reductions in plain C: the truth. See "Canonical scores" in caliber.h. */
#include "codes.h"

#define LANES 8

static double fold(const double lane[LANES]) {
    const double a = lane[0] + lane[4], b = lane[1] + lane[5], c = lane[2] + lane[6], d = lane[3] + lane[7];
    const double e = a + c, f = b + d;
    return e + f;
}

static double dot_one(const float *row, const float *query, size_t dimensions) {
    double lane[LANES] = {0};
    for (size_t i = 0; i < dimensions; i++) {
        lane[i % LANES] += (double)row[i] * (double)query[i];
    }
    return fold(lane);
}

static double squared_distance_one(const float *row, const float *query, size_t dimensions) {
    double lane[LANES] = {0};
    for (size_t i = 0; i < dimensions; i++) {
        const double difference = (double)row[i] - (double)query[i];
        lane[i % LANES] += difference * difference;
    }
    return fold(lane);
}

static void dot(const float *const rows[CAL_ROWS], const float *query, size_t dimensions, double out[CAL_ROWS]) {
    for (size_t r = 0; r < CAL_ROWS; r++) {
        out[r] = dot_one(rows[r], query, dimensions);
    }
}

static void squared_distance(const float *const rows[CAL_ROWS], const float *query, size_t dimensions,
                             double out[CAL_ROWS]) {
    for (size_t r = 0; r < CAL_ROWS; r++) {
        out[r] = squared_distance_one(rows[r], query, dimensions);
    }
}

static void code_dots(const uint8_t *codes, size_t stride, size_t count, const int8_t *query, int32_t *dots) {
    for (size_t i = 0; i < count; i++, codes += stride) {
        int32_t sum = 0;
        for (size_t j = 0; j < stride; j++) {
            sum += (int32_t)codes[j] * (int32_t)query[j];
        }
        dots[i] = sum;
    }
}

uint64_t cal_code_filter_scalar(int32_t metric, const cal_code_query *query, const int32_t *dots, const float *scales,
                                const float *errors, const double *norms, size_t count, double limit) {
    uint64_t passed = 0;
    if (metric == CAL_METRIC_COSINE) {
        const float weight = (float)((1.0 + query->error) / query->scale);
        const float least = (float)((limit - query->error - CAL_FILTER_SLACK) / query->scale);
        for (size_t i = 0; i < count; i++) {
            const float upper = (float)(dots[i] - query->offset) * scales[i] + errors[i] * weight;
            passed |= (uint64_t)!(upper < least) << i;
        }
        return passed;
    }
    const double weight = 1.0 + query->error, constant = query->error + CAL_CODE_SLACK;
    const double square = query->norm * query->norm;
    for (size_t i = 0; i < count; i++) {
        const double cosine = (double)(dots[i] - query->offset) * (double)scales[i] * query->scale +
                              ((double)errors[i] * weight + constant);
        const double product = cosine * norms[i] * query->norm;
        const double squares = (norms[i] * norms[i] + square) * (1.0 - CAL_CODE_SLACK);
        const double upper = metric == CAL_METRIC_L2 ? product + product - squares : product;
        passed |= (uint64_t)!(upper < limit) << i;
    }
    return passed;
}

const cal_vector_ops cal_vectors_scalar = {dot, squared_distance, code_dots, cal_code_filter_scalar};
