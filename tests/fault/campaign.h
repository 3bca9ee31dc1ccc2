/* What the fault campaign is made of: states that an attempt at a job goes through, faults, and schedules,
 * which follow from a seed alone. The plan is a file that the campaign and the library in its workers
 * (campaign_points.c) have mapped: a worker that arrives at a state where a fault is to strike waits there
 * until the campaign has done it.
 *
 * The seed's generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
#ifndef MLO_TESTS_CAMPAIGN_H
#define MLO_TESTS_CAMPAIGN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum campaign_state {
    STATE_TIME, /* at a moment of the schedule, whatever is going on */
    STATE_CLAIM,
    STATE_CLAIMED,
    STATE_FETCHED,
    STATE_STARTED,
    STATE_HALF,
    STATE_DONE,
    STATE_WRITTEN,
    STATE_STORED,
    STATE_COMMIT,
    STATE_COMMITTED,
    STATE_FAILING,
    STATE_BEAT,
    STATE_REAP,
    STATE_SETTLE,
    STATE_COUNT
};

/* `weight`: how often it is drawn. */
static const struct {
    const char *name, *what;
    unsigned weight;
} CAMPAIGN_STATES[] = {
    [STATE_TIME] = {"time", "a moment", 6},
    [STATE_CLAIM] = {"claim", "before a claim", 1},
    [STATE_CLAIMED] = {"claimed", "jobs are claimed, nothing was done", 4},
    [STATE_FETCHED] = {"fetched", "the inputs are in the scratch folder", 4},
    [STATE_STARTED] = {"started", "the child runs", 4},
    [STATE_HALF] = {"half", "the child is in the middle", 4},
    [STATE_DONE] = {"done", "the child has ended", 4},
    [STATE_WRITTEN] = {"written", "an artifact is written and has no name yet", 3},
    [STATE_STORED] = {"stored", "a blob is in the store, no row tells of it", 4},
    [STATE_COMMIT] = {"commit", "before the commit of a completion", 5},
    [STATE_COMMITTED] = {"committed", "after it: perhaps the run's end", 5},
    [STATE_FAILING] = {"failing", "before a failed or lost attempt is recorded", 2},
    [STATE_BEAT] = {"beat", "before a heartbeat", 3},
    [STATE_REAP] = {"reap", "lost leases were found", 2},
    [STATE_SETTLE] = {"settle", "before settling the shares", 1},
};

enum campaign_kind {
    FAULT_KILL,
    FAULT_CHILD,
    FAULT_STOP,
    FAULT_TERM,
    FAULT_CUT,
    FAULT_DATABASE,
    FAULT_FREEZE,
    FAULT_RESET,
    FAULT_MUTE,
    FAULT_CLOCK,
    FAULT_CANCEL,
    FAULT_SCRATCH,
    FAULT_STORE,
    FAULT_DISK,
    FAULT_HOST,
    FAULT_KINDS
};

/* `may_fail`: codes of errors that a run may honestly end with, once the attempts of a job are used up. A
 * lost lease is always one: a loaded machine loses some by itself. */
static const struct {
    const char *name, *what, *may_fail;
    bool needs_child; /* strikes only where one runs */
} CAMPAIGN_FAULTS[] = {
    [FAULT_KILL] = {"kill", "SIGKILL of the worker", "", false},
    [FAULT_CHILD] = {"child", "SIGKILL of the step's process", "job-failed", true},
    [FAULT_STOP] = {"stop", "SIGSTOP past the lease, then SIGCONT", "", false},
    [FAULT_TERM] = {"term", "SIGTERM: it hands back what it has", "", false},
    [FAULT_CUT] = {"cut", "pg_terminate_backend of workers' connections", "unavailable", false},
    [FAULT_DATABASE] = {"database", "PostgreSQL's immediate shutdown, and its start", "unavailable", false},
    [FAULT_FREEZE] = {"freeze", "half-open connections that heal", "unavailable timeout", false},
    [FAULT_RESET] = {"reset", "half-open connections that are reset in the end", "unavailable timeout",
                     false},
    [FAULT_MUTE] = {"mute", "connections of which nothing is heard again", "unavailable timeout", false},
    [FAULT_CLOCK] = {"clock", "the clock of one worker jumps, up to a day", "", false},
    [FAULT_CANCEL] = {"cancel", "a run is cancelled", "", false},
    [FAULT_SCRATCH] = {"scratch", "the disk of the scratch folders is full", "no-space job-failed", false},
    [FAULT_STORE] = {"store", "the disk of the blob store is full", "no-space", false},
    [FAULT_DISK] = {"disk", "PostgreSQL's disk is full", "no-space unavailable", false},
    [FAULT_HOST] = {"host", "the host of a worker is cut off, and healed", "unavailable timeout", false},
};

enum { FAULTS_MAX = 3, WORKERS_MAX = 3, RUNS_MAX = 3 };

struct campaign_fault {
    enum campaign_kind kind;
    enum campaign_state state;
    int worker;       /* -1: the first that comes there; STATE_TIME: this one */
    int occurrence;   /* of the state, from 0 */
    unsigned at_ms;   /* STATE_TIME: after the submission */
    unsigned hold_ms; /* how long it lasts, beyond what it must */
    unsigned variant;
    _Atomic int seen;
    _Atomic int met;  /* who is there, counted from 1 */
    _Atomic int done; /* the campaign did it: go on */
};

struct campaign_schedule {
    uint64_t seed;
    int workers, runs, slots, count;
    unsigned step_ms; /* what each step takes longer */
    struct campaign_fault faults[FAULTS_MAX];
};

struct campaign_plan {
    _Atomic int armed;
    _Atomic int registered[WORKERS_MAX];
    _Atomic int64_t skew_ns[WORKERS_MAX]; /* of the clock on the wall */
    _Atomic unsigned passed[STATE_COUNT];
    struct campaign_schedule schedule;
};

static inline uint64_t campaign_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline unsigned campaign_below(uint64_t *state, unsigned n)
{
    return (unsigned)((campaign_random(state) >> 32) % n);
}

static inline enum campaign_state campaign_draw_state(uint64_t *random, bool needs_child)
{
    unsigned all = 0;
    if (needs_child)
        return campaign_below(random, 2) ? STATE_STARTED : STATE_HALF;
    for (int i = 0; i < STATE_COUNT; i++)
        all += CAMPAIGN_STATES[i].weight;
    unsigned draw = campaign_below(random, all);
    int state = 0;
    while (draw >= CAMPAIGN_STATES[state].weight)
        draw -= CAMPAIGN_STATES[state++].weight;
    return (enum campaign_state)state;
}

/* What the seed says. `kinds`: faults that this machine allows, a bit each; those that it does not are drawn
 * again, so that a seed means the same on machines that allow the same. */
static inline void campaign_schedule_of(uint64_t seed, unsigned kinds, struct campaign_schedule *out)
{
    uint64_t random = seed;
    *out = (struct campaign_schedule){.seed = seed};
    out->workers = 2 + (int)campaign_below(&random, WORKERS_MAX - 1);
    out->runs = 1 + (int)campaign_below(&random, RUNS_MAX);
    out->slots = 1 + (int)campaign_below(&random, 2);
    out->step_ms = 100 + campaign_below(&random, 300);
    out->count = 1 + (int)campaign_below(&random, FAULTS_MAX);
    for (int i = 0; i < out->count; i++) {
        struct campaign_fault *f = &out->faults[i];
        do
            f->kind = (enum campaign_kind)campaign_below(&random, FAULT_KINDS);
        while (!(kinds >> f->kind & 1));
        f->state = campaign_draw_state(&random, CAMPAIGN_FAULTS[f->kind].needs_child);
        f->worker = f->state == STATE_TIME ? (int)campaign_below(&random, (unsigned)out->workers) : -1;
        f->occurrence = (int)(campaign_below(&random, 3) * campaign_below(&random, 2));
        f->at_ms = campaign_below(&random, 2500);
        f->hold_ms = campaign_below(&random, 800);
        f->variant = (unsigned)(campaign_random(&random) >> 40);
    }
}

#endif
