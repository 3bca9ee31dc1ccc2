/* `mlopt server`, `mlopt worker`, `mlopt migrate`: the parts of `up`, each on its own. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/serve/serve.h"

/* timeout_ms: of a statement; 0: as mlo_db_open has it */
static enum mlo_status open_database(const struct mlo_cli *cli, const char *application, unsigned connections,
                                     uint32_t timeout_ms, struct mlo_db **out, struct mlo_error *err)
{
    const char *url = NULL;
    enum mlo_status status = mlo_serve_database(cli, &url, err);
    const struct mlo_db_options options = {
        .conninfo = url,
        .application = application,
        .max_connections = connections,
        .statement_timeout_ms = timeout_ms,
    };
    return status == MLO_OK ? mlo_db_open(&options, out, err) : status;
}

static enum mlo_status check_schema(struct mlo_db *db, struct mlo_error *err)
{
    struct mlo_db_conn *conn = NULL;
    enum mlo_status status = mlo_db_acquire(db, &conn, err);
    if (status == MLO_OK)
        status = mlo_migrate_runs(conn, err);
    mlo_db_release(conn);
    return status;
}

static bool is_away(enum mlo_status status)
{
    return status == MLO_EUNAVAILABLE || status == MLO_ETIMEOUT;
}

/* The same of a database that may be away still, as behind a power cut: told once, asked again each second,
 * for --wait seconds. *told: it is to end, as `stops` (which waits for that long) says, and status is MLO_OK.
 */
static enum mlo_status await_schema(const struct mlo_cli *cli, int64_t fallback_s, struct mlo_db *db,
                                    bool (*stops)(uint64_t timeout_ms), bool *told, struct mlo_error *err)
{
    enum mlo_status status;
    int64_t wait_s;
    char seconds[24];
    uint64_t began = mlo_clock_ns();
    *told = false;
    MLO_TRY(mlo_cli_int(cli, "wait", fallback_s, 0, 86400, &wait_s, err));
    snprintf(seconds, sizeof seconds, "%lld", (long long)wait_s);
    for (bool logged = false;; logged = true) {
        status = check_schema(db, err);
        if (!is_away(status) || mlo_clock_ns() - began >= (uint64_t)wait_s * 1000000000u)
            break;
        if (!logged)
            mlo_log(MLO_LOG_WARN, "PostgreSQL does not answer: waiting for it", "at_most_s", seconds, "error",
                    err->message, NULL);
        if ((*told = stops(1000)))
            return MLO_OK;
    }
    if (status == MLO_OK && mlo_clock_ns() - began > 1000000000u)
        mlo_log(MLO_LOG_INFO, "PostgreSQL answers", NULL);
    else if (is_away(status) && wait_s > 0)
        mlo_error_prefix(err, "waited %s s (--wait)", seconds);
out:
    return status;
}

static enum mlo_status open_blobs(const struct mlo_cli *cli, struct mlo_blob_store **out,
                                  struct mlo_error *err)
{
    const char *url = NULL;
    enum mlo_status status = mlo_cli_required(cli, "blobs", &url, err);
    return status == MLO_OK ? mlo_blob_store_open(url, out, err) : status;
}

/* --- server ------------------------------------------------------------------------------------ */

/* SIGINT or SIGTERM within so long. */
static bool told_to_stop(uint64_t timeout_ms)
{
    uint64_t until = mlo_clock_ns() + timeout_ms * 1000000u;
    for (uint64_t now; (now = mlo_clock_ns()) < until;) {
        int number = mlo_serve_wait_signal((uint32_t)MLO_MIN((until - now) / 1000000u + 1, 3600000u));
        if (number == SIGINT || number == SIGTERM)
            return true;
    }
    return false;
}

/* Until it is told to end, and then as long as requests may still be sent here: those who share them out
 * read /readyz only now and then. A second signal says that nobody does any more. */
static void serve_until_told(struct mlo_http *http, int64_t drain_s)
{
    while (!told_to_stop(3600000u)) {
    }
    mlo_log(MLO_LOG_INFO, "stopping", NULL);
    mlo_http_drain(http);
    told_to_stop((uint64_t)drain_s * 1000u);
}

static enum mlo_status server_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_db *db = NULL;
    struct mlo_blob_store *blobs = NULL;
    struct mlo_http *http = NULL;
    struct mlo_ledger *ledger = NULL;
    struct mlo_gc_service *gc = NULL;
    struct mlo_schedules *schedules = NULL;
    struct mlo_webhooks *webhooks = NULL;
    struct mlo_listen listen;
    const char *text = mlo_cli_opt(cli, "listen"), *ledger_dir = mlo_cli_opt(cli, "ledger");
    char url[96];
    int64_t drain_s, finish_s = 0;
    bool told;
    mlo_serve_block_signals();
    MLO_TRY(mlo_serve_log(cli, "server", err));
    MLO_TRY(mlo_cli_int(cli, "drain", 0, 0, 86400, &drain_s, err));
    MLO_TRY(mlo_cli_int(cli, "finish", 10, 0, 86400, &finish_s, err));
    MLO_TRY(mlo_listen_parse(text ? text : MLO_DEFAULT_LISTEN, &listen, err));
    MLO_TRY(open_database(cli, "mlopt server", 16, 0, &db, err));
    MLO_TRY(open_blobs(cli, &blobs, err));
    MLO_TRY(await_schema(cli, 0, db, told_to_stop, &told, err));
    if (told)
        goto out;
    if (ledger_dir)
        MLO_TRY(mlo_serve_ledger(cli, db, ledger_dir, &ledger, err));
    MLO_TRY(mlo_serve_webhooks(cli, db, &webhooks, err));
    MLO_TRY(mlo_serve_http(cli, &listen, db, blobs, ledger, webhooks, true, &http, err));
    MLO_TRY(mlo_serve_gc(cli, db, blobs, &gc, err));
    MLO_TRY(mlo_schedules_start(db, 0, &schedules, err));
    MLO_TRY(mlo_cli_print(err, "ready: %s\n",
                          mlo_listen_url(&listen, mlo_http_tls(http), mlo_http_port(http), url, sizeof url)));
    serve_until_told(http, drain_s);
out:
    mlo_schedules_stop(schedules);
    mlo_gc_service_stop(gc);
    mlo_http_stop(http, (uint32_t)finish_s * 1000u);
    mlo_webhooks_stop(webhooks);
    mlo_ledger_close(ledger);
    mlo_blob_store_close(blobs);
    mlo_db_close(db);
    return status;
}

/* --- worker ------------------------------------------------------------------------------------ */

enum { WORKER_WAIT_S = 300 };

static volatile sig_atomic_t stop_flag;

static void on_stop(int number)
{
    MLO_UNUSED(number);
    stop_flag = 1;
}

/* Until the stop flag is set, or so long. */
static bool worker_stops(uint64_t timeout_ms)
{
    uint64_t until = mlo_clock_ns() + timeout_ms * 1000000u;
    while (!stop_flag && mlo_clock_ns() < until)
        mlo_clock_sleep_ms(50);
    return stop_flag;
}

/* Absolute, and there: a misspelt path would only be noticed by a job that fails. */
static enum mlo_status allowed_paths(const struct mlo_cli *cli, const char *option, const char **out,
                                     size_t room, struct mlo_error *err)
{
    for (size_t i = 0; i + 1 < room && (out[i] = mlo_cli_opt_at(cli, option, i)); i++) {
        if (out[i][0] != '/' || !mlo_fs_exists(out[i])) {
            mlo_error_set(err, MLO_EINVAL, "--%s %s: that is no absolute path that exists", option, out[i]);
            return MLO_EINVAL;
        }
    }
    return MLO_OK;
}

static enum mlo_status worker_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_db *db = NULL;
    struct mlo_blob_store *blobs = NULL;
    const char *targets[16] = {NULL}, *readable[16] = {NULL}, *writable[16] = {NULL}, *work_dir = NULL;
    int64_t slots, threads, lease_s, drain_s, memory_mb, all_mb, scratch_mb, cache_mb, tasks, job_s;
    bool told;
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    MLO_TRY(mlo_serve_log(cli, "worker", err));
    MLO_TRY(mlo_cli_required(cli, "work-dir", &work_dir, err));
    MLO_TRY(mlo_cli_int(cli, "slots", 1, 1, 64, &slots, err));
    MLO_TRY(mlo_cli_int(cli, "threads", mlo_cpu_count(), 1, 1024, &threads, err));
    MLO_TRY(mlo_cli_int(cli, "lease", 15, 1, 3600, &lease_s, err));
    MLO_TRY(mlo_cli_int(cli, "drain", 10, 0, 86400, &drain_s, err));
    MLO_TRY(mlo_cli_int(cli, "max-memory", 0, 1, 1 << 30, &memory_mb, err));
    MLO_TRY(mlo_cli_int(cli, "memory", 0, 1, 1 << 30, &all_mb, err));
    MLO_TRY(mlo_cli_int(cli, "max-job-time", 0, 1, 1 << 30, &job_s, err));
    MLO_TRY(mlo_cli_int(cli, "max-scratch", 0, 1, 1 << 30, &scratch_mb, err));
    MLO_TRY(mlo_cli_int(cli, "cache", 0, 1, 1 << 30, &cache_mb, err));
    MLO_TRY(mlo_cli_int(cli, "max-tasks", 0, 16, 1 << 22, &tasks, err));
    for (size_t i = 0; i + 1 < MLO_COUNT(targets); i++)
        targets[i] = mlo_cli_opt_at(cli, "target", i);
    MLO_TRY(allowed_paths(cli, "allow-read", readable, MLO_COUNT(readable), err));
    MLO_TRY(allowed_paths(cli, "allow-write", writable, MLO_COUNT(writable), err));
    /* what a statement brings after the lease is of no use any more */
    uint32_t timeout_ms = (uint32_t)MLO_MIN(MLO_MAX(lease_s, 5), 30) * 1000u;
    MLO_TRY(open_database(cli, "mlopt worker", (unsigned)slots + 2, timeout_ms, &db, err));
    MLO_TRY(open_blobs(cli, &blobs, err));
    MLO_TRY(await_schema(cli, WORKER_WAIT_S, db, worker_stops, &told, err));
    if (told)
        goto out;
    const struct mlo_worker_options options = {
        .db = db,
        .blobs = blobs,
        .work_dir = work_dir,
        .targets = targets,
        .slots = (unsigned)slots,
        .threads = (unsigned)threads,
        .lease_ms = (uint32_t)lease_s * 1000u,
        .drain_ms = (uint32_t)drain_s * 1000u,
        .memory_bytes = (uint64_t)all_mb << 20,
        .gpu_inventory = mlo_cli_opt(cli, "gpu-inventory"),
        .max_memory_bytes = (uint64_t)memory_mb << 20,
        .max_job_s = (uint32_t)job_s,
        .max_scratch_bytes = (uint64_t)scratch_mb << 20,
        .max_tasks = (unsigned)tasks,
        .max_cache_bytes = (uint64_t)cache_mb << 20,
        .allow_read = readable,
        .allow_write = writable,
        .require_isolation = mlo_cli_has(cli, "require-isolation"),
        .metrics_file = mlo_cli_opt(cli, "metrics-file"),
        .exit_when_idle = mlo_cli_has(cli, "exit-when-idle"),
    };
    MLO_TRY(mlo_worker_run(&options, &stop_flag, err));
out:
    mlo_blob_store_close(blobs);
    mlo_db_close(db);
    return status;
}

/* --- migrate ----------------------------------------------------------------------------------- */

static enum mlo_status migrate_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_db *db = NULL;
    struct mlo_db_conn *conn = NULL;
    const char *bootstrap = mlo_cli_opt(cli, "bootstrap"), *token = mlo_cli_opt(cli, "admin-token");
    const char *name = mlo_cli_opt(cli, "name");
    int applied = 0;
    bool made = false;
    if (bootstrap)
        MLO_TRY(mlo_db_bootstrap(bootstrap, name ? name : "mlopt", err));
    MLO_TRY(open_database(cli, "mlopt migrate", 2, 0, &db, err));
    MLO_TRY(mlo_db_acquire(db, &conn, err));
    MLO_TRY(mlo_migrate(conn, &applied, err));
    mlo_db_release(conn);
    conn = NULL;
    if (token)
        MLO_TRY(mlo_serve_admin_token(db, token, &made, err));
    if (cli->json) {
        json_t *all = json_pack("{s:i,s:b}", "applied", applied, "token_made", made);
        status = mlo_cli_print_json(all, err);
        json_decref(all);
    } else {
        status = mlo_cli_print(err, "%d migration%s applied%s%s\n", applied, applied == 1 ? "" : "s",
                               made ? "; admin token in " : "", made ? token : "");
    }
out:
    mlo_db_release(conn);
    mlo_db_close(db);
    return status;
}

#define OPTION_DATABASE                                                                                      \
    {                                                                                                        \
        "database", 0, "URL", "PostgreSQL; rather in MLOPT_DATABASE, where nobody reads a password"          \
    }
#define OPTION_BLOBS                                                                                         \
    {                                                                                                        \
        "blobs", 0, "URL", "the blob store: file:/path, or s3:bucket/prefix?endpoint=… (docs/storage.md)"  \
    }

static const struct mlo_cli_option server_options[] = {
    OPTION_DATABASE,
    OPTION_BLOBS,
    {"listen", 0, "ADDRESS:PORT", "where it listens (" MLO_DEFAULT_LISTEN ")"},
    {"wait", 0, "S", "for a PostgreSQL that does not answer when it starts (0)"},
    {"drain", 0, "S", "when stopped, say so on /readyz and serve on for so long (0)"},
    {"finish", 0, "S", "then requests under way may go on so long (10)"},
    {"ledger", 0, "DIR", "write the ledgers, with the key DIR/ledger.key and a repository per project"},
    MLO_OPTION_LEDGER_MIRROR,
    MLO_OPTION_GC,
    MLO_OPTION_WEBHOOKS,
    MLO_OPTION_METRICS,
    MLO_OPTION_RATE,
    MLO_OPTION_TLS,
    MLO_OPTION_LOG,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_server = {
    .name = "server",
    .group = "Service",
    .run = server_run,
    .options = server_options,
    .positional = "--database URL --blobs URL",
    .help = "the REST API and the pages alone",
    .flags = MLO_CLI_OWN_SIGNALS,
};
static const struct mlo_cli_option worker_options[] = {
    OPTION_DATABASE,
    OPTION_BLOBS,
    {"work-dir", 0, "DIR", "for scratch folders"},
    {"slots", 0, "N", "jobs at a time (1)"},
    {"threads", 0, "N", "threads of a job (all CPUs)"},
    {"target", 0, "T", "a further target that it offers", NULL, true},
    {"lease", 0, "S", "a job is another's when its worker was silent so long (15)"},
    {"wait", 0, "S", "for a PostgreSQL that does not answer when it starts (300)"},
    {"drain", 0, "S", "when stopped, running jobs may go on so long (10)"},
    {"memory", 0, "MB",
     "what its jobs may need together (the control group's limit, or the machine's memory)"},
    {"gpu-inventory", 0, "FILE", "for tests: GPUs that are not there, as JSON, in place of the driver's"},
    {"max-memory", 0, "MB", "address space of each of a job's processes, and memory of all (no limit)"},
    {"max-scratch", 0, "MB", "a job's scratch folder (no limit)"},
    {"cache", 0, "MB", "blobs of a store of objects, kept in the work dir for the next job (16384)"},
    {"max-tasks", 0, "N", "processes and threads of a job (4096)"},
    {"max-job-time", 0, "S", "of one attempt (no limit)"},
    {"allow-read", 0, "PATH", "that jobs may read, and run programs from", NULL, true},
    {"allow-write", 0, "DIR", "that jobs may write in", NULL, true},
    {"require-isolation", 0, NULL, "do not start where `mlopt doctor` finds a layer lacking"},
    {"metrics-file", 0, "FILE.prom", "write metrics there, for node_exporter's textfile collector"},
    {"exit-when-idle", 0, NULL, "end when no job is left that it could have"},
    MLO_OPTION_LOG,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_worker = {
    .name = "worker",
    .group = "Service",
    .run = worker_run,
    .options = worker_options,
    .positional = "--database URL --blobs URL --work-dir DIR",
    .help = "runs jobs from the queue",
    .flags = MLO_CLI_OWN_SIGNALS,
};
static const struct mlo_cli_option migrate_options[] = {
    OPTION_DATABASE,
    {"bootstrap", 0, "URL", "first make roles and database, as this administrator of PostgreSQL"},
    {"name", 0, "DATABASE", "with --bootstrap: the database to make (mlopt)"},
    {"admin-token", 0, "FILE", "write a first admin token there (0600), unless it holds a good one"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_migrate = {
    .name = "migrate",
    .group = "Service",
    .run = migrate_run,
    .options = migrate_options,
    .positional = "--database URL",
    .help = "bring the database to this program's schema, as its owner",
};
