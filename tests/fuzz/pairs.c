/*
 * cal_pairs_above_f32, cut off anywhere, and cal_near_groups_f32: any rows and threshold, with codes and without,
 * against every pair scored in plain C.
 */
#include "vectors.h"

#define MOST_PAIR_ROWS 110 /* more than are looked at together, and more than a block */

typedef struct {
    int64_t left, right;
    float score;
} pair;

static int compare(const void *x, const void *y) {
    const pair *a = x, *b = y;
    if (a->score != b->score) {
        return a->score > b->score ? -1 : 1;
    }
    return a->left != b->left ? (a->left < b->left ? -1 : 1) : (a->right < b->right ? -1 : 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    arena a = {.count = 0};
    uint64_t state = take(&in, 4);
    const size_t n = take_below(&in, MOST_PAIR_ROWS + 1), shape = take(&in, 1);
    table t = take_table(&in, &a, n, &state);
    if (!t.finite) {
        free_all(&a);
        return 0;
    }
    float *scores = exact(&a, n * n * sizeof *scores, 4);
    CHECK(cal_score_batch_f32(0, CAL_METRIC_COSINE, t.rows, t.norms, n, t.dimensions, t.rows, t.norms, n, scores) ==
          CAL_OK);
    const float threshold = shape & 1 && n > 1 ? take_threshold(&in, scores, n * n) : 0.75F;
    static pair all[MOST_PAIR_ROWS * MOST_PAIR_ROWS];
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            if (scores[i * n + j] >= threshold) {
                all[total++] = (pair){(int64_t)i, (int64_t)j, scores[i * n + j]};
            }
        }
    }
    qsort(all, total, sizeof *all, compare);
    const size_t limit = shape & 2 ? total + (shape >> 2 & 1) : take_below(&in, total + 2);
    int64_t groups[MOST_PAIR_ROWS];
    uint8_t *left_out = exact(&a, n, 1);
    for (size_t i = 0; i < n; i++) {
        groups[i] = -1;
        left_out[i] = (uint8_t)(shape & 8 ? take_below(&in, 3) == 0 : 0);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n && !left_out[i] && (groups[i] < 0 || groups[i] == (int64_t)i); j++) {
            if (groups[j] < 0 && !left_out[j] && scores[i * n + j] >= threshold) {
                groups[j] = groups[i] = (int64_t)i;
            }
        }
    }
    uint32_t sets[MOST_PATHS];
    const size_t paths = feature_sets(sets, FOR_VECTORS);
    for (size_t p = 0; p < paths; p++) {
        for (int coded = 0; coded < 1 + (t.dimensions >= 64); coded++) {
            const cal_segment segment = segment_of(&a, &t, 0, n, NULL, coded);
            int64_t *left = exact(&a, limit * sizeof *left, 8), *right = exact(&a, limit * sizeof *right, 8);
            float *best = exact(&a, limit * sizeof *best, 4);
            size_t found = 0;
            int32_t truncated = -1;
            CHECK(cal_pairs_above_f32(sets[p], &segment, t.dimensions, threshold, limit,
                                      coded ? exact(&a, CAL_PAIR_ROWS * t.stride, 1) : NULL, left, right, best, &found,
                                      &truncated) == CAL_OK);
            CHECK(found == (total < limit ? total : limit));
            CHECK(truncated == (total > limit));
            int64_t *leader = exact(&a, n * sizeof *leader, 8);
            CHECK(cal_near_groups_f32(sets[p], &segment, t.dimensions, threshold, left_out,
                                      coded ? exact(&a, t.stride, 1) : NULL, leader) == CAL_OK);
            CHECK(n == 0 || memcmp(leader, groups, n * sizeof *leader) == 0);
            for (size_t i = 0; i < found; i++) {
                CHECK(left[i] == all[i].left && right[i] == all[i].right);
                CHECK(memcmp(&best[i], &all[i].score, sizeof *best) == 0);
            }
        }
    }
    free_all(&a);
    return 0;
}
