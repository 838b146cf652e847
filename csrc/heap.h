/* The best of many scores, in canonical order; see "Order of results" in caliber.h. */
#ifndef CALIBER_HEAP_H
#define CALIBER_HEAP_H

#include <stddef.h>
#include <stdint.h>

/* The best rows so far, as a heap whose root is the worst of them. */
typedef struct {
    int64_t *ids;
    float *scores;
    const uint64_t *tie;
    const int64_t *rows; /* of each id: where its tie is; NULL: at the id itself */
    size_t count, capacity;
} heap;

/* Whether (score_a, a) comes before (score_b, b) in canonical order. */
static inline int precedes(const heap *h, float score_a, int64_t a, float score_b, int64_t b) {
    if (score_a != score_b) {
        return score_a > score_b;
    }
    if (h->tie) {
        const uint64_t *x = h->tie + 2 * (h->rows ? h->rows[a] : a), *y = h->tie + 2 * (h->rows ? h->rows[b] : b);
        if (x[0] != y[0]) {
            return x[0] < y[0];
        }
        if (x[1] != y[1]) {
            return x[1] < y[1];
        }
    }
    return a < b;
}

static inline void sift_down(heap *h, size_t hole, float score, int64_t id) {
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= h->count) {
            break;
        }
        if (child + 1 < h->count &&
            precedes(h, h->scores[child], h->ids[child], h->scores[child + 1], h->ids[child + 1])) {
            child++;
        }
        if (!precedes(h, score, id, h->scores[child], h->ids[child])) {
            break;
        }
        h->scores[hole] = h->scores[child];
        h->ids[hole] = h->ids[child];
        hole = child;
    }
    h->scores[hole] = score;
    h->ids[hole] = id;
}

static inline void offer(heap *h, float score, int64_t id) {
    if (h->count == h->capacity) {
        if (precedes(h, score, id, h->scores[0], h->ids[0])) {
            sift_down(h, 0, score, id);
        }
        return;
    }
    size_t hole = h->count++;
    while (hole > 0) {
        const size_t parent = (hole - 1) / 2;
        if (!precedes(h, h->scores[parent], h->ids[parent], score, id)) {
            break;
        }
        h->scores[hole] = h->scores[parent];
        h->ids[hole] = h->ids[parent];
        hole = parent;
    }
    h->scores[hole] = score;
    h->ids[hole] = id;
}

/* Makes a heap of rows in any order. */
static inline void make_heap(heap *h) {
    for (size_t i = h->count / 2; i-- > 0;) {
        sift_down(h, i, h->scores[i], h->ids[i]);
    }
}

/* As offer, of a heap that is one only once it is full: what fills it need not find its place. */
static inline void offer_late(heap *h, float score, int64_t id) {
    if (h->count == h->capacity) {
        offer(h, score, id);
        return;
    }
    h->scores[h->count] = score;
    h->ids[h->count++] = id;
    if (h->count == h->capacity) {
        make_heap(h);
    }
}

/* Turns the heap into the list, best first: the worst goes to the end, again and again. */
static inline void sort_heap(heap *h) {
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

#endif
