#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
/* A disk whose writes to data.mdb fail, and a wall clock that is wrong: as the file says that BAD_MACHINE names. */
struct machine { int64_t error, offset_seconds; };
static const struct machine *machine;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BAD_MACHINE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *machine, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) machine = map;
}
static int fails(int fd) {
    char link[64], path[4096];
    int64_t error = machine ? *(volatile const int64_t *)&machine->error : 0;
    if (!error) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 8 || memcmp(path + n - 8, "data.mdb", 8)) return 0;
    errno = (int)error;
    return 1;
}
#define FAILING(type, name, parameters, arguments) \
type name parameters { \
    static type (*next) parameters; \
    if (fails(fd)) return -1; \
    if (!next) next = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
    return next arguments; \
}
FAILING(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
FAILING(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
FAILING(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
FAILING(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, now);
    if (!result && clock == CLOCK_REALTIME && machine)
        now->tv_sec += *(volatile const int64_t *)&machine->offset_seconds;
    return result;
}
