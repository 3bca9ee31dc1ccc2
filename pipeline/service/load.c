/* What else the machine did while a benchmark had it "to itself": the lock keeps other jobs away, and nobody
 * else. A measurement under load is then seen as one. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "pipeline/service/worker_impl.h"

/* Time that all CPUs worked, in seconds, from the first line of /proc/stat: all but idle and iowait, and
 * guests, which are in user already. */
static double busy_seconds(void)
{
    unsigned long long t[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    int got = file ? fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3],
                            &t[4], &t[5], &t[6], &t[7])
                   : 0;
    if (file)
        fclose(file);
    long hertz = sysconf(_SC_CLK_TCK);
    return got == 8 && hertz > 0 ? (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)hertz : -1;
}

/* Of children that have ended; while one job has the machine, they are its own. */
static double children_seconds(void)
{
    struct rusage use;
    if (getrusage(RUSAGE_CHILDREN, &use) != 0)
        return 0;
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

void mlo_load_begin(struct mlo_load *load)
{
    *load = (struct mlo_load){.at_ns = mlo_clock_ns(), .busy_s = busy_seconds(), .own_s = children_seconds()};
}

json_t *mlo_load_end(const struct mlo_load *load)
{
    double seconds = (double)(mlo_clock_ns() - load->at_ns) * 1e-9, busy = busy_seconds();
    if (load->busy_s < 0 || busy < 0 || seconds <= 0)
        return NULL;
    double own = (children_seconds() - load->own_s) / seconds, all = (busy - load->busy_s) / seconds;
    return json_pack("{s:f, s:i, s:f, s:f}", "seconds", seconds, "cpus", (int)mlo_cpu_count(), "own_cpus",
                     own, "other_cpus", MLO_MAX(0.0, all - own));
}
