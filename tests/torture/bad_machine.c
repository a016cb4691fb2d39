#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
/* A disk whose writes to a store fail, a wall clock that is wrong, and clocks that run several times as fast,
   as do the waits by them: as the file says that BAD_MACHINE names. CLOCK_MONOTONIC_RAW stays as it is, and so
   does what the kernel times itself: TCP, and the files. */
#define SECOND 1000000000LL
struct machine { int64_t error, offset_seconds, speed, origin_ns; };
static const struct machine good = {.speed = 1}, *machine = &good;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BAD_MACHINE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *machine, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) machine = map;
}
#define NEXT(name) ({ \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
    next; })
#define INSTEAD(type, name, parameters, first, arguments) \
    type name parameters { first; return NEXT(name) arguments; }

/* The disk */

static int fails(int fd) {
    char link[64], path[4096];
    int64_t error = *(volatile const int64_t *)&machine->error;
    if (!error) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    int is_data = n >= 8 && !memcmp(path + n - 8, "data.mdb", 8);
    if (!is_data && (n < 15 || memcmp(path + n - 15, "write-ahead.log", 15))) return 0;
    errno = (int)error;
    return 1;
}
#define FAILING(name, parameters, arguments) \
    INSTEAD(ssize_t, name, parameters, if (fails(fd)) return -1, arguments)
FAILING(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING(pwritev, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
FAILING(pwritev64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
FAILING(write, (int fd, const void *data, size_t size), (fd, data, size))
FAILING(writev, (int fd, const struct iovec *v, int n), (fd, v, n))

/* The clocks: each is ahead by what it ran faster since the origin, which is the same for all processes. */

static int64_t nanoseconds(const struct timespec *t) { return t->tv_sec * SECOND + t->tv_nsec; }
static struct timespec timespec(int64_t ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }
static int64_t true_time(clockid_t clock) {
    struct timespec now;
    NEXT(clock_gettime)(clock, &now);
    return nanoseconds(&now);
}
static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }
static int64_t speed(clockid_t clock) {
    int counts = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
    return counts || is_wall(clock) ? machine->speed : 1;
}
static int64_t ahead(clockid_t clock) {
    int64_t offset = is_wall(clock) ? *(volatile const int64_t *)&machine->offset_seconds * SECOND : 0;
    int64_t faster = speed(clock) - 1;
    return faster ? offset + faster * (true_time(CLOCK_MONOTONIC) - machine->origin_ns) : offset;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = NEXT(clock_gettime)(clock, now);
    if (!result) *now = timespec(nanoseconds(now) + ahead(clock));
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    if (!result) TIMESPEC_TO_TIMEVAL(now, &exact);
    return result;
}
time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}

/* The waits that Python, uvloop and libzmq make. Milliseconds are rounded up: to wait for none is a busy loop.
   What is left of a sleep that a signal ended is told in true time: nobody here asks. */

static int milliseconds(int ms) { return ms <= 0 ? ms : (int)((ms + machine->speed - 1) / machine->speed); }
static struct timespec shorter(const struct timespec *t) { return timespec(nanoseconds(t) / machine->speed); }
static struct timespec sooner(clockid_t clock, const struct timespec *deadline) {
    int64_t now = true_time(clock);
    int64_t left = nanoseconds(deadline) - ahead(clock) - now;
    return timespec(now + left / speed(clock));
}
#define POINTER(value) (struct timespec[]){value}
#define WAITING(name, parameters, arguments) INSTEAD(int, name, parameters, , arguments)
WAITING(poll, (struct pollfd *f, nfds_t n, int ms), (f, n, milliseconds(ms)))
WAITING(epoll_wait, (int fd, struct epoll_event *e, int n, int ms), (fd, e, n, milliseconds(ms)))
WAITING(epoll_pwait, (int fd, struct epoll_event *e, int n, int ms, const sigset_t *signals),
        (fd, e, n, milliseconds(ms), signals))
WAITING(sem_timedwait, (sem_t *restrict sem, const struct timespec *restrict t),
        (sem, POINTER(sooner(CLOCK_REALTIME, t))))
WAITING(sem_clockwait, (sem_t *restrict sem, clockid_t clock, const struct timespec *restrict t),
        (sem, clock, POINTER(sooner(clock, t))))
WAITING(pthread_cond_clockwait,
        (pthread_cond_t *restrict c, pthread_mutex_t *restrict m, clockid_t clock,
         const struct timespec *restrict t),
        (c, m, clock, POINTER(sooner(clock, t))))
WAITING(clock_nanosleep, (clockid_t clock, int flags, const struct timespec *t, struct timespec *left),
        (clock, flags, POINTER(flags & TIMER_ABSTIME ? sooner(clock, t) : shorter(t)), left))
int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e, struct timeval *restrict t) {
    int64_t us = t ? (t->tv_sec * 1000000LL + t->tv_usec + machine->speed - 1) / machine->speed : 0;
    return NEXT(select)(n, r, w, e, t ? &(struct timeval){us / 1000000, us % 1000000} : NULL);
}
/* Which clock a condition goes by is its secret, but no host has been up for as long as a wall clock says. */
int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m,
                           const struct timespec *restrict t) {
    return pthread_cond_clockwait(c, m, t->tv_sec < SECOND ? CLOCK_MONOTONIC : CLOCK_REALTIME, t);
}
