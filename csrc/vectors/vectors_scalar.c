/* Canonical reductions in plain C: the truth. See "Canonical scores" in caliber.h. */
#include "../internal.h"

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

static void dot(const float *const rows[CAL_ROWS], const float *query, size_t dimensions,
                double out[CAL_ROWS]) {
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

const cal_vector_ops cal_vectors_scalar = {dot, squared_distance};
