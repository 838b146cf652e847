/* Whether text is what PostgreSQL takes: UTF-8 (RFC 3629) without NUL. */
#include "copy.h"

#define HIGH_BITS UINT64_C(0x8080808080808080)
#define LOW_BITS UINT64_C(0x0101010101010101)

/* How many bytes of ASCII without NUL there are from p on, to the last whole eight. */
static size_t plain(const uint8_t *p, size_t size) {
    size_t at = 0;
    for (; size - at >= 8; at += 8) {
        uint64_t eight;
        memcpy(&eight, p + at, sizeof eight);
        /* The second term has a high bit where a byte is 0, and perhaps in a byte after one that is. */
        if (((eight | (eight - LOW_BITS)) & HIGH_BITS) != 0) {
            break;
        }
    }
    return at;
}

/* Length of the character at p, 0 if there is none: shortest form, no surrogates, up to U+10FFFF. */
static size_t character(const uint8_t *p, size_t left) {
    const uint8_t lead = p[0];
    if (lead < 0x80) {
        return 1;
    }
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || left < length) {
        return 0;
    }
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return length;
}

uint64_t cal_copy_text(const uint8_t *text, size_t size) {
    for (size_t at = 0; at < size;) {
        at += plain(text + at, size - at);
        /* Where a byte of eight is not plain, all eight are looked at before the next eight. */
        for (size_t end = size - at < 8 ? size : at + 8; at < end;) {
            if (text[at] == 0) {
                return CAL_COPY_NUL;
            }
            const size_t length = character(text + at, size - at);
            if (length == 0) {
                return CAL_COPY_UTF8;
            }
            at += length;
        }
    }
    return 0;
}
