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

static int precedes(const uint64_t *tie, const cal_rank_entry *a, const cal_rank_entry *b) {
    if (a->rank != b->rank) {
        return a->rank < b->rank;
    }
    if (a->age != b->age) {
        return a->age < b->age;
    }
    const uint64_t *x = tie + 2 * a->index, *y = tie + 2 * b->index;
    if (x[0] != y[0]) {
        return x[0] < y[0];
    }
    if (x[1] != y[1]) {
        return x[1] < y[1];
    }
    return a->index < b->index;
}

/* Bottom-up merge sort; returns whichever half of the scratch holds the result. */
static cal_rank_entry *sort(const uint64_t *tie, cal_rank_entry *from, cal_rank_entry *to, size_t n) {
    const size_t run = 8; /* short runs are sorted by insertion first */
    for (size_t start = 0; start < n; start += run) {
        const size_t end = n - start < run ? n : start + run;
        for (size_t i = start + 1; i < end; i++) {
            const cal_rank_entry moved = from[i];
            size_t hole = i;
            for (; hole > start && precedes(tie, &moved, &from[hole - 1]); hole--) {
                from[hole] = from[hole - 1];
            }
            from[hole] = moved;
        }
    }
    for (size_t width = run; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            const size_t middle = n - start < width ? n : start + width;
            const size_t end = n - middle < width ? n : middle + width;
            size_t left = start, right = middle, out = start;
            while (left < middle && right < end) {
                to[out++] = precedes(tie, &from[right], &from[left]) ? from[right++] : from[left++];
            }
            memcpy(to + out, from + left, (middle - left) * sizeof *to);
            out += middle - left;
            memcpy(to + out, from + right, (end - right) * sizeof *to);
        }
        cal_rank_entry *swapped = from;
        from = to;
        to = swapped;
    }
    return from;
}

static int32_t check(const cal_rank_columns *columns, size_t n, size_t sections, int64_t budget,
                     const int32_t *section_budget, const int32_t *section_overhead,
                     int32_t separator_tokens) {
    if (budget < 0 || separator_tokens < 0) {
        return CAL_E_NEGATIVE;
    }
    for (size_t s = 0; s < sections; s++) {
        if (section_budget[s] < -1 || section_overhead[s] < 0) {
            return CAL_E_NEGATIVE;
        }
    }
    for (size_t i = 0; i < n; i++) {
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
static int32_t link_groups(const cal_rank_columns *columns, const cal_rank_entry *sorted, size_t n,
                           int64_t *group_head, int64_t *group_next) {
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

int32_t cal_rank_and_fill(const cal_rank_columns *columns, size_t n, size_t sections, int64_t budget,
                          const int32_t *section_budget, const int32_t *section_overhead,
                          int32_t separator_tokens, float min_relevance, cal_rank_entry *entries,
                          int64_t *group_head, int64_t *group_next, int64_t *section_used, int64_t *order,
                          uint8_t *decision) {
    int32_t status = check(columns, n, sections, budget, section_budget, section_overhead, separator_tokens);
    if (status != CAL_OK) {
        return status;
    }
    if (isnan(min_relevance)) {
        return CAL_E_ARGUMENT;
    }
    for (size_t i = 0; i < n; i++) {
        entries[i].rank = ((uint64_t)~ascending_i32(columns->priority[i]) << 32) |
                          (uint32_t)~ascending_f32(columns->relevance[i]);
        entries[i].age = ascending_i64(columns->age_us[i]);
        entries[i].index = (int64_t)i;
    }
    const cal_rank_entry *sorted = sort(columns->tie, entries, entries + n, n);
    status = link_groups(columns, sorted, n, group_head, group_next);
    if (status != CAL_OK) {
        return status;
    }

    for (size_t s = 0; s < sections; s++) {
        section_used[s] = NONE; /* nothing in it yet */
    }
    int64_t used = 0;
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
        const int32_t section = columns->section[first];
        const int64_t section_before = section_used[section] == NONE ? 0 : section_used[section];
        cost += (members - 1) * (int64_t)separator_tokens;
        cost += section_used[section] == NONE ? section_overhead[section] : separator_tokens;

        uint8_t code = CAL_FILL_INCLUDED, others = CAL_FILL_INCLUDED;
        if (best < min_relevance) {
            code = others = CAL_FILL_EXCLUDED_RELEVANCE;
        } else if (section_budget[section] >= 0 && section_before + cost > section_budget[section]) {
            code = CAL_FILL_EXCLUDED_SECTION_BUDGET;
            others = CAL_FILL_EXCLUDED_GROUP;
        } else if (used + cost > budget) {
            code = CAL_FILL_EXCLUDED_BUDGET;
            others = CAL_FILL_EXCLUDED_GROUP;
        } else {
            used += cost;
            section_used[section] = section_before + cost;
        }
        decision[first] = code;
        for (int64_t i = group_next[first]; i != NONE; i = group_next[i]) {
            decision[i] = others;
        }
    }
    return CAL_OK;
}
