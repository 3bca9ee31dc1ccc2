/* The worker: slots that claim and run jobs, and one thread that listens, beats for all of them and reaps. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engines/engines.h"
#include "pipeline/service/worker_impl.h"

enum { S_REGISTER, S_TOUCH, S_FORGET, S_IDLE, S_WISH };

const struct mlo_sql MLO_WORKER_SQL[] = {
    [S_REGISTER] = {"worker_register",
                    "insert into worker (id, host, pid, machine_class, targets, slots, state, lacking, "
                    "  memory_bytes, disk_bytes, gpus) "
                    "values ($1, $2, $3, $4, $5::text[], $6, 'active', $7::text[], $8, $9, $10) "
                    "on conflict do nothing", /* the answer to the first may have got lost */
                    10},
    [S_TOUCH] =
        {"worker_touch",
         "update worker set state = $2, last_seen_at = clock_timestamp(), disk_bytes = $3 "
         "where id = $1 and set_config('lock_timeout', '1s', true) is not null", /* beats wait for it */
         3},
    [S_FORGET] = {"worker_forget", "delete from worker where last_seen_at < now() - interval '7 days'", 0},
    [S_IDLE] = {"worker_idle", "select not queue_holds_for($1::text[], $2::text[], $3::text[], $4, $5)", 5},
    [S_WISH] = {"worker_wish", "select wish from worker where id = $1", 1},
};
const size_t MLO_WORKER_SQL_COUNT = MLO_COUNT(MLO_WORKER_SQL);

enum { WATCH_STOP_MS = 100, SWEEP_EVERY_MS = 500, TOUCH_EVERY_MS = 5000, PATIENCE_MIN_MS = 1000 };

#define MS_NS 1000000ull
#define LARGE ((uint64_t)1 << 30)
#define CACHE_BYTES ((uint64_t)16 << 30)

/* The flag is set from a signal handler or from another thread. */
static bool told_to_stop(const volatile sig_atomic_t *stop)
{
    return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

/* --- slots --------------------------------------------------------------------------------------------- */

static uint64_t generation(struct mlo_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    uint64_t now = worker->generation;
    pthread_mutex_unlock(&worker->lock);
    return now;
}

static void wake_all(struct mlo_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->generation++;
    pthread_cond_broadcast(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
}

/* Sleeps until something happened since `seen`, or for the polling interval. */
static void wait_for_work(struct mlo_worker *worker, uint64_t seen)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + worker->o.poll_ms * MS_NS;
    until.tv_sec += (time_t)(ns / 1000000000ull);
    until.tv_nsec = (long)(ns % 1000000000ull);
    pthread_mutex_lock(&worker->lock);
    while (worker->generation == seen && !atomic_load(&worker->stopping))
        if (pthread_cond_timedwait(&worker->wake, &worker->lock, &until) != 0)
            break;
    pthread_mutex_unlock(&worker->lock);
}

/* Gives the slot a claimed job. */
static void begin_lease(struct mlo_slot *slot, const struct mlo_job *job, uint64_t claimed_ns)
{
    pthread_mutex_lock(&slot->lock);
    slot->job = *job;
    slot->busy = true;
    slot->taken = MLO_OK;
    /* from before the claim: our idea of its end is never later than the database's */
    slot->lease_end_ns = claimed_ns + slot->worker->o.lease_ms * MS_NS;
    slot->next_beat_ns = claimed_ns + slot->worker->o.lease_ms * MS_NS / 3;
    pthread_mutex_unlock(&slot->lock);
    slot->assigned = true;
}

static void end_lease(struct mlo_slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    slot->busy = false;
    mlo_job_clear(&slot->job);
    pthread_mutex_unlock(&slot->lock);
}

/* Claims for this slot and all others that have nothing to do, in one statement. Under worker->claiming. */
static enum mlo_status claim_for_all(struct mlo_slot *mine, struct mlo_error *err)
{
    struct mlo_worker *worker = mine->worker;
    uint64_t now = mlo_clock_ns(), free_memory, free_disk;
    int idle = 1, count = 0;
    mlo_room_offer(worker, &free_memory, &free_disk);
    const struct mlo_claimer claimer = {.worker = worker->id,
                                        .targets = mlo_buf_str(&worker->targets),
                                        .lease_ms = worker->o.lease_ms,
                                        .gpus = mlo_buf_str(&worker->models),
                                        .memory_bytes = mlo_room_memory_of_job(worker),
                                        .disk_bytes = mlo_room_disk_of_job(worker),
                                        .free_gpus = mlo_buf_str(&worker->free_models),
                                        .free_memory_bytes = &free_memory,
                                        .free_disk_bytes = &free_disk};
    worker->idle[0] = mine;
    for (unsigned i = 0; i < worker->o.slots; i++) {
        struct mlo_slot *slot = &worker->slots[i];
        pthread_mutex_lock(&slot->lock);
        if (slot != mine && slot->started && !slot->busy && !slot->gone)
            worker->idle[idle++] = slot;
        pthread_mutex_unlock(&slot->lock);
    }
    enum mlo_status status = mlo_queue_claim(worker->o.db, &claimer, worker->claimed, idle, &count, err);
    /* who asks for a model first: what is left does for the others */
    for (int named = 1; named >= 0; named--)
        for (int i = 0; i < count; i++)
            if ((worker->claimed[i].needs.gpu[0] != '\0') == (named == 1))
                mlo_room_give(worker->idle[i], &worker->claimed[i]);
    mlo_gpus_unhold(&worker->gpus);
    for (int i = 0; i < count; i++)
        begin_lease(worker->idle[i], &worker->claimed[i], now);
    bool large = false; /* it may have kept others out that have room elsewhere */
    for (int i = 0; i < count; i++)
        large = large || worker->claimed[i].needs.gpus > 0 || worker->claimed[i].needs.memory_bytes >= LARGE;
    if (count > 1 || (large && idle > 1))
        wake_all(worker);
    return status;
}

static void *slot_main(void *arg)
{
    struct mlo_slot *slot = arg;
    struct mlo_worker *worker = slot->worker;
    bool complained = false, more = true;
    while (more) {
        struct mlo_error error = {0};
        uint64_t seen = generation(worker);
        enum mlo_status status = MLO_OK;
        pthread_mutex_lock(&worker->claiming);
        more = !atomic_load(&worker->stopping);
        if (!slot->assigned && more && !atomic_load(&worker->paused))
            status = claim_for_all(slot, &error);
        bool found = slot->assigned;
        slot->assigned = false;
        slot->gone = !more; /* nobody claims for it from here on */
        pthread_mutex_unlock(&worker->claiming);
        if (status != MLO_OK && !complained)
            mlo_log_error(MLO_LOG_WARN, "cannot claim jobs", &error);
        complained = status != MLO_OK;
        if (found) {
            mlo_attempt_run(slot);
            mlo_room_take(slot);
            end_lease(slot); /* only now can another slot claim for it */
        } else if (more) {
            wait_for_work(worker, seen);
        }
    }
    return NULL;
}

/* --- the main thread: lease, notifications, sweep ------------------------------------------------------ */

/* Whether the slot's lease is to be prolonged now; *out says which job's. */
static bool beat_due(struct mlo_slot *slot, uint64_t now, struct mlo_beat *out)
{
    pthread_mutex_lock(&slot->lock);
    bool due = slot->busy && slot->taken == MLO_OK && now >= slot->next_beat_ns;
    if (due) {
        out->job = slot->job.id;
        snprintf(out->token, sizeof out->token, "%s", slot->job.token);
        slot->next_beat_ns = now + slot->worker->o.lease_ms * MS_NS / 3;
    }
    pthread_mutex_unlock(&slot->lock);
    return due;
}

static void take_answer(struct mlo_slot *slot, const struct mlo_beat *beat, uint64_t now)
{
    const struct mlo_worker *worker = slot->worker;
    pthread_mutex_lock(&slot->lock);
    if (slot->busy && strcmp(slot->job.token, beat->token) == 0) {
        if (beat->status == MLO_OK)
            slot->lease_end_ns = now + worker->o.lease_ms * MS_NS;
        else if (beat->status == MLO_ELEASE || beat->status == MLO_ECANCELLED)
            slot->taken = beat->status;
        else if (beat->status == MLO_ECONFLICT)
            slot->next_beat_ns = now; /* its row is held for a moment: the next time around */
        else
            slot->next_beat_ns =
                now + MLO_MIN(worker->o.lease_ms / 6, 1000u) * MS_NS; /* database away: sooner */
    }
    pthread_mutex_unlock(&slot->lock);
}

/* For all slots that are due, in one call. */
static void beat(struct mlo_worker *worker)
{
    uint64_t now = mlo_clock_ns();
    size_t count = 0;
    for (unsigned i = 0; i < worker->o.slots; i++)
        count += beat_due(&worker->slots[i], now, &worker->beats[count]);
    if (count == 0)
        return;
    mlo_queue_beat_all(worker->o.db, worker->beats, count, worker->o.lease_ms);
    for (size_t k = 0; k < count; k++)
        for (unsigned i = 0; i < worker->o.slots; i++)
            take_answer(&worker->slots[i], &worker->beats[k], now); /* its own knows it by the token */
}

/* Makes the next beat of every slot due: a cancellation comes with a notification. */
static void beat_soon(struct mlo_worker *worker)
{
    for (unsigned i = 0; i < worker->o.slots; i++) {
        pthread_mutex_lock(&worker->slots[i].lock);
        worker->slots[i].next_beat_ns = MLO_MIN(worker->slots[i].next_beat_ns, mlo_clock_ns() + 500 * MS_NS);
        pthread_mutex_unlock(&worker->slots[i].lock);
    }
}

static bool all_idle(struct mlo_worker *worker)
{
    bool idle = true;
    for (unsigned i = 0; i < worker->o.slots; i++) {
        pthread_mutex_lock(&worker->slots[i].lock);
        idle = idle && !worker->slots[i].busy;
        pthread_mutex_unlock(&worker->slots[i].lock);
    }
    return idle;
}

/* A connection that listens; NULL while the database is away. */
static struct mlo_db_conn *listen_conn(struct mlo_worker *worker)
{
    struct mlo_db_conn *conn = NULL;
    struct mlo_error error = {0};
    if (mlo_db_acquire(worker->o.db, &conn, &error) != MLO_OK)
        return NULL;
    if (mlo_db_exec_text(conn, "listen " MLO_QUEUE_CHANNEL, &error) != MLO_OK) {
        mlo_db_release(conn);
        return NULL;
    }
    wake_all(worker); /* what was notified while nobody listened */
    return conn;
}

/* Waits for a notification, at most WATCH_STOP_MS. */
static void listen_once(struct mlo_worker *worker, struct mlo_db_conn **conn)
{
    if (!*conn && !(*conn = listen_conn(worker))) {
        mlo_clock_sleep_ms(WATCH_STOP_MS);
        return;
    }
    PGconn *pg = mlo_db_pg(*conn);
    struct pollfd wait = {PQsocket(pg), POLLIN, 0};
    int ready = poll(&wait, 1, WATCH_STOP_MS);
    bool notified = false;
    if (ready > 0 && !PQconsumeInput(pg)) {
        mlo_db_release(*conn); /* a broken one is closed there */
        *conn = NULL;
        return;
    }
    for (PGnotify *note; (note = PQnotifies(pg)); PQfreemem(note))
        notified = true;
    if (notified) {
        wake_all(worker);
        beat_soon(worker);
    }
}

static enum mlo_status on_conn(struct mlo_worker *worker, int statement, const struct mlo_params *params,
                               struct mlo_rows *rows, struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    enum mlo_status status = mlo_db_acquire(worker->o.db, &conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_db_exec(conn, &MLO_WORKER_SQL[statement], params, rows, err);
    mlo_db_release(conn);
    return status;
}

/* On `conn` when there is one: that which listens sends nothing else, and would not notice that nothing comes
 * because nothing can. It is given up then. */
static void touch(struct mlo_worker *worker, const char *state, struct mlo_db_conn **conn)
{
    struct mlo_error error = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, worker->id);
    mlo_param_text(&p, state);
    mlo_param_i64(&p, (int64_t)MLO_MIN(mlo_room_disk_of_job(worker), (uint64_t)INT64_MAX));
    enum mlo_status status = *conn ? mlo_db_exec(*conn, &MLO_WORKER_SQL[S_TOUCH], &p, NULL, &error)
                                   : on_conn(worker, S_TOUCH, &p, NULL, &error);
    if (status != MLO_OK)
        mlo_log_error(MLO_LOG_WARN, "cannot write the worker's state", &error);
    if (status == MLO_EUNAVAILABLE) {
        mlo_db_release(*conn);
        *conn = NULL;
    }
}

static bool queue_is_idle(struct mlo_worker *worker)
{
    struct mlo_error error = {0};
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    if (!all_idle(worker))
        return false;
    mlo_param_text(&p, mlo_buf_str(&worker->targets));
    mlo_param_text(&p, mlo_buf_str(&worker->own_targets));
    mlo_param_text(&p, mlo_buf_str(&worker->models));
    mlo_param_i64(&p, (int64_t)MLO_MIN(mlo_room_memory_of_job(worker), (uint64_t)INT64_MAX));
    mlo_param_i64(&p, (int64_t)MLO_MIN(mlo_room_disk_of_job(worker), (uint64_t)INT64_MAX));
    bool idle = on_conn(worker, S_IDLE, &p, &rows, &error) == MLO_OK && mlo_rows_bool(&rows, 0, 0) &&
                all_idle(worker);
    mlo_rows_clear(&rows);
    return idle;
}

static void sweep(struct mlo_worker *worker)
{
    struct mlo_error error = {0};
    char text[16];
    int count = 0;
    enum mlo_status status = mlo_queue_reap(worker->o.db, worker->o.backoff_ms, &count, &error);
    if (status != MLO_OK && !mlo_status_info(status)->retry)
        mlo_log_error(MLO_LOG_WARN, "cannot look for lost leases", &error);
    if (count > 0) {
        snprintf(text, sizeof text, "%d", count);
        mlo_log(MLO_LOG_WARN, "leases had run out", "jobs", text, NULL);
    }
    status = mlo_queue_settle(worker->o.db, &error);
    /* in conflict: a row is held, or claims take long; the next time */
    if (status != MLO_OK && status != MLO_ECONFLICT && !mlo_status_info(status)->retry)
        mlo_log_error(MLO_LOG_WARN, "cannot count what jobs took", &error);
}

/* Looks at what somebody wants of it; true when it is to leave. *changed: its state is another one. */
static bool obey(struct mlo_worker *worker, bool *changed)
{
    struct mlo_error error = {0};
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    bool leave = false;
    mlo_param_text(&p, worker->id);
    /* while the database is away it goes on as it was */
    if (on_conn(worker, S_WISH, &p, &rows, &error) == MLO_OK && mlo_rows_count(&rows) == 1) {
        bool pause = strcmp(mlo_rows_text(&rows, 0, 0), "pause") == 0;
        leave = strcmp(mlo_rows_text(&rows, 0, 0), "drain") == 0;
        *changed = atomic_exchange(&worker->paused, pause) != pause;
        if (*changed)
            mlo_log(MLO_LOG_INFO, pause ? "paused" : "resumed", "worker", worker->id, NULL);
        if (*changed && !pause)
            wake_all(worker);
    }
    mlo_rows_clear(&rows);
    return leave;
}

static const char *state_of(struct mlo_worker *worker, bool leaving)
{
    return leaving ? "draining" : atomic_load(&worker->paused) ? "paused" : "active";
}

static void serve(struct mlo_worker *worker, const volatile sig_atomic_t *stop)
{
    struct mlo_db_conn *conn = NULL;
    struct mlo_error error = {0};
    uint64_t next_sweep = 0, next_touch = 0, told_ns = 0;
    bool leaving = false, changed = false;
    mlo_db_patience(MLO_MAX(worker->o.lease_ms / 3, (uint32_t)PATIENCE_MIN_MS)); /* beats must not be late */
    while (!leaving || !all_idle(worker)) {
        listen_once(worker, &conn);
        beat(worker);
        uint64_t now = mlo_clock_ns();
        bool leave = false;
        if (now >= next_sweep) {
            sweep(worker);
            next_sweep = mlo_clock_ns() + SWEEP_EVERY_MS * MS_NS;
            bool drain = !leaving && obey(worker, &changed);
            leave |= drain || (!leaving && worker->o.exit_when_idle && queue_is_idle(worker));
            if (changed)
                next_touch = 0;
            changed = false;
        }
        if (!told_ns && told_to_stop(stop)) {
            told_ns = now;
            leave = true;
        }
        if (leave && !leaving) {
            leaving = true;
            next_touch = 0;
            atomic_store(&worker->stopping, true);
            wake_all(worker);
        }
        if (now >= next_touch) {
            touch(worker, state_of(worker, leaving), &conn);
            mlo_worker_metrics_write(worker);
            next_touch = now + TOUCH_EVERY_MS * MS_NS;
        }
        /* who was asked to drain has all the time it needs; who is told to stop has not */
        if (told_ns && mlo_clock_ns() >= told_ns + worker->o.drain_ms * MS_NS)
            atomic_store(&worker->hand_back, true);
    }
    mlo_worker_metrics_end(worker);
    if (conn && mlo_db_exec_text(conn, "unlisten *", &error) != MLO_OK)
        mlo_log_error(MLO_LOG_DEBUG, "cannot stop listening", &error);
    mlo_db_release(conn);
    mlo_db_patience(0);
}

/* --- start and end ------------------------------------------------------------------------------------- */

static void add_word(struct mlo_buf *array, const char *word)
{
    mlo_buf_printf(array, "%s\"%s\"", array->len > 1 ? "," : "", word);
}

/* GPUs by what they are, and by what of their generation they run too; and whether plans for GPUs can be
 * compiled here, which takes none. */
static void add_gpus(struct mlo_buf *array)
{
    const struct mlo_engine *cuda;
    int sm[MLO_GPUS_MAX];
    size_t count = mlo_machine_gpus(sm, MLO_COUNT(sm)), known;
    const char *const *names = mlo_targets(&known);
    if (mlo_engine_find("cuda", &cuda, NULL) == MLO_OK && cuda->can_compile &&
        cuda->can_compile("cuda:sm90", NULL) == MLO_OK)
        add_word(array, MLO_TARGET_COMPILE_CUDA);
    if (count)
        add_word(array, "cuda");
    for (size_t k = 0; k < known; k++) {
        bool runs = false;
        for (size_t i = 0; i < count; i++)
            runs = runs || mlo_sm_runs(sm[i], mlo_cuda_target_sm(names[k]));
        if (mlo_cuda_target_sm(names[k]) && runs)
            add_word(array, names[k]);
    }
    for (size_t i = 0; i < count; i++) { /* a model that the names above lack, and what it is itself */
        char name[24], word[28], exact[40];
        snprintf(name, sizeof name, "cuda:sm%d", sm[i]);
        snprintf(exact, sizeof exact, "%s%s", name, MLO_TARGET_EXACT);
        snprintf(word, sizeof word, "\"%s\"", name);
        if (!strstr(mlo_buf_str(array), word))
            add_word(array, name);
        if (!strstr(mlo_buf_str(array), exact))
            add_word(array, exact);
    }
}

/* "any", "cpu", what this machine is, and what the caller adds. */
static enum mlo_status find_targets(struct mlo_worker *worker, struct mlo_error *err)
{
    size_t count;
    const char *const *known = mlo_targets(&count);
    mlo_buf_putc(&worker->targets, '{');
    mlo_buf_putc(&worker->own_targets, '{');
    for (size_t i = 0; i < count; i++)
        if (!mlo_cuda_target_sm(known[i]) && mlo_machine_satisfies(known[i]))
            add_word(&worker->targets, known[i]);
    add_gpus(&worker->targets);
    for (const char *const *extra = worker->o.targets; extra && *extra; extra++) {
        if (strpbrk(*extra, "\"\\"))
            return mlo_error_set(err, MLO_EINVAL, "'%s' is no target", *extra);
        add_word(&worker->targets, *extra);
        add_word(&worker->own_targets, *extra);
    }
    mlo_buf_putc(&worker->targets, '}');
    mlo_buf_putc(&worker->own_targets, '}');
    return mlo_buf_ok(&worker->targets) && mlo_buf_ok(&worker->own_targets) ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status register_worker(struct mlo_worker *worker, const volatile sig_atomic_t *stop,
                                       struct mlo_error *err)
{
    char class_name[256] = "";
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status;
    json_t *gpus = mlo_gpus_json(&worker->gpus);
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_json_canonical(gpus, &text);
    json_decref(gpus);
    mlo_machine_class(class_name, sizeof class_name);
    mlo_param_text(&p, worker->id);
    mlo_param_text(&p, worker->host);
    mlo_param_i64(&p, getpid());
    mlo_param_text(&p, class_name);
    mlo_param_text(&p, mlo_buf_str(&worker->targets));
    mlo_param_i64(&p, worker->o.slots);
    mlo_param_text(&p, mlo_buf_str(&worker->lacking));
    mlo_param_i64(&p, (int64_t)mlo_room_memory_of_job(worker));
    mlo_param_i64(&p, (int64_t)mlo_room_disk_of_job(worker));
    mlo_param_text(&p, mlo_buf_str(&text));
    for (bool told = false;; told = true) {
        status = on_conn(worker, S_REGISTER, &p, NULL, err);
        if (status == MLO_OK || !mlo_status_info(status)->retry || told_to_stop(stop))
            break;
        if (!told)
            mlo_log_error(MLO_LOG_WARN, "waiting for the database", err);
        mlo_clock_sleep_ms(WATCH_STOP_MS);
    }
    struct mlo_error error = {0};
    if (status == MLO_OK && on_conn(worker, S_FORGET, NULL, NULL, &error) != MLO_OK) /* the next one does */
        mlo_log_error(MLO_LOG_DEBUG, "cannot forget old workers", &error);
    mlo_buf_clear(&text);
    return told_to_stop(stop) ? MLO_OK : status;
}

/* What keeps jobs from harm here, said once; MLO_EUNAVAILABLE where all of it is wanted and some is lacking.
 */
static enum mlo_status tell_isolation(struct mlo_worker *worker, struct mlo_error *err)
{
    json_t *layers = NULL, *layer;
    size_t i;
    bool whole = false;
    enum mlo_status status = mlo_isolation(&layers, &whole, err);
    mlo_buf_putc(&worker->lacking, '{');
    json_array_foreach(layers, i, layer)
    {
        const char *name = mlo_json_str(layer, "layer", ""), *note = mlo_json_str(layer, "note", "");
        if (mlo_json_bool(layer, "on", false))
            continue;
        add_word(&worker->lacking, name);
        mlo_log(MLO_LOG_WARN, "jobs are less confined than they could be", "lacking", name, "note", note,
                NULL);
        if (status == MLO_OK && worker->o.require_isolation) {
            status =
                mlo_error_set(err, MLO_EUNAVAILABLE, "this machine cannot confine jobs: %s: %s", name, note);
            mlo_error_hint(
                err, "`mlopt doctor` lists the layers; without --require-isolation the worker runs jobs "
                     "with those that there are");
        }
    }
    json_decref(layers);
    mlo_buf_putc(&worker->lacking, '}');
    return status == MLO_OK && !mlo_buf_ok(&worker->lacking) ? mlo_error_nomem(err) : status;
}

static enum mlo_status start_slots(struct mlo_worker *worker, struct mlo_error *err)
{
    for (unsigned i = 0; i < worker->o.slots; i++) {
        struct mlo_slot *slot = &worker->slots[i];
        int failed = pthread_create(&slot->thread, NULL, slot_main, slot);
        if (failed)
            return mlo_error_errno(err, failed, "cannot start a thread");
        pthread_mutex_lock(&slot->lock);
        slot->started = true;
        pthread_mutex_unlock(&slot->lock);
    }
    return MLO_OK;
}

static void fill_defaults(struct mlo_worker_options *o)
{
    o->slots = o->slots ? o->slots : 1;
    o->threads = o->threads ? o->threads : 1;
    o->lease_ms = o->lease_ms ? o->lease_ms : 15000;
    o->poll_ms = o->poll_ms ? o->poll_ms : 1000;
    o->backoff_ms = o->backoff_ms ? o->backoff_ms : 1000;
    o->max_tasks = o->max_tasks ? o->max_tasks : 4096;
    o->max_cache_bytes = o->max_cache_bytes ? o->max_cache_bytes : CACHE_BYTES;
}

static enum mlo_status worker_init(struct mlo_worker *worker, const struct mlo_worker_options *options,
                                   struct mlo_error *err)
{
    uint32_t random;
    pthread_condattr_t attr;
    worker->o = *options;
    fill_defaults(&worker->o);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_mutex_init(&worker->claiming, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->wake, &attr);
    pthread_condattr_destroy(&attr);
    mlo_together_init(&worker->together);
    mlo_random_bytes(&random, sizeof random);
    if (gethostname(worker->host, sizeof worker->host - 1) != 0)
        snprintf(worker->host, sizeof worker->host, "unknown");
    snprintf(worker->id, sizeof worker->id, "%s-%d-%08x", worker->host, (int)getpid(), random);
    worker->exe = options->exe ? strdup(options->exe) : mlo_process_self();
    worker->slots = calloc(worker->o.slots, sizeof *worker->slots);
    worker->idle = calloc(worker->o.slots, sizeof(struct mlo_slot *));
    worker->claimed = calloc(worker->o.slots, sizeof *worker->claimed);
    worker->beats = calloc(worker->o.slots, sizeof *worker->beats);
    if (!worker->exe || !worker->slots || !worker->idle || !worker->claimed || !worker->beats)
        return mlo_error_nomem(err);
    for (unsigned i = 0; i < worker->o.slots; i++) {
        worker->slots[i].worker = worker;
        pthread_mutex_init(&worker->slots[i].lock, NULL);
    }
    return find_targets(worker, err);
}

static void worker_clear(struct mlo_worker *worker)
{
    for (unsigned i = 0; worker->slots && i < worker->o.slots; i++)
        pthread_mutex_destroy(&worker->slots[i].lock);
    free(worker->slots);
    free(worker->idle);
    free(worker->claimed);
    free(worker->beats);
    free(worker->exe);
    free(worker->work_dir);
    free(worker->cache_dir);
    mlo_buf_clear(&worker->targets);
    mlo_buf_clear(&worker->own_targets);
    mlo_buf_clear(&worker->lacking);
    mlo_buf_clear(&worker->models);
    mlo_buf_clear(&worker->free_models);
    mlo_gpus_unhold(&worker->gpus);
    free(worker->gpu_dir);
    mlo_scratch_close(worker);
    mlo_together_clear(&worker->together);
    pthread_cond_destroy(&worker->wake);
    pthread_mutex_destroy(&worker->claiming);
    pthread_mutex_destroy(&worker->lock);
}

enum mlo_status mlo_worker_run(const struct mlo_worker_options *options, const volatile sig_atomic_t *stop,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_db_conn *none = NULL;
    struct mlo_worker worker = {.scratch_fd = -1,
                                .targets = MLO_BUF_INIT,
                                .lacking = MLO_BUF_INIT,
                                .models = MLO_BUF_INIT,
                                .free_models = MLO_BUF_INIT};
    MLO_TRY(worker_init(&worker, options, err));
    MLO_TRY(mlo_fs_mkdirs(worker.o.work_dir, err));
    if (!(worker.work_dir = realpath(worker.o.work_dir, NULL))) { /* a step has another working folder */
        status = mlo_error_errno(err, errno, "cannot use the folder %s", worker.o.work_dir);
        goto out;
    }
    worker.o.work_dir = worker.work_dir;
    if (!(worker.cache_dir = mlo_fs_join(worker.work_dir, "blobs", NULL))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_room_find(&worker, err));
    MLO_TRY(tell_isolation(&worker, err));
    MLO_TRY(mlo_scratch_open(&worker, err));
    MLO_TRY(register_worker(&worker, stop, err));
    mlo_log(MLO_LOG_INFO, "worker started", "worker", worker.id, "targets", mlo_buf_str(&worker.targets),
            NULL);
    status = start_slots(&worker, err);
    if (status == MLO_OK)
        serve(&worker, stop);
    atomic_store(&worker.stopping, true);
    atomic_store(&worker.hand_back, true);
    wake_all(&worker);
    for (unsigned i = 0; i < worker.o.slots; i++)
        if (worker.slots[i].started)
            pthread_join(worker.slots[i].thread, NULL);
    touch(&worker, "stopped", &none);
    mlo_log(MLO_LOG_INFO, "worker stopped", "worker", worker.id, NULL);
out:
    worker_clear(&worker);
    return status;
}
