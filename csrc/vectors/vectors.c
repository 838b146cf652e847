/*
 * Scoring, top-k and near pairs over the reductions of one instruction set. What decides order and equality
 * (norms, rounding, ties) is written once, here.
 */
#include "../internal.h"

#include <math.h>

static float to_score(int32_t metric, double reduced, double query_norm, double row_norm) {
    if (metric == CAL_METRIC_L2) {
        return (float)(1.0 / (1.0 + sqrt(reduced)));
    }
    if (metric == CAL_METRIC_COSINE) {
        const double scale = query_norm * row_norm;
        if (scale == 0.0) {
            return 0.0F;
        }
        const double cosine = reduced / scale;
        return (float)(cosine > 1.0 ? 1.0 : cosine < -1.0 ? -1.0 : cosine);
    }
    return (float)reduced;
}

static int known_metric(int32_t metric) {
    return metric == CAL_METRIC_COSINE || metric == CAL_METRIC_L2 || metric == CAL_METRIC_INNER_PRODUCT;
}

static cal_reduce reduction(const cal_vector_ops *ops, int32_t metric) {
    return metric == CAL_METRIC_L2 ? ops->squared_distance : ops->dot;
}

int32_t cal_norms_f32(uint32_t features, const float *rows, size_t count, size_t dimensions, double *norms) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < count; i++) {
        /* One row against itself: the other three slots of a reduction repeat it. */
        const float *row = rows + i * dimensions;
        const float *const four[CAL_ROWS] = {row, row, row, row};
        double squares[CAL_ROWS];
        ops->dot(four, row, dimensions, squares);
        /* Squares of finite f32 cannot overflow f64, so NaN or infinity in the row shows in the sum. */
        if (!isfinite(squares[0])) {
            return CAL_E_NON_FINITE;
        }
        norms[i] = sqrt(squares[0]);
    }
    return CAL_OK;
}

int32_t cal_sums_f32(uint32_t features, int32_t metric, const float *rows, size_t count, size_t dimensions,
                     const float *query, double *sums) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!known_metric(metric)) {
        return CAL_E_ARGUMENT;
    }
    const cal_reduce reduce = reduction(ops, metric);
    for (size_t i = 0; i < count; i += CAL_ROWS) {
        const size_t filled = count - i < CAL_ROWS ? count - i : CAL_ROWS;
        const float *four[CAL_ROWS];
        for (size_t r = 0; r < CAL_ROWS; r++) {
            four[r] = rows + (i + (r < filled ? r : 0)) * dimensions;
        }
        double reduced[CAL_ROWS];
        reduce(four, query, dimensions, reduced);
        for (size_t r = 0; r < filled; r++) {
            sums[i + r] = reduced[r];
        }
    }
    return CAL_OK;
}

/* A bounded heap whose root is the worst of the rows kept. */
typedef struct {
    int64_t *ids;
    float *scores;
    const uint64_t *tie;
    size_t count, capacity;
} heap;

/* Whether (score_a, a) comes before (score_b, b) in canonical order. */
static int precedes(const uint64_t *tie, float score_a, int64_t a, float score_b, int64_t b) {
    if (score_a != score_b) {
        return score_a > score_b;
    }
    if (tie) {
        const uint64_t *x = tie + 2 * a, *y = tie + 2 * b;
        if (x[0] != y[0]) {
            return x[0] < y[0];
        }
        if (x[1] != y[1]) {
            return x[1] < y[1];
        }
    }
    return a < b;
}

static void sift_down(heap *h, size_t hole, float score, int64_t id) {
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= h->count) {
            break;
        }
        if (child + 1 < h->count &&
            precedes(h->tie, h->scores[child], h->ids[child], h->scores[child + 1], h->ids[child + 1])) {
            child++;
        }
        if (!precedes(h->tie, score, id, h->scores[child], h->ids[child])) {
            break;
        }
        h->scores[hole] = h->scores[child];
        h->ids[hole] = h->ids[child];
        hole = child;
    }
    h->scores[hole] = score;
    h->ids[hole] = id;
}

static void offer(heap *h, float score, int64_t id) {
    if (h->count == h->capacity) {
        if (precedes(h->tie, score, id, h->scores[0], h->ids[0])) {
            sift_down(h, 0, score, id);
        }
        return;
    }
    size_t hole = h->count++;
    while (hole > 0) {
        const size_t parent = (hole - 1) / 2;
        if (!precedes(h->tie, h->scores[parent], h->ids[parent], score, id)) {
            break;
        }
        h->scores[hole] = h->scores[parent];
        h->ids[hole] = h->ids[parent];
        hole = parent;
    }
    h->scores[hole] = score;
    h->ids[hole] = id;
}

/* Turns the heap into the list, best first: the worst goes to the end, again and again. */
static void sort_heap(heap *h) {
    const size_t total = h->count;
    while (h->count > 1) {
        const size_t last = --h->count;
        const float score = h->scores[last];
        const int64_t id = h->ids[last];
        h->scores[last] = h->scores[0];
        h->ids[last] = h->ids[0];
        sift_down(h, 0, score, id);
    }
    h->count = total;
}

int32_t cal_topk_f32(uint32_t features, int32_t metric, const cal_segment *segments, size_t segment_count,
                     size_t dimensions, const float *query, double query_norm, size_t k, float min_similarity,
                     const uint8_t *mask, const uint64_t *tie, int64_t *ids, float *scores, size_t *found) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!known_metric(metric)) {
        return CAL_E_ARGUMENT;
    }
    const cal_reduce reduce = reduction(ops, metric);
    heap best = {ids, scores, tie, 0, k};
    int64_t base = 0;
    for (size_t s = 0; s < segment_count && k > 0; s++) {
        const cal_segment *segment = &segments[s];
        size_t i = 0;
        while (i < segment->count) {
            /* The next four rows that take part, wherever they are in the segment. */
            const float *rows[CAL_ROWS];
            size_t at[CAL_ROWS], filled = 0;
            for (; i < segment->count && filled < CAL_ROWS; i++) {
                if ((!segment->live || segment->live[i]) && (!mask || mask[(size_t)base + i])) {
                    at[filled] = i;
                    rows[filled++] = segment->rows + i * dimensions;
                }
            }
            if (filled == 0) {
                break;
            }
            for (size_t r = filled; r < CAL_ROWS; r++) {
                rows[r] = rows[0];
            }
            double reduced[CAL_ROWS];
            reduce(rows, query, dimensions, reduced);
            for (size_t r = 0; r < filled; r++) {
                const float score = to_score(metric, reduced[r], query_norm, segment->norms[at[r]]);
                if (score >= min_similarity) {
                    offer(&best, score, base + (int64_t)at[r]);
                }
            }
        }
        base += (int64_t)segment->count;
    }
    sort_heap(&best);
    *found = best.count;
    return CAL_OK;
}

int32_t cal_scores_f32(uint32_t features, int32_t metric, const cal_segment *segments, size_t segment_count,
                       size_t segment_rows, size_t dimensions, const float *query, double query_norm,
                       const int64_t *ids, size_t count, float *scores) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!known_metric(metric) || segment_rows == 0) {
        return CAL_E_ARGUMENT;
    }
    const cal_reduce reduce = reduction(ops, metric);
    for (size_t i = 0; i < count; i += CAL_ROWS) {
        const float *rows[CAL_ROWS];
        double norms[CAL_ROWS], reduced[CAL_ROWS];
        const size_t filled = count - i < CAL_ROWS ? count - i : CAL_ROWS;
        for (size_t r = 0; r < CAL_ROWS; r++) {
            const int64_t id = ids[r < filled ? i + r : i];
            if (id < 0 || (uint64_t)id / segment_rows >= segment_count) {
                return CAL_E_ARGUMENT;
            }
            const cal_segment *segment = &segments[(size_t)id / segment_rows];
            const size_t offset = (size_t)id % segment_rows;
            if (offset >= segment->count) {
                return CAL_E_ARGUMENT;
            }
            rows[r] = segment->rows + offset * dimensions;
            norms[r] = segment->norms[offset];
        }
        reduce(rows, query, dimensions, reduced);
        for (size_t r = 0; r < filled; r++) {
            scores[i + r] = to_score(metric, reduced[r], query_norm, norms[r]);
        }
    }
    return CAL_OK;
}

int32_t cal_score_batch_f32(uint32_t features, int32_t metric, const float *rows, const double *norms,
                            size_t count, size_t dimensions, const float *queries, const double *query_norms,
                            size_t query_count, float *scores) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    if (!known_metric(metric)) {
        return CAL_E_ARGUMENT;
    }
    const cal_reduce reduce = reduction(ops, metric);
    for (size_t i = 0; i < count; i += CAL_ROWS) {
        /* Four rows against all queries, so that the rows are read from memory once. */
        const size_t filled = count - i < CAL_ROWS ? count - i : CAL_ROWS;
        const float *four[CAL_ROWS];
        for (size_t r = 0; r < CAL_ROWS; r++) {
            four[r] = rows + (i + (r < filled ? r : 0)) * dimensions;
        }
        for (size_t q = 0; q < query_count; q++) {
            double reduced[CAL_ROWS];
            reduce(four, queries + q * dimensions, dimensions, reduced);
            for (size_t r = 0; r < filled; r++) {
                scores[q * count + i + r] = to_score(metric, reduced[r], query_norms[q], norms[i + r]);
            }
        }
    }
    return CAL_OK;
}

/* Pairs kept, as a heap with the worst at the root. */
typedef struct {
    int64_t *left, *right;
    float *scores;
    size_t count, capacity;
} pair_heap;

typedef struct {
    int64_t left, right;
    float score;
} pair;

static pair pair_at(const pair_heap *h, size_t i) {
    const pair p = {h->left[i], h->right[i], h->scores[i]};
    return p;
}

static void put_pair(pair_heap *h, size_t i, pair p) {
    h->left[i] = p.left;
    h->right[i] = p.right;
    h->scores[i] = p.score;
}

static int pair_precedes(pair a, pair b) {
    if (a.score != b.score) {
        return a.score > b.score;
    }
    return a.left != b.left ? a.left < b.left : a.right < b.right;
}

static void pair_sift_down(pair_heap *h, size_t hole, pair p) {
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= h->count) {
            break;
        }
        if (child + 1 < h->count && pair_precedes(pair_at(h, child), pair_at(h, child + 1))) {
            child++;
        }
        if (!pair_precedes(p, pair_at(h, child))) {
            break;
        }
        put_pair(h, hole, pair_at(h, child));
        hole = child;
    }
    put_pair(h, hole, p);
}

/* Returns 1 if a pair had to be dropped. */
static int32_t pair_offer(pair_heap *h, pair p) {
    if (h->count == h->capacity) {
        if (h->capacity > 0 && pair_precedes(p, pair_at(h, 0))) {
            pair_sift_down(h, 0, p);
        }
        return 1;
    }
    size_t hole = h->count++;
    while (hole > 0) {
        const size_t parent = (hole - 1) / 2;
        const pair above = pair_at(h, parent);
        if (!pair_precedes(above, p)) {
            break;
        }
        put_pair(h, hole, above);
        hole = parent;
    }
    put_pair(h, hole, p);
    return 0;
}

int32_t cal_pairs_above_f32(uint32_t features, const float *rows, const double *norms, size_t count,
                            size_t dimensions, float threshold, size_t max_pairs, int64_t *left,
                            int64_t *right, float *scores, size_t *found, int32_t *truncated) {
    const cal_vector_ops *ops = cal_choose_vectors(features);
    if (!ops) {
        return CAL_E_UNSUPPORTED;
    }
    pair_heap best = {left, right, scores, 0, max_pairs};
    *truncated = 0;
    /* Four rows i against every later row j, read once for the four. */
    for (size_t i = 0; i < count; i += CAL_ROWS) {
        const size_t filled = count - i < CAL_ROWS ? count - i : CAL_ROWS;
        const float *four[CAL_ROWS];
        for (size_t r = 0; r < CAL_ROWS; r++) {
            four[r] = rows + (i + (r < filled ? r : 0)) * dimensions;
        }
        for (size_t j = i + 1; j < count; j++) {
            double reduced[CAL_ROWS];
            ops->dot(four, rows + j * dimensions, dimensions, reduced);
            for (size_t r = 0; r < filled && i + r < j; r++) {
                const float score = to_score(CAL_METRIC_COSINE, reduced[r], norms[i + r], norms[j]);
                if (score >= threshold) {
                    const pair p = {(int64_t)(i + r), (int64_t)j, score};
                    *truncated |= pair_offer(&best, p);
                }
            }
        }
    }
    const size_t total = best.count;
    while (best.count > 1) {
        const size_t last = --best.count;
        const pair moved = pair_at(&best, last);
        put_pair(&best, last, pair_at(&best, 0));
        pair_sift_down(&best, 0, moved);
    }
    *found = total;
    return CAL_OK;
}
