/* Near pairs: every row against every later one. */
#include "scoring.h"

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
                const float score = cal_to_score(CAL_METRIC_COSINE, reduced[r], norms[i + r], norms[j]);
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
