/* Ranking candidates and filling a token budget; the rules are in caliber.h. */
#include "../internal.h"

#include <math.h>
#include <string.h>

#define NONE (-1)

/* Orders f32 as unsigned, lower first, with -0.0 equal to +0.0. */
static uint32_t ascending_f32(float x) {
    const float positive_zero = x + 0.0F; /* turns -0.0 into +0.0 */
    uint32_t bits;
    memcpy(&bits, &positive_zero, sizeof bits);
    return bits & UINT32_C(0x80000000) ? ~bits : bits | UINT32_C(0x80000000);
}

static uint32_t ascending_i32(int32_t x) { return (uint32_t)x ^ UINT32_C(0x80000000); }
static uint64_t ascending_i64(int64_t x) { return (uint64_t)x ^ (UINT64_C(1) << 63); }

/* A candidate while it is sorted: by one of its keys at a time. */
typedef struct {
    uint64_t key;
    int64_t index;
} entry;

enum {
    BY_RANK,
    BY_AGE,
    BY_TIE_HIGH,
    BY_TIE_LOW,
    KEYS
};

/* The keys that decide order, one after the other; each lower first. Index decides last, as every step is stable. */
static uint64_t key_of(const cal_rank_columns *columns, int key, int64_t i) {
    switch (key) {
    case BY_RANK:
        return ((uint64_t)~ascending_i32(columns->priority[i]) << 32) | (uint32_t)~ascending_f32(columns->relevance[i]);
    case BY_AGE:
        return ascending_i64(columns->age_us[i]);
    case BY_TIE_HIGH:
        return columns->tie[2 * i];
    default:
        return columns->tie[2 * i + 1];
    }
}

static void insert_sorted(entry *entries, size_t n) {
    for (size_t i = 1; i < n; i++) {
        const entry moved = entries[i];
        size_t hole = i;
        for (; hole > 0 && entries[hole - 1].key > moved.key; hole--) {
            entries[hole] = entries[hole - 1];
        }
        entries[hole] = moved;
    }
}

#define SHORT_RUN 24 /* up to here insertion beats counting digits */
#define MOST_BITS 11 /* of a digit: its counts stay in the first cache */

/*
 * Stable radix sort by key, lowest digit first. A digit begins at the lowest bit in which keys still differ, so what
 * all keys share (few priorities, relevances between 0 and 1, ids of one day) costs no pass.
 */
static void sort_by_key(entry *entries, entry *spare, size_t n) {
    if (n <= SHORT_RUN) {
        insert_sorted(entries, n);
        return;
    }
    uint64_t differing = 0;
    for (size_t i = 1; i < n; i++) {
        differing |= entries[i].key ^ entries[0].key;
    }
    const unsigned bits = n < 2048 ? 8 : MOST_BITS;
    const size_t digits = (size_t)1 << bits;
    entry *from = entries, *to = spare;
    while (differing) {
        const unsigned shift = (unsigned)__builtin_ctzll(differing);
        size_t starts[(size_t)1 << MOST_BITS];
        memset(starts, 0, digits * sizeof starts[0]);
        for (size_t i = 0; i < n; i++) {
            starts[from[i].key >> shift & (digits - 1)]++;
        }
        size_t start = 0;
        for (size_t d = 0; d < digits; d++) {
            const size_t count = starts[d];
            starts[d] = start;
            start += count;
        }
        for (size_t i = 0; i < n; i++) {
            to[starts[from[i].key >> shift & (digits - 1)]++] = from[i];
        }
        entry *const swapped = from;
        from = to;
        to = swapped;
        differing = shift + bits < 64 ? differing >> (shift + bits) << (shift + bits) : 0;
    }
    if (from != entries) {
        memcpy(entries, from, n * sizeof *from);
    }
}

/* Sorts by the keys from `key` on: by it, then each run of equals by the next. At most KEYS calls deep. */
static void sort(const cal_rank_columns *columns, int key, entry *entries, entry *spare, size_t n) {
    for (size_t i = 0; i < n; i++) {
        entries[i].key = key_of(columns, key, entries[i].index);
    }
    sort_by_key(entries, spare, n);
    if (key + 1 == KEYS) {
        return;
    }
    for (size_t start = 0, end; start < n; start = end) {
        for (end = start + 1; end < n && entries[end].key == entries[start].key; end++) {
        }
        if (end - start > 1) {
            sort(columns, key + 1, entries + start, spare, end - start);
        }
    }
}

static int32_t check(const cal_rank_columns *columns, size_t n, size_t sections, int64_t budget,
                     const int32_t *section_budget, const int32_t *section_overhead, int32_t separator_tokens,
                     int *any_group) {
    const uint32_t most = UINT32_C(0x7FFFFFFF);
    const uint32_t most_sections = sections > most ? most + 1 : (uint32_t)sections;
    const uint32_t most_groups = n > most ? most + 1 : (uint32_t)n; /* of group + 1, which is 0 for none */
    if (budget < 0 || separator_tokens < 0) {
        return CAL_E_NEGATIVE;
    }
    for (size_t s = 0; s < sections; s++) {
        if (section_budget[s] < -1 || section_overhead[s] < 0) {
            return CAL_E_NEGATIVE;
        }
    }
    /* All rows without a branch first; which one is wrong matters only if one is. */
    uint32_t wrong = 0, grouped = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t exponent = UINT32_C(0x7F800000);
        uint32_t bits;
        memcpy(&bits, &columns->relevance[i], sizeof bits);
        wrong |= (uint32_t)((bits & exponent) == exponent) | (uint32_t)(columns->tokens[i] < 0) |
                 (uint32_t)((uint32_t)columns->section[i] >= most_sections) |
                 (uint32_t)((uint32_t)columns->group[i] + 1 > most_groups);
        grouped |= (uint32_t)(columns->group[i] != NONE);
    }
    *any_group = grouped != 0;
    for (size_t i = 0; wrong && i < n; i++) {
        if (!isfinite(columns->relevance[i])) {
            return CAL_E_NON_FINITE;
        }
        if (columns->tokens[i] < 0) {
            return CAL_E_NEGATIVE;
        }
        if (columns->section[i] < 0 || (size_t)columns->section[i] >= sections) {
            return CAL_E_SECTION;
        }
        if (columns->group[i] < NONE || (columns->group[i] != NONE && (size_t)columns->group[i] >= n)) {
            return CAL_E_GROUP;
        }
    }
    return CAL_OK;
}

/* group_head[g] = the best-ranked member of g, group_next[i] = the member ranked next; NONE ends both. */
static int32_t link_groups(const cal_rank_columns *columns, const entry *sorted, size_t n, int64_t *group_head,
                           int64_t *group_next) {
    for (size_t i = 0; i < n; i++) {
        group_head[i] = NONE;
    }
    for (size_t r = n; r-- > 0;) {
        const int64_t i = sorted[r].index;
        const int32_t group = columns->group[i];
        if (group == NONE) {
            group_next[i] = NONE;
            continue;
        }
        const int64_t after = group_head[group];
        if (after != NONE && columns->section[after] != columns->section[i]) {
            return CAL_E_GROUP;
        }
        group_next[i] = after;
        group_head[group] = i;
    }
    return CAL_OK;
}

/* What the walk in order has taken so far, and by which limits. */
typedef struct {
    const cal_rank_columns *columns;
    const int32_t *section_budget, *section_overhead;
    int64_t *section_used; /* NONE: nothing in it yet */
    int64_t budget, used;
    int32_t separator_tokens;
    float min_relevance;
} filling;

/* Judges a unit of some cost (its members and what parts them) and charges what goes in. */
static uint8_t judge(filling *f, int32_t section, float best, int64_t cost) {
    const int64_t in_section = f->section_used[section];
    const int64_t before = in_section == NONE ? 0 : in_section;
    cost += in_section == NONE ? f->section_overhead[section] : f->separator_tokens;
    if (best < f->min_relevance) {
        return CAL_FILL_EXCLUDED_RELEVANCE;
    }
    if (f->section_budget[section] >= 0 && before + cost > f->section_budget[section]) {
        return CAL_FILL_EXCLUDED_SECTION_BUDGET;
    }
    if (f->used + cost > f->budget) {
        return CAL_FILL_EXCLUDED_BUDGET;
    }
    f->used += cost;
    f->section_used[section] = before + cost;
    return CAL_FILL_INCLUDED;
}

static void fill_alone(filling *f, const entry *sorted, size_t n, int64_t *order, uint8_t *decision) {
    const cal_rank_columns *columns = f->columns;
    for (size_t r = 0; r < n; r++) {
        const int64_t i = sorted[r].index;
        order[r] = i;
        decision[i] = judge(f, columns->section[i], columns->relevance[i], columns->tokens[i]);
    }
}

static void fill_groups(filling *f, const entry *sorted, size_t n, const int64_t *group_head, const int64_t *group_next,
                        int64_t *order, uint8_t *decision) {
    const cal_rank_columns *columns = f->columns;
    size_t placed = 0;
    for (size_t r = 0; r < n; r++) {
        const int64_t first = sorted[r].index;
        const int32_t group = columns->group[first];
        if (group != NONE && group_head[group] != first) {
            continue; /* decided with the best-ranked member of its group */
        }
        float best = columns->relevance[first];
        int64_t cost = 0, members = 0;
        for (int64_t i = first; i != NONE; i = group_next[i]) {
            if (columns->relevance[i] > best) {
                best = columns->relevance[i];
            }
            cost += columns->tokens[i];
            members++;
            order[placed++] = i;
        }
        cost += (members - 1) * (int64_t)f->separator_tokens;
        const uint8_t code = judge(f, columns->section[first], best, cost);
        const int refused = code == CAL_FILL_EXCLUDED_SECTION_BUDGET || code == CAL_FILL_EXCLUDED_BUDGET;
        decision[first] = code;
        for (int64_t i = group_next[first]; i != NONE; i = group_next[i]) {
            decision[i] = refused ? CAL_FILL_EXCLUDED_GROUP : code;
        }
    }
}

size_t cal_rank_scratch(size_t n, size_t sections) {
    const size_t each = 2 * sizeof(entry) + 2 * sizeof(int64_t);
    if (n > SIZE_MAX / 4 / each || sections > SIZE_MAX / 4 / sizeof(int64_t)) {
        return SIZE_MAX;
    }
    return n * each + sections * sizeof(int64_t);
}

int32_t cal_rank_and_fill(const cal_rank_columns *columns, size_t n, size_t sections, int64_t budget,
                          const int32_t *section_budget, const int32_t *section_overhead, int32_t separator_tokens,
                          float min_relevance, uint64_t *scratch, size_t scratch_size, int64_t *order,
                          uint8_t *decision) {
    int any_group;
    int32_t status =
        check(columns, n, sections, budget, section_budget, section_overhead, separator_tokens, &any_group);
    if (status != CAL_OK) {
        return status;
    }
    if (isnan(min_relevance) || scratch_size < cal_rank_scratch(n, sections)) {
        return CAL_E_ARGUMENT;
    }
    entry *entries = (entry *)(void *)scratch;
    int64_t *group_head = (int64_t *)(void *)(entries + 2 * n);
    int64_t *group_next = group_head + n;
    filling f = {columns, section_budget, section_overhead, group_next + n, budget, 0, separator_tokens, min_relevance};
    for (size_t s = 0; s < sections; s++) {
        f.section_used[s] = NONE;
    }
    for (size_t i = 0; i < n; i++) {
        entries[i].index = (int64_t)i;
    }
    sort(columns, BY_RANK, entries, entries + n, n);
    if (!any_group) {
        fill_alone(&f, entries, n, order, decision);
        return CAL_OK;
    }
    status = link_groups(columns, entries, n, group_head, group_next);
    if (status == CAL_OK) {
        fill_groups(&f, entries, n, group_head, group_next, order, decision);
    }
    return status;
}
