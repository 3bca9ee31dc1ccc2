#include "pipeline/measure/cpus_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WATCH_MS = 100 };

struct cpu {
    int id, core; /* core: the lowest id of its hardware threads */
    uint64_t busy;
};

/* Ticks that each CPU has spent on work, from /proc/stat: user, nice, system, irq, softirq, steal. */
static void read_busy(uint64_t busy[CPU_SETSIZE])
{
    char line[512];
    FILE *file = fopen("/proc/stat", "re");
    memset(busy, 0, CPU_SETSIZE * sizeof *busy);
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        unsigned id;
        unsigned long long t[8] = {0};
        if (sscanf(line, "cpu%u %llu %llu %llu %llu %llu %llu %llu %llu", &id, &t[0], &t[1], &t[2], &t[3],
                   &t[4], &t[5], &t[6], &t[7]) == 9 &&
            id < CPU_SETSIZE)
            busy[id] = t[0] + t[1] + t[2] + t[5] + t[6] + t[7];
    }
    fclose(file);
}

static int core_of(int cpu)
{
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "re");
    if (!file)
        return cpu;
    if (fscanf(file, "%d", &first) != 1)
        first = cpu;
    fclose(file);
    return first;
}

/* Least busy first; of equals the highest number, since interrupts gather on the low ones. */
static int by_idleness(const void *a, const void *b)
{
    const struct cpu *x = a, *y = b;
    if (x->busy != y->busy)
        return (x->busy > y->busy) - (x->busy < y->busy);
    return (x->id < y->id) - (x->id > y->id);
}

static bool core_taken(const struct cpu *cpus, int n, const cpu_set_t *chosen, int core)
{
    for (int i = 0; i < n; i++)
        if (cpus[i].core == core && CPU_ISSET(cpus[i].id, chosen))
            return true;
    return false;
}

bool mlo_cpus_choose(unsigned count, cpu_set_t *out)
{
    cpu_set_t allowed, chosen;
    struct cpu cpus[CPU_SETSIZE];
    uint64_t before[CPU_SETSIZE], after[CPU_SETSIZE];
    int n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || (unsigned)CPU_COUNT(&allowed) <= count)
        return false;
    read_busy(before);
    mlo_clock_sleep_ms(WATCH_MS);
    read_busy(after);
    for (int id = 0; id < CPU_SETSIZE; id++)
        if (CPU_ISSET(id, &allowed))
            cpus[n++] = (struct cpu){id, core_of(id), after[id] - before[id]};
    qsort(cpus, (size_t)n, sizeof *cpus, by_idleness);
    CPU_ZERO(&chosen);
    for (int pass = 0; pass < 2; pass++) /* whole cores first, then their other threads */
        for (int i = 0; i < n && (unsigned)CPU_COUNT(&chosen) < count; i++)
            if (pass || !core_taken(cpus, n, &chosen, cpus[i].core))
                CPU_SET(cpus[i].id, &chosen);
    *out = chosen;
    return true;
}
