/*
 * A plain read: the words of a buffer, added up. What one core gets from this is the roof over everything that has to
 * read as many bytes. With ahead > 0 it asks for the words that many bytes further on, since the processor's own
 * prefetcher stops at each page.
 */
#include <stddef.h>
#include <stdint.h>

uint64_t read_words(const uint64_t *words, size_t count, size_t ahead) {
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + 8 <= count; i += 8) {
        if (ahead) {
            __builtin_prefetch((const char *)(words + i) + ahead);
        }
        for (size_t j = 0; j < 8; j++) {
            sums[j] += words[i + j];
        }
    }
    uint64_t sum = 0;
    for (size_t j = 0; j < 8; j++) {
        sum += sums[j];
    }
    return sum;
}
