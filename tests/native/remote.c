/*
 * Serves calls of the native ABI over standard input and output, so that kernels compiled for another CPU are held to
 * the same tests as those of this one. tests/support/kernels/remote.py speaks the other end and writes calls.h.
 *
 * A request is 64-bit words: function, arguments, blocks, links, at_end; size, residue and returned of each block;
 * bits and block + 1 (0: none) of each argument; block, offset and target of each link, a pointer within a block; then
 * the bytes of all blocks. The answer is the result and the bytes of the blocks to be returned.
 *
 * Every block ends where an unreadable page begins, or, unless at_end, at most 63 bytes before it, at an address with
 * the given residue modulo 64. Bytes around it are marked; writing there, or reading the page, ends the process.
 */
#include "caliber.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCKS 1024
#define ARGUMENTS 32
#define LINE 64
#define MARK 0xA5

typedef struct {
    uint64_t bits;
    void *pointer;
} argument;

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(EXIT_FAILURE);
}

#include "calls.h" /* static uint64_t call(uint64_t function, const argument *a) */

typedef struct {
    uint8_t *room, *end; /* what may be used: the page at end is unreadable */
    uint8_t *base;
    size_t size;
    int returned;
} block;

static block blocks[BLOCKS];

/* Returns 0 if the input ends before the first byte. */
static int take(void *to, size_t size) {
    uint8_t *at = to;
    for (size_t left = size; left > 0;) {
        const ssize_t got = read(STDIN_FILENO, at, left);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            if (got == 0 && left == size) {
                return 0;
            }
            fail("the input ended within a request");
        }
        at += got;
        left -= (size_t)got;
    }
    return 1;
}

static uint64_t word(void) {
    uint64_t value;
    if (!take(&value, sizeof value)) {
        fail("the input ended within a request");
    }
    return value;
}

static void give(const void *from, size_t size) {
    const uint8_t *at = from;
    while (size > 0) {
        const ssize_t put = write(STDOUT_FILENO, at, size);
        if (put < 0 && errno != EINTR) {
            fail("the answer could not be written");
        }
        if (put > 0) {
            at += put;
            size -= (size_t)put;
        }
    }
}

/* Room for size bytes, a line to align them, and a line before them. */
static void make_room(block *b, size_t size) {
    if (b->room && (size_t)(b->end - b->room) >= size + 2 * LINE) {
        return;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t length = (2 * size + 2 * LINE + page - 1) / page * page;
    if (b->room) {
        munmap(b->room, (size_t)(b->end - b->room) + page);
    }
    uint8_t *room = mmap(NULL, length + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || mprotect(room + length, page, PROT_NONE)) {
        fail("no memory for a block");
    }
    b->room = room;
    b->end = room + length;
}

static void place(block *b, size_t residue, uint64_t at_end) {
    b->base = b->end - b->size;
    if (!at_end) {
        b->base -= ((uintptr_t)b->base - residue) % LINE;
    }
    memset(b->base - LINE, MARK, LINE);
    memset(b->base + b->size, MARK, (size_t)(b->end - b->base) - b->size);
}

static void check_marks(const block *b) {
    for (const uint8_t *p = b->base - LINE; p < b->end; p++) {
        if (p == b->base) {
            p += b->size;
            if (p == b->end) {
                break;
            }
        }
        if (*p != MARK) {
            fail("a kernel wrote outside of its buffers");
        }
    }
}

static void serve(uint64_t function) {
    const uint64_t argument_count = word(), block_count = word(), link_count = word(), at_end = word();
    if (argument_count > ARGUMENTS || block_count > BLOCKS) {
        fail("a request is too large");
    }
    for (size_t i = 0; i < block_count; i++) {
        block *b = &blocks[i];
        b->size = word();
        make_room(b, b->size);
        place(b, word(), at_end);
        b->returned = word() != 0;
    }
    argument arguments[ARGUMENTS];
    for (size_t i = 0; i < argument_count; i++) {
        arguments[i].bits = word();
        const uint64_t at = word();
        arguments[i].pointer = at ? blocks[at - 1].base : NULL;
    }
    uint64_t *links = malloc(3 * sizeof(uint64_t) * (link_count + 1));
    if (!links || (link_count > 0 && !take(links, 3 * sizeof(uint64_t) * link_count))) {
        fail("no links");
    }
    for (size_t i = 0; i < block_count; i++) {
        if (blocks[i].size > 0 && !take(blocks[i].base, blocks[i].size)) {
            fail("a block is missing");
        }
    }
    for (size_t i = 0; i < link_count; i++) {
        void *target = blocks[links[3 * i + 2]].base;
        memcpy(blocks[links[3 * i]].base + links[3 * i + 1], &target, sizeof target);
    }
    free(links);
    const uint64_t result = call(function, arguments);
    for (size_t i = 0; i < block_count; i++) {
        check_marks(&blocks[i]);
    }
    give(&result, sizeof result);
    for (size_t i = 0; i < block_count; i++) {
        if (blocks[i].returned) {
            give(blocks[i].base, blocks[i].size);
        }
    }
}

int main(void) {
    uint64_t function;
    while (take(&function, sizeof function)) {
        serve(function);
    }
    return EXIT_SUCCESS;
}
