#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
/* Lets the next N writes of LMDB's meta pages and of the write-ahead log fail: N is in the file that FAULTS names. */
static int fails(int fd, off_t offset) {
    char link[64], path[4096];
    const char *faults = getenv("FAULTS");
    if (!faults) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    int is_root = n >= 8 && !memcmp(path + n - 8, "data.mdb", 8) && offset < 2 * sysconf(_SC_PAGESIZE);
    if (!is_root && (n < 15 || memcmp(path + n - 15, "write-ahead.log", 15))) return 0;
    FILE *f = fopen(faults, "r+");
    if (!f) return 0;
    int left = 0;
    if (fscanf(f, "%d", &left) != 1) left = 0;
    if (left > 0) { rewind(f); fprintf(f, "%-8d", left - 1); }
    fclose(f);
    return left > 0;
}
/* TROUBLE names a file with "hang PATH" or "full PATH": what is written below that path hangs, or finds no room. */
static int trouble(int fd) {
    char link[64], path[4096], kind[16], below[4096];
    const char *file = getenv("TROUBLE");
    if (!file) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    for (;;) {
        FILE *f = fopen(file, "r");
        if (!f) return 0;
        int found = fscanf(f, "%15s %4095s", kind, below);
        fclose(f);
        if (found != 2 || strncmp(path, below, strlen(below))) return 0;
        if (strcmp(kind, "hang")) return ENOSPC;
        usleep(20000);
    }
}
typedef ssize_t (*writer)(int, const void *, size_t, off_t);
#define FAILING(name) \
ssize_t name(int fd, const void *data, size_t size, off_t offset) { \
    static writer next; \
    int wrong = trouble(fd); \
    if (wrong) { errno = wrong; return -1; } \
    if (fails(fd, offset)) { errno = EIO; return -1; } \
    if (!next) next = (writer)dlsym(RTLD_NEXT, #name); \
    return next(fd, data, size, offset); \
}
FAILING(pwrite)
FAILING(pwrite64)
int fdatasync(int fd) {
    static int (*next)(int);
    trouble(fd);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return next(fd);
}
