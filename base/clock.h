/* Clocks. Time stamps are UTC; durations come from the monotonic clock. */
#ifndef MLO_BASE_CLOCK_H
#define MLO_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC: for durations and deadlines. */
uint64_t mlo_clock_ns(void);
/* Processor time that all threads of this process have used. */
uint64_t mlo_clock_cpu_ns(void);
/* Microseconds since 1970-01-01 UTC. */
int64_t mlo_clock_utc_us(void);
/* "2026-01-31T12:34:56.789Z" into the caller's buffer, which is returned. */
char *mlo_clock_format(int64_t utc_us, char out[32]);
/* Sleeps; returns early when a signal arrives. */
void mlo_clock_sleep_ms(uint32_t ms);

#endif
