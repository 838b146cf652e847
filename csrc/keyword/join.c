/* Joining what the legs of a search found into one score a candidate, and the best of them. */
#include "../heap.h"
#include "caliber.h"

/* What a part says of candidate i, whose row is `row`. */
static double said(const cal_part *part, size_t i, int64_t row) {
    switch (part->how) {
    case CAL_PART_QUOTIENT:
        return part->scores[i] / part->by;
    case CAL_PART_LENT:
        return part->scores[i] / part->by - part->less[i] / part->by;
    case CAL_PART_STRETCHED:
        return i < part->near_count ? ((double)part->near[i] - part->low) / part->by : 0.0;
    case CAL_PART_FLAGGED:
        return part->flags[row] & part->flag ? 1.0 : 0.0;
    default:
        return part->scores[i];
    }
}

/* Adds a part to all scores: the same operations as in `said`, a loop for each kind, so that they run side by side. */
static void add(const cal_part *part, size_t count, const int64_t *rows, double *scores) {
    const double share = part->share, by = part->by, low = part->low;
    const double *const own = part->scores, *const less = part->less;
    switch (part->how) {
    case CAL_PART_QUOTIENT:
        for (size_t i = 0; i < count; i++) {
            scores[i] += share * (own[i] / by);
        }
        break;
    case CAL_PART_LENT:
        for (size_t i = 0; i < count; i++) {
            scores[i] += share * (own[i] / by - less[i] / by);
        }
        break;
    case CAL_PART_STRETCHED:
        for (size_t i = 0; i < part->near_count; i++) {
            scores[i] += share * (((double)part->near[i] - low) / by);
        }
        break;
    case CAL_PART_FLAGGED:
        for (size_t i = 0; i < count; i++) {
            if (part->flags[rows[i]] & part->flag) {
                scores[i] += share;
            }
        }
        break;
    default:
        for (size_t i = 0; i < count; i++) {
            scores[i] += share * own[i];
        }
    }
}

static int valid(const cal_part *parts, size_t part_count, size_t count, const int64_t *rows, size_t row_count) {
    for (size_t p = 0; p < part_count; p++) {
        if (parts[p].how < CAL_PART_VALUES || parts[p].how > CAL_PART_FLAGGED) {
            return 0;
        }
        if (parts[p].how == CAL_PART_STRETCHED && parts[p].near_count > count) {
            return 0;
        }
    }
    int out = 1;
    for (size_t i = 0; i < count; i++) {
        out &= (uint64_t)rows[i] < row_count;
    }
    return out;
}

static void tell(const cal_part *parts, size_t part_count, const int64_t *rows, const int64_t *places, size_t count,
                 double *told) {
    for (size_t p = 0; p < part_count; p++) {
        for (size_t j = 0; j < count; j++) {
            const int64_t place = places[j];
            told[p * count + j] = place < 0 ? 0.0 : parts[p].share * said(parts + p, (size_t)place, rows[place]);
        }
    }
}

int32_t cal_join(const cal_part *parts, size_t part_count, size_t count, const int64_t *rows, size_t row_count,
                 const uint8_t *inside, double least, const uint64_t *tie, size_t k, double *scores, int64_t *ids,
                 float *best, double *told, size_t *found) {
    if (!valid(parts, part_count, count, rows, row_count)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < count; i++) {
        scores[i] = 0.0;
    }
    for (size_t p = 0; p < part_count; p++) {
        add(parts + p, count, rows, scores);
    }
    heap h = {ids, best, tie, rows, 0, k};
    for (size_t i = 0; i < count; i++) {
        const double sum = scores[i] < least ? least : scores[i];
        scores[i] = !inside || inside[rows[i]] ? sum : 0.0;
        const float score = (float)scores[i];
        if (k && score > 0 && (h.count < k || score >= best[0])) {
            offer(&h, score, (int64_t)i);
        }
    }
    sort_heap(&h);
    *found = h.count;
    tell(parts, part_count, rows, ids, h.count, told);
    return CAL_OK;
}

int32_t cal_join_told(const cal_part *parts, size_t part_count, size_t count, const int64_t *rows, size_t row_count,
                      const int64_t *places, size_t place_count, double *told) {
    if (!valid(parts, part_count, count, rows, row_count)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t j = 0; j < place_count; j++) {
        if (places[j] >= 0 && (uint64_t)places[j] >= count) {
            return CAL_E_ARGUMENT;
        }
    }
    tell(parts, part_count, rows, places, place_count, told);
    return CAL_OK;
}
