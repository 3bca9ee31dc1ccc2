/* What the faults do, and what ends them. */
#ifndef MLO_TESTS_CAMPAIGN_STRIKE_H
#define MLO_TESTS_CAMPAIGN_STRIKE_H

#include "tests/fault/campaign_world.h"

#define MS_NS 1000000ull

static inline void reap_worker(struct world *w, int i)
{
    int ended;
    while (waitpid(w->workers[i].pid, &ended, 0) < 0 && errno == EINTR) {
    }
    w->workers[i].pid = 0;
}

/* Ends and loses a worker's connections: all, or those of even numbers, so that a worker keeps some. */
static inline bool cut_backends(struct world *w, unsigned variant)
{
    char sql[200];
    int64_t n = 0;
    snprintf(sql, sizeof sql,
             "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = '" MLO_ROLE_WORKER
             "' and datname = current_database() and (pid + %u) %% %u = 0",
             variant, 1 + variant / 2 % 2);
    return ask_number(w, sql, &n);
}

static inline bool stop_database(struct world *w, unsigned hold_ms)
{
    if (w->database_ns)
        return false;
    kill(mlo_embedded_pid(w->f->pg->pg), SIGQUIT);
    w->database_ns = mlo_clock_ns() + hold_ms * MS_NS;
    return true;
}

static inline bool cancel_run(struct world *w, unsigned variant)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *conn = NULL;
    enum mlo_status status = mlo_db_acquire(w->f->pg->server, &conn, &err);
    if (status == MLO_OK)
        status = mlo_run_cancel(conn, &SYSTEM, w->runs[variant % (unsigned)w->plan->schedule.runs],
                                "by the campaign", &err);
    mlo_db_release(conn);
    return status == MLO_OK; /* it may be over, and PostgreSQL away */
}

static inline int64_t skew_of(unsigned variant)
{
    static const int64_t seconds[] = {-86400, -3600, -90, -3, 3, 90, 3600, 86400};
    return seconds[variant % MLO_COUNT(seconds)] * 1000000000;
}

static inline bool fill_disk(struct world *w, const struct campaign_fault *f, enum campaign_disk disk)
{
    if (w->free_ns[disk])
        return false;
    const char *dir = disk == DISK_SCRATCH ? w->f->work : w->place->disks[disk];
    place_fill(dir);
    w->free_ns[disk] = mlo_clock_ns() + (100 + 2 * f->hold_ms) * MS_NS;
    return true;
}

/* False: there was nothing to strike. */
static inline bool strike_worker(struct world *w, const struct campaign_fault *f, int i)
{
    struct one_worker *worker = &w->workers[i];
    uint64_t now = mlo_clock_ns(), hold = f->hold_ms * MS_NS, lease = LEASE_S * 1000 * MS_NS;
    if (!worker->pid || worker->leaves)
        return false;
    switch (f->kind) {
    case FAULT_KILL:
        kill(worker->pid, SIGKILL);
        reap_worker(w, i);
        worker->wake_ns = 0;
        worker->start_ns = now + hold;
        return true;
    case FAULT_CHILD:
        return each_below(worker->pid, 0, kill_process, NULL) > 0;
    case FAULT_STOP:
        kill(worker->pid, SIGSTOP);
        worker->wake_ns = now + lease + lease / 4 + hold;
        return true;
    case FAULT_TERM:
        if (!atomic_load(&w->plan->registered[i]))
            return false;
        kill(worker->pid, SIGTERM);
        worker->leaves = true;
        worker->start_ns = now + hold;
        return true;
    case FAULT_FREEZE:
    case FAULT_RESET:
        atomic_store(&worker->proxy.order, PROXY_FREEZE);
        worker->heal = f->kind == FAULT_RESET ? PROXY_RESET : PROXY_PASS;
        worker->heal_ns = now + hold + (f->variant % 2 ? lease + lease / 4 : 0);
        return true;
    case FAULT_MUTE:
        atomic_store(&worker->proxy.order, PROXY_MUTE);
        return true;
    case FAULT_CLOCK:
        atomic_store(&w->plan->skew_ns[i], skew_of(f->variant));
        return true;
    case FAULT_HOST:
        place_cable(i, false);
        worker->cable_ns = now + hold + (f->variant % 2 ? lease + lease / 4 : 0);
        return true;
    default:
        return false;
    }
}

/* By worker i. */
static inline bool strike(struct world *w, const struct campaign_fault *f, int i)
{
    switch (f->kind) {
    case FAULT_CUT:
        return cut_backends(w, f->variant);
    case FAULT_DATABASE:
        return stop_database(w, f->hold_ms);
    case FAULT_CANCEL:
        return cancel_run(w, f->variant);
    case FAULT_SCRATCH:
        return fill_disk(w, f, DISK_SCRATCH);
    case FAULT_STORE:
        return fill_disk(w, f, DISK_STORE);
    case FAULT_DISK:
        return fill_disk(w, f, DISK_DATABASE);
    default:
        return strike_worker(w, f, i);
    }
}

/* --- what ends them ------------------------------------------------------------------------------------- */

static inline void start_database(struct world *w, uint64_t now)
{
    struct mlo_error err = {0};
    if (!w->database_ns || now < w->database_ns || w->free_ns[DISK_DATABASE])
        return;
    enum mlo_status status = mlo_embedded_restart(w->f->pg->pg, &err);
    if (status == MLO_ECONFLICT) /* it still ends */
        return;
    assert_mlo_ok(status, &err);
    w->database_ns = 0;
    say(w, "PostgreSQL is back");
}

/* PostgreSQL may have ended for want of room; what holds it up starts it again. */
static inline void look_at_disks(struct world *w, uint64_t now)
{
    for (int disk = 0; disk < DISKS; disk++) {
        if (!w->free_ns[disk] || now < w->free_ns[disk])
            continue;
        w->free_ns[disk] = 0;
        place_free(disk == DISK_SCRATCH ? w->f->work : w->place->disks[disk]);
        say(w, "there is room again");
    }
    struct mlo_error err = {0};
    if (!w->free_ns[DISK_DATABASE] && !w->database_ns && has_fault(&w->plan->schedule, FAULT_DISK)) {
        enum mlo_status status = mlo_embedded_restart(w->f->pg->pg, &err);
        if (status != MLO_ECONFLICT)
            assert_mlo_ok(status, &err);
        if (status == MLO_OK)
            say(w, "PostgreSQL had ended, and is back");
    }
}

/* A worker that ends by itself is a failure, but for one that cannot reach PostgreSQL when it starts. */
static inline void look_at_worker(struct world *w, int i, uint64_t now)
{
    struct one_worker *worker = &w->workers[i];
    int ended;
    if (worker->wake_ns && now >= worker->wake_ns && worker->pid) {
        worker->wake_ns = 0;
        kill(worker->pid, SIGCONT);
        say(w, "worker %d is awake", i);
    }
    if (worker->heal_ns && now >= worker->heal_ns) {
        worker->heal_ns = 0;
        atomic_store(&worker->proxy.order, worker->heal);
        say(w, "connections of worker %d heal", i);
    }
    if (worker->cable_ns && now >= worker->cable_ns) {
        worker->cable_ns = 0;
        place_cable(i, true);
        say(w, "the host of worker %d is back", i);
    }
    if (worker->pid && waitpid(worker->pid, &ended, WNOHANG) == worker->pid) {
        worker->pid = 0;
        if (WIFSIGNALED(ended) || (!worker->leaves && atomic_load(&w->plan->registered[i])) ||
            (worker->leaves && WEXITSTATUS(ended)))
            fail_msg("worker %d ended by itself: %x", i, (unsigned)ended);
        if (!worker->start_ns)
            worker->start_ns = now + 300 * MS_NS;
    }
    if (!worker->pid && worker->start_ns && now >= worker->start_ns)
        start_worker_of(w, i);
}

static inline void look_at_faults(struct world *w, uint64_t begun_ns)
{
    uint64_t now = mlo_clock_ns();
    for (int i = 0; i < w->plan->schedule.count; i++) {
        struct campaign_fault *f = &w->plan->schedule.faults[i];
        int met = atomic_load(&f->met);
        if (f->state == STATE_TIME && !met && now >= begun_ns + f->at_ms * MS_NS)
            atomic_store(&f->met, met = f->worker + 1);
        if (!met || atomic_load(&f->done))
            continue;
        w->struck[i] = strike(w, f, met - 1);
        say(w, "%s at %s, worker %d: %s", CAMPAIGN_FAULTS[f->kind].name, CAMPAIGN_STATES[f->state].name,
            met - 1, w->struck[i] ? "struck" : "nothing to strike");
        atomic_store(&f->done, 1);
    }
    start_database(w, now);
    look_at_disks(w, now);
    for (int i = 0; i < w->plan->schedule.workers; i++)
        look_at_worker(w, i, now);
}

/* No fault strikes any more, and those that last are over. */
static inline void heal_all(struct world *w)
{
    atomic_store(&w->plan->armed, 0);
    for (int i = 0; i < w->plan->schedule.count; i++)
        atomic_store(&w->plan->schedule.faults[i].done, 1);
    for (int i = 0; i < w->plan->schedule.workers; i++) {
        struct one_worker *worker = &w->workers[i];
        if (worker->heal_ns)
            worker->heal_ns = 1;
        if (worker->wake_ns)
            worker->wake_ns = 1;
        if (worker->cable_ns)
            worker->cable_ns = 1;
        look_at_worker(w, i, mlo_clock_ns());
    }
    for (int disk = 0; disk < DISKS; disk++)
        if (w->free_ns[disk])
            w->free_ns[disk] = 1;
    look_at_disks(w, mlo_clock_ns());
    if (w->database_ns)
        w->database_ns = 1;
    while (w->database_ns) {
        start_database(w, mlo_clock_ns());
        mlo_clock_sleep_ms(5);
    }
}

#endif
