/*
 * Runs a fuzz target without a fuzzer: the files named, then inputs made from a seed. So every compiler can run the
 * targets, and the same seed runs the same inputs.
 *
 * Usage: TARGET [-runs=N] [-seed=N] [FILE...]
 */
#include "harness.h"

#define MOST_BYTES 4096

static size_t read_file(const char *path, uint8_t *data) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    const size_t size = fread(data, 1, MOST_BYTES, file);
    fclose(file);
    return size;
}

/* Random bytes, few different bytes, or runs of one byte; short more often than long. */
static size_t make_input(uint64_t *state, uint8_t *data) {
    const uint64_t kind = next_random(state);
    const size_t most = (size_t)1 << (kind >> 8) % 13;
    const size_t size = (size_t)(next_random(state) % (most + 1));
    uint8_t last = 0;
    for (size_t i = 0; i < size; i++) {
        const uint64_t bits = next_random(state);
        switch (kind % 4) {
        case 0:
            data[i] = (uint8_t)bits;
            break;
        case 1:
            data[i] = (uint8_t)(bits % 3 ? bits >> 8 & 15 : bits >> 8);
            break;
        case 2:
            data[i] = last = bits % 8 ? last : (uint8_t)(bits >> 8);
            break;
        default:
            data[i] = (uint8_t)(bits % 2 ? 0 : bits >> 8);
        }
    }
    return size;
}

int main(int count, char **arguments) {
    static uint8_t data[MOST_BYTES];
    unsigned long runs = 0;
    uint64_t seed = 1;
    unsigned long done = 0;
    for (int i = 1; i < count; i++) {
        if (strncmp(arguments[i], "-runs=", 6) == 0) {
            runs = strtoul(arguments[i] + 6, NULL, 10);
        } else if (strncmp(arguments[i], "-seed=", 6) == 0) {
            seed = strtoull(arguments[i] + 6, NULL, 10);
        } else {
            const size_t size = read_file(arguments[i], data);
            LLVMFuzzerTestOneInput(data, size);
            done++;
        }
    }
    for (unsigned long run = 0; run < runs; run++, done++) {
        uint64_t state = seed * UINT64_C(0x100000001B3) + run;
        const size_t size = make_input(&state, data);
        /* In an allocation of its own, so that a target that reads past its input is seen too. */
        uint8_t *input_of_run = malloc(size);
        CHECK(input_of_run || size == 0);
        if (size > 0) {
            memcpy(input_of_run, data, size);
        }
        LLVMFuzzerTestOneInput(input_of_run, size);
        free(input_of_run);
    }
    printf("%lu inputs\n", done);
    return 0;
}
