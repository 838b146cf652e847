/*
 * caliber.h: the whole native ABI of CALIBER.
 *
 * Everything that Python can call is declared between the two "cdef" marks below; tools/gen_native.py
 * copies those declarations into csrc/ffi/native.cdef.txt and generates csrc/ffi/_native.c from them.
 *
 * Rules that hold for every function
 *   Memory      The caller passes every buffer with its length. C allocates nothing and keeps no pointer
 *               after it returns. Buffers need the natural alignment of their element type, no more.
 *   Aliasing    Output buffers must not overlap inputs or each other.
 *   Threads     Every function is reentrant. The only static state is the cached answer of the CPU, which is
 *               written atomically and always with the same value, and the mark of files, which is set while a
 *               process has one thread. Python calls run with the GIL released, so inputs must not be changed
 *               by another thread during a call.
 *   Result      A status (CAL_OK or one of CAL_E_*); outputs are unspecified unless it is CAL_OK.
 *   features    The first argument of every function with more than one implementation: the set of CPU
 *               features it may use. 0 is the scalar code, the truth all others must equal bit for bit. A bit
 *               that cal_cpu_features() lacks gives CAL_E_UNSUPPORTED: a path is never replaced in silence.
 *
 * Canonical scores
 *   f32 inputs are widened to f64. Element i goes to lane i mod 8; each lane adds its terms in index order,
 *   starting at +0.0. Lanes fold 4-2-1: lane j + lane j+4, then j + j+2, then j + j+1. Never a fused
 *   multiply-add (-ffp-contract=off). Products of two f32 are exact in f64. Padding with zeros up to a
 *   multiple of 8 changes no bit, so implementations may pad or stop early. sqrt and division are IEEE
 *   correctly rounded, hence equal everywhere.
 *     cosine         dot / (|a| * |b|), clamped to [-1, 1]; 0.0 if either norm is 0
 *     l2             1 / (1 + sqrt(sum of (a_i - b_i)^2)), the difference rounded once to f64
 *     inner product  dot
 *   The f64 is rounded once to f32: that is the score, and only the score decides order. An inner product
 *   beyond the range of f32 rounds to an infinity and is ordered as such.
 *
 * Order of results
 *   score descending, then tie[2*id], tie[2*id+1] ascending as unsigned numbers (if tie is given), then id
 *   ascending. +0.0 and -0.0 are equal.
 */
#ifndef CALIBER_H
#define CALIBER_H

#include <stddef.h>
#include <stdint.h>

/* cdef begin */

enum {
    CAL_OK = 0,
    CAL_E_UNSUPPORTED = 1, /* features: a bit this machine or this build lacks */
    CAL_E_ARGUMENT = 2,    /* a scalar argument is outside its documented range: programming error */
    CAL_E_NON_FINITE = 3,  /* NaN or infinity in the input */
    CAL_E_OFFSETS = 4,     /* offsets decrease, are negative, or pass the end of the data */
    CAL_E_SECTION = 5,     /* rank: a section number outside [0, sections) */
    CAL_E_GROUP = 6,       /* rank: a group number outside [-1, n), or a group over two sections */
    CAL_E_NEGATIVE = 7,    /* rank: a negative token count, overhead, or budget other than -1 */
    CAL_E_OVERFLOW = 8,    /* a result does not fit its type */
    CAL_E_COPY = 9         /* copy: a value or a byte that may not be; a cal_copy_fault says where and why */
};

/* CPU features: bits of a set. */
enum {
    CAL_CPU_AVX2 = 1,
    CAL_CPU_SHANI = 2,
    CAL_CPU_NEON = 4,    /* 64-bit ARM, all of them */
    CAL_CPU_DOTPROD = 8, /* ... with SDOT and UDOT */
    CAL_CPU_SHA2 = 16    /* ... with SHA256H and its like */
};

enum {
    CAL_METRIC_COSINE = 0,
    CAL_METRIC_L2 = 1,
    CAL_METRIC_INNER_PRODUCT = 2
};

/* What this CPU and operating system can run and this build contains. */
uint32_t cal_cpu_features(void);

/* ---- vectors ------------------------------------------------------------------------------------------ */

/*
 * One run of rows. Row ids of a list of segments are consecutive: the first row of segment s has the sum of
 * the counts before it. live may be NULL (all live), else live[i] == 0 marks row i as retired.
 * norms[i] is what cal_norms_f32 wrote for row i; codes, scales and errors what cal_code_rows_f32 wrote, or all
 * NULL. Seven machine words, so a table of segments is an array.
 */
typedef struct {
    const float *rows;    /* f32[count, dimensions], row-major */
    const double *norms;  /* f64[count] */
    const uint8_t *codes; /* u8[count, stride] */
    const float *scales;  /* f32[count] */
    const float *errors;  /* f32[count] */
    const uint8_t *live;  /* u8[count] or NULL */
    size_t count;
} cal_segment;

/* norms[i] = sqrt(canonical sum of squares of row i). CAL_E_NON_FINITE if any value is NaN or infinite. */
int32_t cal_norms_f32(uint32_t features, const float *rows, size_t count, size_t dimensions, double *norms);

/*
 * sums[i] = the canonical f64 of row i and query before any rounding to f32: the dot product, or for
 * CAL_METRIC_L2 the sum of squared differences. Rounding to f32 hides nearly every fault in the order of
 * additions, so the tests compare these.
 */
int32_t cal_sums_f32(uint32_t features, int32_t metric, const float *rows, size_t count, size_t dimensions,
                     const float *query, double *sums);

/*
 * Codes: a byte an element, a quarter of the rows, from which a search learns which rows need scoring. Same bits on
 * every machine. csrc/vectors/codes.h says what they are and proves the bounds they give. dimensions in
 * [64, 65536], else there are none; stride is dimensions rounded up to a multiple of 64.
 */
int32_t cal_code_rows_f32(const float *rows, const double *norms, size_t count, size_t dimensions, size_t stride,
                          uint8_t *codes, float *scales, float *errors);

/*
 * What a search knows of each row of a segment from its codes: bounds of its score, and in passed whether the filter
 * before them lets it through at a threshold. For tests: lower <= score <= upper, and passed[i] = 1 wherever
 * score >= threshold. query_codes is scratch of stride bytes. CAL_E_ARGUMENT without codes or for a query of length 0.
 */
int32_t cal_score_bounds_f32(uint32_t features, int32_t metric, const cal_segment *segment, size_t dimensions,
                             const float *query, float threshold, int8_t *query_codes, float *lower, float *upper,
                             uint8_t *passed);

/* Bytes of scratch that cal_topk_f32 needs. */
size_t cal_topk_scratch(size_t dimensions, size_t k, size_t query_count);

/*
 * For each query the best k rows in canonical order, among rows that are live, that mask (u8 per row id, or NULL)
 * lets through, and whose score is >= min_similarity. tie is u64[n, 2] per row id, or NULL. The result does not
 * depend on whether segments have codes; with them a search is several times as fast.
 * queries f32[query_count, dimensions]; ids and scores hold query_count * k entries; found[q] says how many were
 * written from q * k on. Less scratch than cal_topk_scratch says: CAL_E_ARGUMENT.
 */
int32_t cal_topk_f32(uint32_t features, int32_t metric, const cal_segment *segments, size_t segment_count,
                     size_t dimensions, const float *queries, size_t query_count, size_t k, float min_similarity,
                     const uint8_t *mask, const uint64_t *tie, void *scratch, size_t scratch_size, int64_t *ids,
                     float *scores, size_t *found);

/*
 * scores[i] = canonical score of row ids[i], retired rows included. The segments before the last must all
 * hold segment_rows rows, the last at most as many. An id outside the segments is CAL_E_ARGUMENT.
 */
int32_t cal_scores_f32(uint32_t features, int32_t metric, const cal_segment *segments, size_t segment_count,
                       size_t segment_rows, size_t dimensions, const float *query, double query_norm,
                       const int64_t *ids, size_t count, float *scores);

/* scores f32[queries, count]: every row against every query. */
int32_t cal_score_batch_f32(uint32_t features, int32_t metric, const float *rows, const double *norms, size_t count,
                            size_t dimensions, const float *queries, const double *query_norms, size_t query_count,
                            float *scores);

enum {
    CAL_PAIR_ROWS = 32 /* rows that cal_pairs_above_f32 looks at together */
};

/*
 * Pairs i < j of a segment's rows (all live) whose cosine is >= threshold: the best max_pairs of them by score
 * descending, then i, then j. left and right receive i and j. *truncated is 1 if there were more than max_pairs. The
 * result does not depend on whether the segment has codes. query_codes: scratch of CAL_PAIR_ROWS * stride bytes, or
 * NULL without codes.
 */
int32_t cal_pairs_above_f32(uint32_t features, const cal_segment *segment, size_t dimensions, float threshold,
                            size_t max_pairs, int8_t *query_codes, int64_t *left, int64_t *right, float *scores,
                            size_t *found, int32_t *truncated);

/*
 * Groups near rows of a segment (all live) around the first of each: in the order of rows, a row that is in no group
 * takes all later rows that are in none and whose cosine with it is >= threshold. leader receives, for each row, the
 * first row of its group, or -1 in none; left_out: rows that are to be in none, one byte each. The result does not
 * depend on whether the segment has codes. query_codes: scratch of stride bytes, or NULL without codes.
 */
int32_t cal_near_groups_f32(uint32_t features, const cal_segment *segment, size_t dimensions, float threshold,
                            const uint8_t *left_out, int8_t *query_codes, int64_t *leader);

/* ---- UUIDv7 (RFC 9562, section 5.7; counter in rand_a by section 6.2, method 1) ----------------------- */

/* Zero-initialised by the caller and guarded by the caller's lock. */
typedef struct {
    uint64_t unix_ms; /* timestamp of the last id */
    uint32_t counter; /* rand_a of the last id, 12 bits */
} cal_uuid7_state;

/*
 * Writes count ids of 16 bytes, strictly increasing as big-endian numbers, also against all earlier ids of
 * the same state. A clock that stands still or goes back keeps the last timestamp and counts on; after 4096
 * ids the timestamp is moved one millisecond ahead (section 6.2 allows it). A new millisecond starts the
 * counter at 11 random bits, so that at least 2048 ids follow before that.
 * entropy: 10 bytes an id from a secure source. Not 10 * count bytes, or unix_ms >= 2^48: CAL_E_ARGUMENT.
 * Timestamps used up: CAL_E_OVERFLOW.
 */
int32_t cal_uuid7(cal_uuid7_state *state, uint64_t unix_ms, const uint8_t *entropy, size_t entropy_size, size_t count,
                  uint8_t *out);

/* ---- SHA-256 (FIPS 180-4) ----------------------------------------------------------------------------- */

/*
 * out[32*i ..] = SHA-256 of data[offsets[i] .. offsets[i+1]); offsets has count + 1 entries and need not
 * start at 0 (sliced Arrow arrays).
 */
int32_t cal_sha256_spans_i64(uint32_t features, const uint8_t *data, size_t size, const int64_t *offsets, size_t count,
                             uint8_t *out);
int32_t cal_sha256_spans_i32(uint32_t features, const uint8_t *data, size_t size, const int32_t *offsets, size_t count,
                             uint8_t *out);

/* ---- token estimates ---------------------------------------------------------------------------------- */

/*
 * tokens[i] = ceil(length of span i * denominator / numerator), exact in integers: the estimate
 * "bytes / divisor" with divisor = numerator / denominator, both in [1, 2^31). size is the length of the data
 * the offsets refer to; the data itself is not read.
 */
int32_t cal_tokens_bytes_spans_i64(size_t size, const int64_t *offsets, size_t count, uint64_t numerator,
                                   uint64_t denominator, int64_t *tokens);
int32_t cal_tokens_bytes_spans_i32(size_t size, const int32_t *offsets, size_t count, uint64_t numerator,
                                   uint64_t denominator, int64_t *tokens);

/* Vocabularies whose counts the calibrated estimate is fitted to. */
enum {
    CAL_VOCABULARY_O200K = 0,
    CAL_VOCABULARY_CL100K = 1,
    CAL_VOCABULARIES = 2
};

/*
 * units[i] = what span i costs by csrc/tokens/machine.h, in 1/256 token: any bytes, UTF-8 or not. A span is measured
 * as a text of its own. An unknown vocabulary: CAL_E_ARGUMENT.
 */
int32_t cal_tokens_calibrated_spans_i64(uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size,
                                        const int64_t *offsets, size_t count, int64_t *units);
int32_t cal_tokens_calibrated_spans_i32(uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size,
                                        const int32_t *offsets, size_t count, int64_t *units);

/* length = how many bytes of data cost at most limit units; a beginning never costs more than the whole. */
int32_t cal_tokens_calibrated_prefix(uint32_t features, int32_t vocabulary, const uint8_t *data, size_t size,
                                     int64_t limit, size_t *length);

/* ---- ranking and filling a token budget --------------------------------------------------------------- */

enum {
    CAL_FILL_INCLUDED = 1,
    CAL_FILL_EXCLUDED_RELEVANCE = 2,
    CAL_FILL_EXCLUDED_SECTION_BUDGET = 3,
    CAL_FILL_EXCLUDED_BUDGET = 4,
    CAL_FILL_EXCLUDED_GROUP = 5
};

typedef struct {
    const int32_t *priority; /* higher first */
    const float *relevance;  /* higher first; finite; -0.0 equals +0.0 */
    const int64_t *age_us;   /* lower (younger) first */
    const int32_t *tokens;   /* >= 0 */
    const uint64_t *tie;     /* u64[n, 2], lower first; after it the lower index */
    const int32_t *group;    /* -1: alone; else in [0, n) */
    const int32_t *section;  /* in [0, sections) */
} cal_rank_columns;

/* Bytes of scratch that cal_rank_and_fill needs. */
size_t cal_rank_scratch(size_t n, size_t sections);

/*
 * order: all n candidates by priority desc, relevance desc, age asc, tie asc, index asc; the members of a
 * group follow its best-ranked member directly, among themselves in the same order.
 * decision[i]: one of CAL_FILL_* for candidate i (by index, not by rank).
 *
 * Filling walks the order once. A unit is a candidate alone or a whole group; it is judged at the place of its
 * best-ranked member:
 *   1. the highest relevance in the unit < min_relevance          -> EXCLUDED_RELEVANCE (every member)
 *   2. cost = sum of tokens + separator_tokens * (m - 1)          for its m members, and besides
 *             separator_tokens       if its section s already holds an item, else section_overhead[s]
 *   3. section_budget[s] >= 0 and section_used[s] + cost > section_budget[s]  -> EXCLUDED_SECTION_BUDGET
 *   4. used + cost > budget                                       -> EXCLUDED_BUDGET
 *   5. otherwise INCLUDED, and cost is added to used and section_used[s]
 * In 3 and 4 the best-ranked member gets the code and the other members EXCLUDED_GROUP. Later, smaller units
 * may still fit. Nothing is charged between sections: what joins them belongs into section_overhead.
 * section_used thus contains overhead and separators, and used is the sum of section_used.
 *
 * Less scratch than cal_rank_scratch says: CAL_E_ARGUMENT.
 */
int32_t cal_rank_and_fill(const cal_rank_columns *columns, size_t n, size_t sections, int64_t budget,
                          const int32_t *section_budget, const int32_t *section_overhead, int32_t separator_tokens,
                          float min_relevance, uint64_t *scratch, size_t scratch_size, int64_t *order,
                          uint8_t *decision);

/* ---- filling a shared budget ------------------------------------------------------------------------- */

/*
 * Candidates that fill sections of one budget, in the order of the caller's places. All lengths are in one unit.
 * candidates: CAL_FILL_ROWS rows of n values, sections: CAL_FILL_SECTION_ROWS rows of s, measures: CAL_FILL_MEASURES.
 * codes[i]: 0 while undecided; CAL_FILL_INCLUDED, CAL_FILL_CUT or CAL_FILL_COMPRESSED for one that is in the budget.
 *
 * Lines of one passage and section share a lead: the first of them costs it, each of the others a line break, and every
 * gap between their numbers the mark of a hole. Anything else costs a separator, or what opens its section.
 */
enum {
    CAL_FILL_SECTION = 0, /* of the candidate, below s */
    CAL_FILL_COST = 1,    /* the length of its text and what always goes with it */
    CAL_FILL_PASSAGE = 2, /* the passage of a line, from 1 on; 0: none */
    CAL_FILL_NUMBER = 3,  /* of the line in its passage */
    CAL_FILL_LEAD = 4,    /* by how much the first line of the passage is longer */
    CAL_FILL_SHORT = 5,   /* the length in place of its cost if it enters compressed; -1: never */
    CAL_FILL_LINK = 6,    /* the next line of its passage, in a ring: cal_fill_link writes it */
    CAL_FILL_ROWS = 7
};
enum {
    CAL_FILL_USED = 0,    /* by what is in the section */
    CAL_FILL_OPENING = 1, /* what the first candidate of the section costs besides */
    CAL_FILL_MOST = 2,    /* what it may use; -1: all there is */
    CAL_FILL_CAP = 3,     /* CAL_WALK_SHARES: what it may use before the others had theirs */
    CAL_FILL_FLOOR = 4,   /* CAL_WALK_SHARES: what is kept for it; 0: nothing */
    CAL_FILL_SECTION_ROWS = 5
};
enum {
    CAL_FILL_SEPARATOR = 0,
    CAL_FILL_LINE = 1,  /* a line break in a passage */
    CAL_FILL_HOLE = 2,  /* the mark of lines left out */
    CAL_FILL_LEAST = 3, /* no candidate is shorter: where less is left, CAL_WALK_SHARES looks at no more of them */
    CAL_FILL_MEASURES = 4
};
enum {
    CAL_FILL_CUT = 6,
    CAL_FILL_COMPRESSED = 12
};
/* How a walk lets candidates in that are undecided yet. */
enum {
    CAL_WALK_WHOLE = 0,      /* as they are */
    CAL_WALK_EITHER = 1,     /* as they are, else compressed */
    CAL_WALK_COMPRESSED = 2, /* compressed */
    /*
     * The floors of the sections in turn; then all as they are, else compressed, up to the cap of their section; then
     * all as they are if a cap kept some out; then compressed. limit does not count.
     */
    CAL_WALK_SHARES = 3
};

/*
 * Links the lines of each passage. heads: room for `passages` values, which is more than any passage's number.
 * A section that is none: CAL_E_SECTION; a passage outside: CAL_E_GROUP; a number of 2^40 or more: CAL_E_OVERFLOW.
 * The two after it check what they read again: a length of 2^40 or more, or a budget of 2^60: CAL_E_OVERFLOW.
 */
int32_t cal_fill_link(int64_t *candidates, size_t n, size_t section_count, int64_t *heads, size_t passages);

/* price: what a candidate of length `cost` takes if it enters next; with `leaving`, what it frees if it leaves. */
int32_t cal_fill_price(const int64_t *candidates, size_t n, int64_t *sections, size_t section_count,
                       const int64_t *measures, uint8_t *codes, size_t place, int64_t cost, int32_t leaving,
                       int64_t *price);

/*
 * Lets candidates enter, in the order of their places: each that fits the room, its section, and limit (-1: none),
 * which bounds its section too. room: what is left of the budget, before and after. compressed: the places of those
 * that entered compressed, in order, with room for n; their number in compressed_count. An unknown way, or a place that
 * is none: CAL_E_ARGUMENT.
 */
int32_t cal_fill_walk(const int64_t *candidates, size_t n, int64_t *sections, size_t section_count,
                      const int64_t *measures, const int64_t *places, size_t count, int32_t how, int64_t limit,
                      uint8_t *codes, int64_t *room, int64_t *compressed, size_t *compressed_count);

/* ---- keywords ----------------------------------------------------------------------------------------- */

/*
 * A dictionary of words, numbered from 0 in the order they were first seen. Word i is
 * arena[starts[i] .. starts[i+1]); slots is an open-addressing table of numbers + 1, 0 where free, its length a power
 * of two and at least twice capacity. The caller zeroes it, and to grow it makes larger buffers and puts each word's
 * number back with cal_words_rehash.
 */
typedef struct {
    uint32_t *slots;
    size_t slot_count;
    uint64_t *starts; /* u64[capacity + 1] */
    uint8_t *arena;
    size_t arena_size;
    size_t capacity;
    size_t count;
    uint64_t seed; /* of the hash: random, so that nobody can write texts whose words all collide */
} cal_words;

/* Fills slots, zeroed before, for the words that starts and arena hold. */
int32_t cal_words_rehash(cal_words *table);

/*
 * Words of UTF-8 spans, as numbers: ids[id_offsets[i] .. id_offsets[i+1]) for span i. A word is
 *   - a run of letters, marks, digits and connecting punctuation (table: csrc/keyword/unicode_words.h), together with
 *     one of ' . - / \ : @ + # & U+2019 or :: between two of them, and a comma between two digits. One or two
 *     + or # may end it (C++, C#). At most 256 bytes; what is longer goes on as another word;
 *   - two neighbouring characters of a script without spaces (Han, kana, Thai, ...), or one that stands alone.
 * Bytes that are not UTF-8 are no part of a word. done: spans that were finished; fewer than count if the dictionary or
 * ids is full. Words of the span that was not finished may be in the dictionary then; calling again with more room is
 * all it needs.
 */
int32_t cal_words_intern(cal_words *table, const uint8_t *data, size_t size, const int64_t *offsets, size_t count,
                         uint32_t *ids, size_t ids_capacity, int64_t *id_offsets, size_t *done);

enum {
    CAL_POSTING_SEGMENT = 65536,   /* entries of a segment */
    CAL_DOCUMENTS_MAX = 268435455, /* 2^28 - 1 */
    CAL_PHRASE_MAX = 32
};

/*
 * Which documents hold which term, and how often. An entry is document << 4 | code; codes 0 to 15 stand for
 * 1 2 3 4 5 6 7 8 10 12 16 24 32 64 128 256, the largest of them that the count reaches. A term's first entry is in
 * first, the others in a chain of slices of 4, 8, 16, ... 1024 entries, each ending with the address of the next.
 * Segments are filled with 0xff by the caller before they are added, and never move.
 *
 * One thread may add while others read with their own copy of this struct, made before: documents below the number
 * they pass never change. This is the one exception to the rule on threads above.
 */
typedef struct {
    uint32_t *const *segments;
    size_t segment_count;
    size_t terms;
    uint32_t *first; /* u32[terms], 0xff bytes where there is none, as in chain */
    uint32_t *chain;
    uint32_t *tail; /* u32[terms]; this and the rest for writers only */
    uint16_t *left; /* u16[terms], zeroed */
    uint8_t *level; /* u8[terms], zeroed */
    uint64_t used;
} cal_postings;

/*
 * Adds documents first_document, first_document + 1, ...: document i holds words[offsets[i] .. offsets[i+1]), and
 * word w the terms term_ids[term_starts[w] .. term_starts[w+1]), each below terms. lengths[i]: how many terms it holds;
 * flags[i]: the flags of its words, word_flags (u8 a word), together.
 * counts (zeroed) and touched are scratch of terms entries. done: documents added; fewer than count if the
 * segments are full. Over CAL_DOCUMENTS_MAX: CAL_E_OVERFLOW.
 */
int32_t cal_postings_add(cal_postings *postings, uint64_t first_document, const uint32_t *words, const int64_t *offsets,
                         size_t count, const uint64_t *term_starts, const uint32_t *term_ids, const uint8_t *word_flags,
                         size_t word_count, uint32_t *counts, uint32_t *touched, uint32_t *lengths, uint8_t *flags,
                         size_t *done);

/* counts[i] = documents below `documents` that mask (u8 a document) lets through and that hold terms[i]. */
int32_t cal_postings_count(const cal_postings *postings, const uint32_t *terms, size_t count, size_t documents,
                           const uint8_t *mask, int64_t *counts);

/* found: the documents, ascending, that cal_postings_count counts for one term. Too little room: CAL_E_ARGUMENT. */
int32_t cal_postings_documents(const cal_postings *postings, uint32_t term, size_t documents, const uint8_t *mask,
                               int64_t *found, size_t capacity, size_t *count);

/*
 * Who stands beside whom, for documents that are turns of conversations: the document said before and after, -1 or
 * anything >= documents for none, each the other's inverse. before NULL: nobody lends. asks: 1 for a document that ends
 * with a question.
 */
typedef struct {
    const int64_t *before;
    const int64_t *after;
    const uint8_t *asks;
    double near;   /* share borrowed from either neighbour */
    double far;    /* and from theirs */
    double answer; /* more from the document before, where that one asks */
} cal_lending;

/*
 * Scores of documents by query words. Word q is the group of terms groups[q] .. groups[q+1], each with a strength
 * (idf, times how near it is to the word), and idfs[q], the word's own. For each document let through:
 *   r = max over the group's terms of strength * ((k1 + 1) * f / (f + k1 * (1 - b + b * (length / mean_length))))
 *   y = r + near * (r of before + r of after) + far * (r of before's before + r of after's after)
 *         + answer * (r of before, where it asks)          summed in this order; documents not let through have r = 0
 * and with saturate > 0   own += idf * r / (r + saturate * idf)   scores += idf * y / (y + saturate * idf),
 * else                    own += r                                scores += y.
 * f is what the code of the term's count stands for. f64 throughout, words in order.
 * found, own and scores have room for all documents. The first `given` of found are the caller's, different ones,
 * whose scores are wanted whatever they are; after them, in no particular order, come the others that mask and kept
 * (u8 a document; may be mask itself) let through and whose score is above 0. found_count: how many there are, those
 * of the caller included. Work grows with the postings of the terms, not with the documents: reached (f64), places and
 * touched (u32) are scratch of a document each, zeroed, and left zeroed.
 */
int32_t cal_keyword_scores(const cal_postings *postings, const int64_t *groups, const uint32_t *terms,
                           const double *strengths, const double *idfs, size_t words, size_t documents,
                           const uint8_t *mask, const uint8_t *kept, const uint32_t *lengths, double k1, double b,
                           double mean_length, double saturate, const cal_lending *lending, double *reached,
                           uint32_t *places, uint32_t *touched, size_t given, int64_t *found, double *own,
                           double *scores, size_t *found_count);

/*
 * The best k of `count` scores that, rounded to f32, are above 0: their places and scores by score descending, then
 * tie, then place, as in "Order of results". Score i is that of row rows[i], whose tie is at 2 * rows[i]; rows NULL:
 * row i. ids and best hold k entries.
 */
int32_t cal_best_scores(const double *scores, size_t count, const int64_t *rows, const uint64_t *tie, size_t k,
                        int64_t *ids, float *best, size_t *found);

/* What a part of a joined score says of candidate i, whose row is r, all in f64. */
enum {
    CAL_PART_VALUES = 0,    /* scores[i] */
    CAL_PART_QUOTIENT = 1,  /* scores[i] / by */
    CAL_PART_LENT = 2,      /* scores[i] / by - less[i] / by */
    CAL_PART_STRETCHED = 3, /* (near[i] - low) / by below near_count, 0 from there on */
    CAL_PART_FLAGGED = 4    /* 1 where flags[r] has a bit of flag, else 0 */
};

/* A part and its share of the sum; what its kind does not read may be NULL. */
typedef struct {
    int32_t how;
    uint32_t flag;
    double share;
    double by;
    double low;
    const double *scores; /* a candidate, as less */
    const double *less;
    const float *near;
    size_t near_count;    /* at most the candidates */
    const uint8_t *flags; /* a row */
} cal_part;

/*
 * Joins `count` candidates of a search: scores[i] = 0 + share * part + share * part ..., in the order of the parts,
 * each operation rounded to f64, and no less than `least`; 0 where inside (u8 a row, NULL: all) says 0 of row rows[i].
 * Then as cal_best_scores of these scores: ids, best (k entries) and found; told (part_count * k entries) has at
 * p * found + j what part p gave to the j-th best: share * part. A row outside row_count, a part of no kind, or more
 * near than candidates: CAL_E_ARGUMENT.
 */
int32_t cal_join(const cal_part *parts, size_t part_count, size_t count, const int64_t *rows, size_t row_count,
                 const uint8_t *inside, double least, const uint64_t *tie, size_t k, double *scores, int64_t *ids,
                 float *best, double *told, size_t *found);

/*
 * What each part gives to the candidates at some places, 0 for a place below 0: told[p * place_count + j]. A place
 * beyond the candidates: CAL_E_ARGUMENT.
 */
int32_t cal_join_told(const cal_part *parts, size_t part_count, size_t count, const int64_t *rows, size_t row_count,
                      const int64_t *places, size_t place_count, double *told);

/*
 * Words as bytes: seven bits a byte, lowest first, the high bit set where more follow; at most 5 bytes a word. Span i,
 * words[offsets[i] .. offsets[i+1]), becomes packed[sizes[i] .. sizes[i+1]). Too little room: CAL_E_ARGUMENT.
 */
int32_t cal_words_pack(const uint32_t *words, const int64_t *offsets, size_t count, uint8_t *packed, size_t capacity,
                       int64_t *sizes);

/*
 * matches[i] = how often phrase (numbers of parts) stands in document i, whose packed words are sizes[i] bytes from
 * documents[i] on; word w is the parts parts[part_starts[w] .. part_starts[w+1]) in a row. phrase_length in
 * [1, CAL_PHRASE_MAX].
 */
int32_t cal_phrase_matches(const uint8_t *const *documents, const int64_t *sizes, size_t count,
                           const uint64_t *part_starts, const uint32_t *parts, size_t word_count,
                           const uint32_t *phrase, size_t phrase_length, uint32_t *matches);

/* ---- binary COPY of PostgreSQL ------------------------------------------------------------------------- */

/*
 * Rows between Arrow buffers and the tuples of COPY ... WITH (FORMAT binary): a count of fields, then each field's
 * length and bytes, numbers in network order. The header before the first tuple is the caller's. Source: PostgreSQL's
 * documentation of COPY, the *_send and *_recv functions of its types, and pgvector's.
 */
enum {
    CAL_COPY_BOOL = 0, /* Arrow: bits */
    CAL_COPY_INT2 = 1, /* i16, and so on */
    CAL_COPY_INT4 = 2,
    CAL_COPY_INT8 = 3,
    CAL_COPY_FLOAT4 = 4,
    CAL_COPY_FLOAT8 = 5,
    CAL_COPY_UUID = 6,        /* 16 bytes */
    CAL_COPY_INSTANT = 7,     /* i64 microseconds since 1970; TIMESTAMPTZ counts since 2000 */
    CAL_COPY_BYTES = 8,       /* spans of bytes, as in the next three */
    CAL_COPY_TEXT = 9,        /* UTF-8 without NUL; json too */
    CAL_COPY_JSONB = 10,      /* the same, with a version before it */
    CAL_COPY_TEXT_ARRAY = 11, /* spans of items, which are spans of UTF-8 without NUL */
    CAL_COPY_UUID_ARRAY = 12, /* spans of 16 bytes an element */
    CAL_COPY_VECTOR = 13,     /* spans of f32; pgvector */
    CAL_COPY_HALFVEC = 14     /* the same, rounded to half precision, ties to even */
};

enum {
    CAL_COPY_DIMENSIONS_MAX = 16000 /* of a vector */
};

/* Why a value cannot be copied, or bytes are no tuples. */
enum {
    CAL_COPY_MISSING = 1,    /* nothing where there must be a value */
    CAL_COPY_UTF8 = 2,       /* text that is not UTF-8 */
    CAL_COPY_NUL = 3,        /* text with a NUL */
    CAL_COPY_RANGE = 4,      /* outside what the type holds */
    CAL_COPY_SIZE = 5,       /* longer than 2^30 - 1 bytes */
    CAL_COPY_DIMENSIONS = 6, /* not as many as asked for, none, or more than there may be */
    CAL_COPY_NON_FINITE = 7, /* a vector with NaN or infinity */
    CAL_COPY_SPAN = 8,       /* offsets decrease, are negative, or pass the end */
    CAL_COPY_ITEM = 9,       /* a missing element of an array */
    CAL_COPY_FIELDS = 10,    /* a tuple of another number of fields */
    CAL_COPY_LENGTH = 11,    /* a field whose length its type cannot have */
    CAL_COPY_ARRAY = 12,     /* no array of one dimension that starts at 1, or one of another type */
    CAL_COPY_VERSION = 13    /* a form of jsonb, or of a vector, that is not known */
};

typedef struct {
    uint64_t row;
    uint64_t column;
    uint64_t reason; /* CAL_COPY_MISSING and on */
} cal_copy_fault;

/*
 * One column as Arrow has it. Span i is [offsets[i], offsets[i+1]) in elements, or width elements from i * width on
 * where both offsets are NULL. An element is a byte, a f32, a uuid, or for a TEXT_ARRAY an item.
 */
typedef struct {
    uint64_t kind;
    uint64_t nullable;   /* 0: a missing value is a fault */
    uint64_t dimensions; /* of each vector; 0 for any */
    uint64_t width;
    uint64_t first;          /* bit of row 0 in validity, and in the values of a BOOL */
    uint64_t size;           /* bytes of values; for a BOOL whole bytes of bits */
    const uint8_t *validity; /* bits; NULL: no value is missing */
    const uint8_t *values;
    const int32_t *offsets32;
    const int64_t *offsets64;
    uint64_t item_count; /* TEXT_ARRAY, whose items have one offset more, and UUID_ARRAY */
    uint64_t item_first;
    const uint8_t *item_validity;
    const int32_t *items32;
    const int64_t *items64;
} cal_copy_column;

/*
 * Tuples of rows [from, rows), as many whole ones as capacity holds: *done rows more, *size bytes. *needed: the bytes
 * of the first tuple that was not written, 0 if all were. CAL_E_COPY for a value that cannot be sent.
 */
int32_t cal_copy_encode(const cal_copy_column *columns, size_t column_count, size_t from, size_t rows, uint8_t *out,
                        size_t capacity, size_t *done, size_t *size, size_t *needed, cal_copy_fault *fault);

/*
 * Where a column is decoded to: Arrow's buffers. offsets (rows + 1) where values are spans, else NULL; items
 * (item_count + 1) for a TEXT_ARRAY. Where a value is missing, values hold zeros or an empty span.
 */
typedef struct {
    uint64_t kind;
    uint64_t dimensions; /* of each vector; 0 for any */
    uint64_t size;       /* bytes of values */
    uint64_t item_count;
    uint64_t missing;  /* returned: how many rows have no value */
    uint8_t *validity; /* u8[(rows + 7) / 8] */
    uint8_t *values;
    int32_t *offsets;
    int32_t *items;
} cal_copy_buffer;

/*
 * What the whole tuples in data hold, at most rows_max: *rows of them in *consumed bytes; *ended is 1 if the trailer
 * followed, which is consumed too. sizes[2*c], sizes[2*c+1]: bytes of values and items of column c, of which only kind
 * and dimensions are read. CAL_E_COPY for bytes that no server sends; size over INT32_MAX: CAL_E_ARGUMENT.
 */
int32_t cal_copy_scan(const uint8_t *data, size_t size, const cal_copy_buffer *columns, size_t column_count,
                      size_t rows_max, size_t *rows, size_t *consumed, int32_t *ended, uint64_t *sizes,
                      cal_copy_fault *fault);

/*
 * Decodes `rows` tuples into buffers of at least the sizes that cal_copy_scan found; smaller ones, or fewer tuples in
 * data: CAL_E_ARGUMENT.
 */
int32_t cal_copy_decode(const uint8_t *data, size_t size, cal_copy_buffer *columns, size_t column_count, size_t rows,
                        cal_copy_fault *fault);

/* ---- Files in a forked child -------------------------------------------------------------------------- */

/*
 * SQLite finds what it knows of an open file, locks included, by device and inode. A forked child inherits that, but no
 * lock of its parent: a child that opened a file its parent has open would take the parent's locks for its own. With
 * these in the place of fstat and stat (sqlite3_vfs.xSetSystemCall), and a mark, it finds nothing, and begins anew.
 * status: struct stat of the C library; they answer as fstat and stat do, not with a status. The inode number is XORed
 * with the mark, else they are fstat and stat.
 */
int32_t cal_file_fstat(int32_t handle, void *status);
int32_t cal_file_stat(const char *path, void *status);

/* Call it right after a fork, before a second thread. 0: none. */
int32_t cal_file_mark(uint64_t value);

/* cdef end */

#endif
