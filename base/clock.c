#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t read_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t mlo_clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t mlo_clock_cpu_ns(void)
{
    return read_ns(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t mlo_clock_utc_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

char *mlo_clock_format(int64_t utc_us, char out[32])
{
    int64_t seconds = utc_us / 1000000, rest = utc_us % 1000000;
    if (rest < 0) {
        rest += 1000000;
        seconds--;
    }
    struct tm tm;
    time_t t = (time_t)seconds;
    gmtime_r(&t, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 32 - n, ".%03dZ", (int)(rest / 1000));
    return out;
}

void mlo_clock_sleep_ms(uint32_t ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}
