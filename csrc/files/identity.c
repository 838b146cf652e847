/* Inode numbers as a forked child tells them to SQLite; see caliber.h for what that is good for. */
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64 /* as SQLite does: both must mean the same struct stat */
#endif
#define _POSIX_C_SOURCE 200809L
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE 1
#endif

#include "../internal.h"

#include <sys/stat.h>

static uint64_t mark;

int32_t cal_file_mark(uint64_t value) {
    mark = value;
    return CAL_OK;
}

int32_t cal_file_fstat(int32_t handle, void *status) {
    struct stat *found = status;
    int failed = fstat(handle, found);
    if (!failed) {
        found->st_ino ^= (ino_t)mark;
    }
    return failed;
}

int32_t cal_file_stat(const char *path, void *status) {
    struct stat *found = status;
    int failed = stat(path, found);
    if (!failed) {
        found->st_ino ^= (ino_t)mark;
    }
    return failed;
}
