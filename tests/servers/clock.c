/* Preloaded into a process: its wall clock is off by CLOCK_OFFSET seconds, and runs
   CLOCK_SLOWED times slower from its first reading on. The file CLOCK_STEPS has eight
   bytes, the nanoseconds by which the clock is off at this moment: they may change.
   Clocks that only run (CLOCK_MONOTONIC, CLOCK_BOOTTIME) stay as they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t offset(void)
{
    const char *seconds = getenv("CLOCK_OFFSET");
    return seconds ? atoi(seconds) : 0;
}

static long long stepped(void)
{
    static int looked;
    static volatile long long *steps;
    const char *path = looked ? NULL : getenv("CLOCK_STEPS");
    looked = 1;
    if (path) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        void *mapped = mmap(NULL, sizeof *steps, PROT_READ, MAP_SHARED, file, 0);
        if (file < 0 || mapped == MAP_FAILED)
            abort();
        close(file);
        steps = mapped;
    }
    return steps ? *steps : 0;
}

static void slow(struct timespec *now)
{
    static struct timespec start;
    const char *times = getenv("CLOCK_SLOWED");
    long long passed;
    if (!times)
        return;
    if (!start.tv_sec)
        start = *now;
    passed = (now->tv_sec - start.tv_sec) * 1000000000LL;
    passed = (passed + now->tv_nsec - start.tv_nsec) / atoi(times) + start.tv_nsec;
    now->tv_sec = start.tv_sec + passed / 1000000000LL;
    now->tv_nsec = passed % 1000000000LL;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        slow(now);
        long long step = stepped();
        long long nanoseconds = now->tv_nsec + step % 1000000000LL;
        now->tv_sec += offset() + step / 1000000000LL;
        if (nanoseconds < 0) {
            now->tv_sec -= 1;
            nanoseconds += 1000000000LL;
        }
        now->tv_sec += nanoseconds / 1000000000LL;
        now->tv_nsec = nanoseconds % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now)
        *now = at.tv_sec;
    return at.tv_sec;
}
