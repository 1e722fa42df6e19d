/* Preloaded into a process: its wall clock is off by CLOCK_OFFSET seconds, and runs
   CLOCK_SLOWED times slower from its first reading on.
   Clocks that only run (CLOCK_MONOTONIC, CLOCK_BOOTTIME) stay as they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t offset(void)
{
    const char *seconds = getenv("CLOCK_OFFSET");
    return seconds ? atoi(seconds) : 0;
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
        now->tv_sec += offset();
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
