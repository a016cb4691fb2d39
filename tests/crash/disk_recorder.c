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
/* Records what is done to data.mdb (file 0) and write-ahead.log (file 1), in the file that DISK_LOG names: writes
 * before they are made, syncs after they have returned. The number of the file is in the second byte of a kind. `disk_mark` puts a mark among them. DISK_FAULT=nosync swallows all syncs but the first ones,
 * and DISK_FAULT=nometasync does not say that a write through a descriptor with O_DSYNC is durable. */
#define HEALTHY 6

enum { WRITE = 1, SYNC, LENGTH, MARK, SYNCED, NAMED };

struct head { uint32_t kind, size; int64_t offset; };

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int descriptor = -1;

static const char *const NAMES[] = {"data.mdb", "write-ahead.log"};
#define FILES 2

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

/* One more than the number of a file that is recorded, also while it has another name, or 0. The first use of
 * each under its own name is noted. */
static int is_data(int fd) {
    static int named[FILES];
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path);
    if (n < 9 || n == sizeof path) return 0;
    for (int file = 0; file < FILES; file++) {
        ssize_t size = strlen(NAMES[file]);
        if (n <= size || memcmp(path + n - size, NAMES[file], size)) continue;
        if (path[n - size - 1] == '/' && !named[file]) {
            named[file] = 1;
            note(NAMED | file << 8, 0, NULL, 0);
        }
        return file + 1;
    }
    return 0;
}

/* The kind of an entry of that file. */
#define OF(kind, fd) ((kind) | (is_data(fd) - 1) << 8)

static int has_fault(const char *name) {
    const char *fault = getenv("DISK_FAULT");
    return fault && !strcmp(fault, name);
}

static void written(int fd) {
    if ((fcntl(fd, F_GETFL) & O_DSYNC) && !has_fault("nometasync")) note(OF(SYNCED, fd), 0, NULL, 0);
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
    note(OF(WRITE, fd), offset, &part, 1); \
    ssize_t done = next(fd, data, size, offset); \
    written(fd); \
    return done; \
}

#define MANY(name) \
ssize_t name(int fd, const struct iovec *parts, int count, off_t offset) { \
    NEXT(name) \
    if (is_data(fd)) note(OF(WRITE, fd), offset, parts, count); \
    ssize_t done = next(fd, parts, count, offset); \
    if (is_data(fd)) written(fd); \
    return done; \
}

/* LMDB writes pages in a row where the descriptor stands. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev)
    if (!is_data(fd)) return next(fd, parts, count);
    note(OF(WRITE, fd), lseek(fd, 0, SEEK_CUR), parts, count);
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
    if (!failed) note(OF(SYNC, fd), 0, NULL, 0); \
    return failed; \
}

#define LENGTHENS(name) \
int name(int fd, off_t size) { \
    NEXT(name) \
    if (is_data(fd)) note(OF(LENGTH, fd), size, NULL, 0); \
    return next(fd, size); \
}

#define ALLOCATES(name) \
int name(int fd, off_t offset, off_t size) { \
    NEXT(name) \
    if (is_data(fd)) note(OF(LENGTH, fd), offset + size, NULL, 0); \
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
