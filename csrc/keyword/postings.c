/* Postings that only grow, and BM25 over them; the layout is in caliber.h. */
#include "../heap.h"
#include "../internal.h"

#include <string.h>

#define NONE UINT32_C(0xFFFFFFFF)
#define SEGMENT CAL_POSTING_SEGMENT
#define SMALLEST 4U   /* entries of a term's first slice, the link included */
#define LARGEST 1024U /* entries of its longest ones */

/* What a code of four bits stands for: the largest of these that a term's count in a document reaches. */
static const uint32_t COUNTS[16] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128, 256};

static uint32_t code_of(uint32_t count) {
    uint32_t code = 15;
    while (COUNTS[code] > count) {
        code--;
    }
    return code;
}

static uint32_t slice_size(uint32_t level) {
    const uint32_t size = SMALLEST << (level < 16 ? level : 16);
    return size < LARGEST ? size : LARGEST;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

/* Where a slice of this size would start: slices never lie across two segments. */
static uint64_t place_of(uint64_t used, uint32_t size) {
    const uint64_t left = SEGMENT - used % SEGMENT;
    return left < size ? used + left : used;
}

/* Entries that will be used once each touched term has got one posting more. */
static uint64_t used_after(const cal_postings *postings, const uint32_t *touched, size_t count) {
    uint64_t used = postings->used;
    for (size_t i = 0; i < count; i++) {
        const uint32_t term = touched[i];
        if (postings->first[term] == NONE || postings->left[term]) {
            continue;
        }
        const uint32_t size = slice_size(postings->level[term]);
        used = place_of(used, size) + size;
    }
    return used;
}

static void link_slice(cal_postings *postings, uint32_t term) {
    const uint32_t size = slice_size(postings->level[term]);
    const uint64_t start = place_of(postings->used, size);
    postings->used = start + size;
    if (postings->level[term] == 0) {
        postings->chain[term] = (uint32_t)start;
    } else {
        postings->segments[postings->tail[term] / SEGMENT][postings->tail[term] % SEGMENT] = (uint32_t)start;
    }
    postings->tail[term] = (uint32_t)start;
    postings->left[term] = (uint16_t)(size - 1);
    if (postings->level[term] < 15) {
        postings->level[term]++;
    }
}

static void append(cal_postings *postings, uint32_t term, uint32_t entry) {
    if (postings->first[term] == NONE) {
        postings->first[term] = entry;
        return;
    }
    if (!postings->left[term]) {
        link_slice(postings, term);
    }
    const uint32_t at = postings->tail[term]++;
    postings->segments[at / SEGMENT][at % SEGMENT] = entry;
    postings->left[term]--;
}

int32_t cal_postings_add(cal_postings *postings, uint64_t first_document, const uint32_t *words, const int64_t *offsets,
                         size_t count, const uint64_t *term_starts, const uint32_t *term_ids, const uint8_t *word_flags,
                         size_t word_count, uint32_t *counts, uint32_t *touched, uint32_t *lengths, uint8_t *flags,
                         size_t *done) {
    *done = 0;
    if (first_document + count > CAL_DOCUMENTS_MAX) {
        return CAL_E_OVERFLOW;
    }
    for (size_t i = 0; i < count; i++) {
        size_t distinct = 0;
        uint32_t length = 0;
        uint8_t flag = 0;
        for (int64_t w = offsets[i]; w < offsets[i + 1]; w++) {
            if (words[w] >= word_count) {
                return CAL_E_ARGUMENT;
            }
            flag |= word_flags[words[w]];
            for (uint64_t t = term_starts[words[w]]; t < term_starts[words[w] + 1]; t++) {
                const uint32_t term = term_ids[t];
                if (counts[term]++ == 0) {
                    touched[distinct++] = term;
                }
                length++;
            }
        }
        const int fits = used_after(postings, touched, distinct) <= (uint64_t)postings->segment_count * SEGMENT;
        const uint32_t document = (uint32_t)(first_document + i);
        for (size_t t = 0; t < distinct; t++) {
            if (fits) {
                append(postings, touched[t], document << 4 | code_of(counts[touched[t]]));
            }
            counts[touched[t]] = 0;
        }
        if (!fits) {
            return CAL_OK;
        }
        lengths[i] = length;
        flags[i] = flag;
        *done = i + 1;
    }
    return CAL_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

/*
 * A term's postings, in the order they were written, up to a number of documents: runs of entries that lie side by
 * side. A writer may be adding: what it adds has higher document numbers, and entries not written yet are NONE, so the
 * walk ends before either.
 */
typedef struct {
    const cal_postings *postings;
    const uint32_t *entries; /* the run */
    uint32_t count;
    uint32_t at, level; /* where the next one is */
} walk;

/* Documents fit 28 bits and a limit is at most CAL_DOCUMENTS_MAX, so NONE is beyond any. */
static int within(uint32_t entry, uint32_t limit) { return entry >> 4 < limit; }

static int start(walk *w, const cal_postings *postings, uint32_t term) {
    *w = (walk){postings, NULL, 0, NONE, 0};
    if (term >= postings->terms) {
        return 0;
    }
    w->entries = &postings->first[term];
    w->count = 1;
    w->at = postings->chain[term];
    return 1;
}

static const uint32_t *place(const walk *w, uint32_t at) {
    return at / SEGMENT < w->postings->segment_count ? &w->postings->segments[at / SEGMENT][at % SEGMENT] : NULL;
}

static int next(walk *w) {
    if (w->level) {
        const uint32_t *const link = w->entries + w->count;
        w->at = *link;
    }
    const uint32_t *const entries = w->at == NONE ? NULL : place(w, w->at);
    if (!entries) {
        return 0;
    }
    w->entries = entries;
    w->count = slice_size(w->level++) - 1;
    return 1;
}

int32_t cal_postings_count(const cal_postings *postings, const uint32_t *terms, size_t count, size_t documents,
                           const uint8_t *mask, int64_t *counts) {
    if (documents > CAL_DOCUMENTS_MAX) {
        return CAL_E_OVERFLOW;
    }
    const uint32_t limit = (uint32_t)documents;
    for (size_t i = 0; i < count; i++) {
        walk w;
        int64_t seen = 0;
        for (int more = start(&w, postings, terms[i]); more; more = more && next(&w)) {
            for (uint32_t e = 0; e < w.count; e++) {
                if (!within(w.entries[e], limit)) {
                    more = 0;
                    break;
                }
                seen += mask[w.entries[e] >> 4] != 0;
            }
        }
        counts[i] = seen;
    }
    return CAL_OK;
}

int32_t cal_postings_documents(const cal_postings *postings, uint32_t term, size_t documents, const uint8_t *mask,
                               int64_t *found, size_t capacity, size_t *count) {
    walk w;
    *count = 0;
    if (documents > CAL_DOCUMENTS_MAX) {
        return CAL_E_OVERFLOW;
    }
    for (int more = start(&w, postings, term); more; more = more && next(&w)) {
        for (uint32_t e = 0; e < w.count; e++) {
            const uint32_t document = w.entries[e] >> 4;
            if (!within(w.entries[e], (uint32_t)documents)) {
                more = 0;
                break;
            }
            if (!mask[document]) {
                continue;
            }
            if (*count == capacity) {
                return CAL_E_ARGUMENT;
            }
            found[(*count)++] = document;
        }
    }
    return CAL_OK;
}

/* ---- scoring ------------------------------------------------------------------------------------------ */

#define TOUCHED UINT32_C(0x80000000) /* in places: the word at hand reaches the document, or one beside it */

typedef struct {
    const cal_lending *lending;
    size_t documents;
    const uint8_t *mask;
    double *reached;
    uint32_t *places, *touched;
    size_t count;
} reach;

/* The neighbour of a document, or -1. */
static int64_t beside(const reach *r, const int64_t *column, int64_t document) {
    const int64_t other = document < 0 ? -1 : column[document];
    return other < 0 || (uint64_t)other >= r->documents ? -1 : other;
}

static void touch(reach *r, int64_t document) {
    if (document < 0 || r->places[document] & TOUCHED || !r->mask[document]) {
        return;
    }
    r->places[document] |= TOUCHED;
    r->touched[r->count++] = (uint32_t)document;
}

static double reached_by(const reach *r, int64_t document) { return document < 0 ? 0.0 : r->reached[document]; }

/* What a document is worth to a word, with what its neighbours lend. */
static double with_lent(const reach *r, int64_t document) {
    const cal_lending *const lending = r->lending;
    double worth = r->reached[document];
    if (!lending->before) {
        return worth;
    }
    const int64_t before = beside(r, lending->before, document), after = beside(r, lending->after, document);
    const int64_t before2 = beside(r, lending->before, before), after2 = beside(r, lending->after, after);
    worth = worth + lending->near * (reached_by(r, before) + reached_by(r, after));
    worth = worth + lending->far * (reached_by(r, before2) + reached_by(r, after2));
    if (before >= 0 && lending->asks[before]) {
        worth = worth + lending->answer * r->reached[before];
    }
    return worth;
}

static void touch_neighbours(reach *r) {
    const size_t direct = r->count;
    for (size_t i = 0; i < direct; i++) {
        const int64_t document = r->touched[i];
        const int64_t before = beside(r, r->lending->before, document), after = beside(r, r->lending->after, document);
        touch(r, before);
        touch(r, after);
        touch(r, beside(r, r->lending->before, before));
        touch(r, beside(r, r->lending->after, after));
    }
}

/* What each posting of a term makes of its document; the best of a word's terms counts. */
static void reach_by_term(reach *r, const cal_postings *postings, uint32_t term, double strength,
                          const uint32_t *lengths, double k1, double b, double mean_length) {
    walk w;
    for (int more = start(&w, postings, term); more; more = more && next(&w)) {
        for (uint32_t e = 0; e < w.count; e++) {
            const uint32_t document = w.entries[e] >> 4;
            if (!within(w.entries[e], (uint32_t)r->documents)) {
                more = 0;
                break;
            }
            if (!r->mask[document]) {
                continue;
            }
            const double f = COUNTS[w.entries[e] & 15];
            const double room = k1 * (1 - b + b * (lengths[document] / mean_length));
            const double worth = strength * ((k1 + 1) * f / (f + room));
            touch(r, document);
            if (worth > r->reached[document]) {
                r->reached[document] = worth;
            }
        }
    }
}

/* Gives the documents that were asked for the first places; 0 if one of them is none, or is there twice. */
static int place_given(uint32_t *places, size_t documents, const int64_t *found, size_t given) {
    for (size_t i = 0; i < given; i++) {
        if (found[i] < 0 || (uint64_t)found[i] >= documents || places[found[i]]) {
            for (size_t j = 0; j < i; j++) {
                places[found[j]] = 0;
            }
            return 0;
        }
        places[found[i]] = (uint32_t)i + 1;
    }
    return 1;
}

int32_t cal_keyword_scores(const cal_postings *postings, const int64_t *groups, const uint32_t *terms,
                           const double *strengths, const double *idfs, size_t words, size_t documents,
                           const uint8_t *mask, const uint8_t *kept, const uint32_t *lengths, double k1, double b,
                           double mean_length, double saturate, const cal_lending *lending, double *reached,
                           uint32_t *places, uint32_t *touched, size_t given, int64_t *found, double *own,
                           double *scores, size_t *found_count) {
    *found_count = 0;
    if (documents > CAL_DOCUMENTS_MAX) {
        return CAL_E_OVERFLOW;
    }
    if (!(mean_length > 0) || !place_given(places, documents, found, given)) {
        return CAL_E_ARGUMENT;
    }
    reach r = {lending, documents, mask, reached, places, touched, 0};
    size_t count = given;
    for (size_t i = 0; i < given; i++) {
        own[i] = scores[i] = 0;
    }
    for (size_t q = 0; q < words; q++) {
        for (int64_t t = groups[q]; t < groups[q + 1]; t++) {
            reach_by_term(&r, postings, terms[t], strengths[t], lengths, k1, b, mean_length);
        }
        if (lending->before) {
            touch_neighbours(&r);
        }
        for (size_t i = 0; i < r.count; i++) {
            const uint32_t document = touched[i];
            const double alone = reached[document], together = with_lent(&r, document);
            uint32_t place = places[document] &= ~TOUCHED;
            if (!(together > 0) || !(place || kept[document])) {
                continue;
            }
            if (!place) {
                place = places[document] = (uint32_t)count + 1;
                found[count] = document;
                own[count] = scores[count] = 0;
                count++;
            }
            own[place - 1] += saturate > 0 && alone > 0 ? idfs[q] * alone / (alone + saturate * idfs[q]) : alone;
            scores[place - 1] += saturate > 0 ? idfs[q] * together / (together + saturate * idfs[q]) : together;
        }
        for (size_t i = 0; i < r.count; i++) {
            reached[touched[i]] = 0;
            touched[i] = 0;
        }
        r.count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        places[found[i]] = 0;
    }
    *found_count = count;
    return CAL_OK;
}

int32_t cal_best_scores(const double *scores, size_t count, const int64_t *rows, const uint64_t *tie, size_t k,
                        int64_t *ids, float *best, size_t *found) {
    heap h = {ids, best, tie, rows, 0, k};
    for (size_t i = 0; k && i < count; i++) {
        const float score = (float)scores[i];
        /* Most cannot be among the best: one comparison tells. */
        if (score > 0 && (h.count < k || score >= best[0])) {
            offer(&h, score, (int64_t)i);
        }
    }
    sort_heap(&h);
    *found = h.count;
    return CAL_OK;
}

/* ---- phrases ------------------------------------------------------------------------------------------ */

/* Reads a number of seven bits a byte, lowest first. */
static uint32_t read_number(const uint8_t **at) {
    uint32_t value = 0;
    for (uint32_t shift = 0;; shift += 7) {
        const uint32_t byte = *(*at)++;
        value |= (byte & 0x7FU) << shift;
        if (byte < 0x80) {
            return value;
        }
    }
}

int32_t cal_words_pack(const uint32_t *words, const int64_t *offsets, size_t count, uint8_t *packed, size_t capacity,
                       int64_t *sizes) {
    size_t at = 0;
    sizes[0] = 0;
    for (size_t i = 0; i < count; i++) {
        for (int64_t w = offsets[i]; w < offsets[i + 1]; w++) {
            if (capacity - at < 5) {
                return CAL_E_ARGUMENT;
            }
            uint32_t value = words[w];
            for (; value >= 0x80; value >>= 7) {
                packed[at++] = (uint8_t)(value | 0x80U);
            }
            packed[at++] = (uint8_t)value;
        }
        sizes[i + 1] = (int64_t)at;
    }
    return CAL_OK;
}

int32_t cal_phrase_matches(const uint8_t *const *documents, const int64_t *sizes, size_t count,
                           const uint64_t *part_starts, const uint32_t *parts, size_t word_count,
                           const uint32_t *phrase, size_t phrase_length, uint32_t *matches) {
    if (phrase_length == 0 || phrase_length > CAL_PHRASE_MAX) {
        return CAL_E_ARGUMENT;
    }
    const uint64_t whole = UINT64_C(1) << (phrase_length - 1);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = documents[i];
        const uint8_t *const end = at + sizes[i];
        uint64_t state = 0; /* bit j: the last j + 1 parts are the phrase's first */
        matches[i] = 0;
        while (at < end) {
            const uint32_t word = read_number(&at);
            if (word >= word_count) {
                return CAL_E_ARGUMENT;
            }
            for (uint64_t p = part_starts[word]; p < part_starts[word + 1]; p++) {
                uint64_t here = 0;
                for (size_t j = 0; j < phrase_length; j++) {
                    here |= (uint64_t)(phrase[j] == parts[p]) << j;
                }
                state = (state << 1 | 1) & here;
                matches[i] += (state & whole) != 0;
            }
        }
    }
    return CAL_OK;
}
