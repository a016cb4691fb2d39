#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
/* Records what is done to data.mdb, in the file that DISK_LOG names: writes before they are made, syncs after
 * they have returned. `disk_mark` puts a mark among them. DISK_FAULT=nosync swallows all syncs but the first ones,
 * and DISK_FAULT=nometasync does not say that a write through a descriptor with O_DSYNC is durable. */
#define HEALTHY 6

enum { WRITE = 1, SYNC, LENGTH, MARK, SYNCED, NAMED };

struct head { uint32_t kind, size; int64_t offset; };

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int descriptor = -1;

static void note(uint32_t kind, int64_t offset, const struct iovec *parts, int count) {
    struct iovec all[count + 1];
    struct head head = {kind, 0, offset};
    all[0] = (struct iovec){&head, sizeof head};
    for (int i = 0; i < count; i++) { all[i + 1] = parts[i]; head.size += parts[i].iov_len; }
    pthread_mutex_lock(&one_at_a_time);
    if (descriptor < 0)
        descriptor = open(getenv("DISK_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    /* A log with a gap in it proves nothing. */
    if (syscall(SYS_writev, descriptor, all, count + 1) != (ssize_t)(sizeof head + head.size)) abort();
    pthread_mutex_unlock(&one_at_a_time);
}

/* Whether it is the data file, also while that has another name. Its first use under its own name is noted. */
static int is_data(int fd) {
    static int named;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path);
    if (n < 9 || n == sizeof path || memcmp(path + n - 8, "data.mdb", 8)) return 0;
    if (path[n - 9] == '/' && !named) {
        named = 1;
        note(NAMED, 0, NULL, 0);
    }
    return 1;
}

static int has_fault(const char *name) {
    const char *fault = getenv("DISK_FAULT");
    return fault && !strcmp(fault, name);
}

static void written(int fd) {
    if ((fcntl(fd, F_GETFL) & O_DSYNC) && !has_fault("nometasync")) note(SYNCED, 0, NULL, 0);
}

void disk_mark(const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    note(MARK, 0, &part, 1);
}

#define NEXT(name, ...) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);

#define ONE(name) \
ssize_t name(int fd, const void *data, size_t size, off_t offset) { \
    NEXT(name) \
    if (!is_data(fd)) return next(fd, data, size, offset); \
    struct iovec part = {(void *)data, size}; \
    note(WRITE, offset, &part, 1); \
    ssize_t done = next(fd, data, size, offset); \
    written(fd); \
    return done; \
}

#define MANY(name) \
ssize_t name(int fd, const struct iovec *parts, int count, off_t offset) { \
    NEXT(name) \
    if (is_data(fd)) note(WRITE, offset, parts, count); \
    ssize_t done = next(fd, parts, count, offset); \
    if (is_data(fd)) written(fd); \
    return done; \
}

/* LMDB writes pages in a row where the descriptor stands. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev)
    if (!is_data(fd)) return next(fd, parts, count);
    note(WRITE, lseek(fd, 0, SEEK_CUR), parts, count);
    ssize_t done = next(fd, parts, count);
    written(fd);
    return done;
}

static int syncs;

#define SYNCS(name) \
int name(int fd) { \
    NEXT(name) \
    if (!is_data(fd)) return next(fd); \
    if (has_fault("nosync") && ++syncs > HEALTHY) return 0; \
    int failed = next(fd); \
    if (!failed) note(SYNC, 0, NULL, 0); \
    return failed; \
}

#define LENGTHENS(name) \
int name(int fd, off_t size) { \
    NEXT(name) \
    if (is_data(fd)) note(LENGTH, size, NULL, 0); \
    return next(fd, size); \
}

#define ALLOCATES(name) \
int name(int fd, off_t offset, off_t size) { \
    NEXT(name) \
    if (is_data(fd)) note(LENGTH, offset + size, NULL, 0); \
    return next(fd, offset, size); \
}

ONE(pwrite)
ONE(pwrite64)
MANY(pwritev)
MANY(pwritev64)
SYNCS(fdatasync)
SYNCS(fsync)
LENGTHENS(ftruncate)
LENGTHENS(ftruncate64)
ALLOCATES(posix_fallocate)
ALLOCATES(posix_fallocate64)
