/* `mlopt up`: everything on this machine, in one folder. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/cli/serve/serve.h"

enum { WORKER_GRACE_MS = 20000, DRAIN_MS = 5000, TICK_MS = 500, TOKEN_BYTES = 4096 };
enum { REVIVALS_MAX = 3, REVIVAL_WINDOW_MS = 60000 };

struct up {
    struct mlo_cli *cli;
    const char *dir;
    struct mlo_listen listen;
    int64_t workers, threads;
    int lock_fd;
    int revivals; /* of PostgreSQL, each within the window after the one before */
    uint64_t revived_ns;
    struct mlo_embedded *pg;
    struct mlo_db *db;
    struct mlo_blob_store *blobs;
    struct mlo_http *http;
    struct mlo_gc_service *gc;
    struct mlo_schedules *schedules;
    struct mlo_ledger *ledger;
    struct mlo_webhooks *webhooks;
    struct mlo_brood *brood;
    char *ledger_dir, *pg_dir, *blob_url, *work_dir, *token_path, *url_path, *worker_log, *lock_path;
    char url[96];
};

static enum mlo_status make_paths(struct up *u, struct mlo_error *err)
{
    struct mlo_buf blobs = MLO_BUF_INIT;
    const char *given = mlo_cli_opt(u->cli, "blobs");
    u->pg_dir = mlo_fs_join(u->dir, "pg", NULL);
    u->work_dir = mlo_fs_join(u->dir, "work", NULL);
    u->ledger_dir = mlo_fs_join(u->dir, "ledger", NULL);
    u->token_path = mlo_fs_join(u->dir, "token", NULL);
    u->url_path = mlo_fs_join(u->dir, "url", NULL);
    u->worker_log = mlo_fs_join(u->dir, "workers.log", NULL);
    u->lock_path = mlo_fs_join(u->dir, "lock", NULL);
    if (given)
        mlo_buf_puts(&blobs, given);
    else
        mlo_buf_printf(&blobs, "file:%s/blobs", u->dir);
    u->blob_url = mlo_buf_take(&blobs);
    return u->pg_dir && u->work_dir && u->ledger_dir && u->token_path && u->url_path && u->worker_log &&
                   u->lock_path && u->blob_url
               ? MLO_OK
               : mlo_error_nomem(err);
}

/* The folder, absolute, private. Root hands PostgreSQL to another user, who must be able to walk through. */
static enum mlo_status make_folder(struct up *u, const char *given, char **absolute, struct mlo_error *err)
{
    mode_t mode = geteuid() == 0 ? 0711 : 0700;
    struct stat st;
    bool made = !mlo_fs_exists(given);
    enum mlo_status status = mlo_fs_mkdirs(given, err);
    if (status != MLO_OK)
        return status;
    *absolute = realpath(given, NULL);
    if (!*absolute || stat(*absolute, &st) != 0)
        return mlo_error_errno(err, errno, "cannot use %s", given);
    if (!S_ISDIR(st.st_mode))
        return mlo_error_set(err, MLO_EINVAL, "%s is no folder", given);
    mode_t wanted = made ? mode : (st.st_mode & 07777) | (mode & 0011);
    if (wanted != (st.st_mode & 07777) && chmod(*absolute, wanted) != 0)
        return mlo_error_errno(err, errno, "cannot set the mode of %s", *absolute);
    u->dir = *absolute;
    return MLO_OK;
}

/* Bytes that people uploaded, and what steps work on: nobody else's to read. */
static enum mlo_status private_folder(const struct up *u, const char *name, struct mlo_error *err)
{
    char *path = mlo_fs_join(u->dir, name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_fs_mkdirs(path, err);
    if (status == MLO_OK && chmod(path, 0700) != 0)
        status = mlo_error_errno(err, errno, "cannot make %s private", path);
    free(path);
    return status;
}

static enum mlo_status take_lock(struct up *u, struct mlo_error *err)
{
    struct mlo_buf url = MLO_BUF_INIT;
    struct mlo_error ignored = {0};
    u->lock_fd = open(u->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (u->lock_fd < 0)
        return mlo_error_errno(err, errno, "cannot open %s", u->lock_path);
    if (flock(u->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return MLO_OK;
    if (errno != EWOULDBLOCK)
        return mlo_error_errno(err, errno, "cannot lock %s", u->lock_path);
    if (mlo_fs_read(u->url_path, 4096, &url, &ignored) == MLO_OK && url.len)
        mlo_error_set(err, MLO_ECONFLICT, "mlopt is already running on %s, at %.*s", u->dir,
                      (int)strcspn(mlo_buf_str(&url), "\n"), mlo_buf_str(&url));
    else
        mlo_error_set(err, MLO_ECONFLICT, "mlopt is already running on %s", u->dir);
    mlo_buf_clear(&url);
    return MLO_ECONFLICT;
}

static enum mlo_status migrate(struct up *u, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_db *owner = NULL;
    struct mlo_db_conn *conn = NULL;
    char *conninfo = mlo_embedded_conninfo(u->pg, MLO_ROLE_OWNER, NULL);
    if (!conninfo)
        return mlo_error_nomem(err);
    const struct mlo_db_options options = {
        .conninfo = conninfo, .application = "mlopt migrate", .max_connections = 1};
    MLO_TRY(mlo_db_open(&options, &owner, err));
    MLO_TRY(mlo_db_acquire(owner, &conn, err));
    MLO_TRY(mlo_migrate(conn, NULL, err));
out:
    mlo_db_release(conn);
    mlo_db_close(owner);
    free(conninfo);
    return status;
}

static enum mlo_status start_parts(struct up *u, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *server = NULL, *worker = NULL;
    bool made;
    const struct mlo_embedded_options pg = {.dir = u->pg_dir};
    MLO_TRY(mlo_embedded_start(&pg, &u->pg, err));
    MLO_TRY(migrate(u, err));
    server = mlo_embedded_conninfo(u->pg, MLO_ROLE_SERVER, NULL);
    worker = mlo_embedded_conninfo(u->pg, MLO_ROLE_WORKER, NULL);
    if (!server || !worker) {
        status = mlo_error_nomem(err);
        goto out;
    }
    const struct mlo_db_options db = {
        .conninfo = server, .application = "mlopt server", .max_connections = 16};
    MLO_TRY(mlo_db_open(&db, &u->db, err));
    MLO_TRY(mlo_serve_admin_token(u->db, u->token_path, &made, err));
    MLO_TRY(mlo_blob_store_open(u->blob_url, &u->blobs, err));
    MLO_TRY(mlo_serve_ledger(u->cli, u->db, u->ledger_dir, &u->ledger, err));
    MLO_TRY(mlo_serve_webhooks(u->cli, u->db, &u->webhooks, err));
    MLO_TRY(mlo_serve_http(u->cli, &u->listen, u->db, u->blobs, u->ledger, u->webhooks,
                           mlo_cli_has(u->cli, "access-log"), &u->http, err));
    MLO_TRY(mlo_serve_gc(u->cli, u->db, u->blobs, &u->gc, err));
    MLO_TRY(mlo_schedules_start(u->db, 0, &u->schedules, err));
    mlo_listen_url(&u->listen, mlo_http_tls(u->http), mlo_http_port(u->http), u->url, sizeof u->url);
    const struct mlo_brood_options brood = {
        .count = (unsigned)u->workers,
        .database = worker,
        .blobs = u->blob_url,
        .work_dir = u->work_dir,
        .log_path = u->worker_log,
        .threads = (unsigned)u->threads,
    };
    MLO_TRY(mlo_brood_start(&brood, &u->brood, err));
    MLO_TRY(mlo_fs_write_atomic(u->url_path, u->url, strlen(u->url), err));
out:
    free(server);
    free(worker);
    return status;
}

static enum mlo_status announce(struct up *u, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf token = MLO_BUF_INIT;
    char code[48];
    MLO_TRY(mlo_fs_read(u->token_path, TOKEN_BYTES, &token, err));
    token.data[strcspn(token.data, "\r\n")] = '\0';
    MLO_TRY(mlo_http_login_code(u->http, token.data, code, err));
    MLO_TRY(mlo_cli_print(err,
                          "ready: %s\n"
                          "  pages, signed in (once):  %s/login?token=%s\n"
                          "  in another shell:         export MLOPT_URL=%s MLOPT_TOKEN=\"$(cat '%s')\"\n"
                          "  stop with Ctrl-C; data in %s\n",
                          u->url, u->url, code, u->url, u->token_path, u->dir));
out:
    if (token.data)
        explicit_bzero(token.data, token.len);
    mlo_buf_clear(&token);
    return status;
}

static bool postgres_lives(const struct up *u)
{
    siginfo_t info = {0};
    pid_t pid = mlo_embedded_pid(u->pg);
    /* WNOWAIT: its owner reaps it */
    return pid > 0 && (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0);
}

/* PostgreSQL ended by itself: started again, requests and leases live on. One that keeps ending is given
 * up. */
static enum mlo_status revive_postgres(struct up *u, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    uint64_t now = mlo_clock_ns();
    u->revivals = now - u->revived_ns < (uint64_t)REVIVAL_WINDOW_MS * 1000000u ? u->revivals + 1 : 1;
    u->revived_ns = now;
    if (u->revivals > REVIVALS_MAX) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "PostgreSQL ended again and again");
    } else {
        mlo_log(MLO_LOG_WARN, "PostgreSQL ended; it is started again", NULL);
        status = mlo_embedded_restart(u->pg, err);
    }
    if (status != MLO_OK) {
        mlo_error_where(err, "%s/postgres.log", u->pg_dir);
        mlo_error_hint(err, "read the end of its log; then start again: mlopt up --data %s", u->dir);
    }
    return status;
}

static enum mlo_status serve(struct up *u, struct mlo_error *err)
{
    for (;;) {
        int number = mlo_serve_wait_signal(TICK_MS);
        if (number == SIGINT || number == SIGTERM)
            return MLO_OK;
        mlo_brood_tend(u->brood);
        if (!postgres_lives(u)) {
            enum mlo_status status = revive_postgres(u, err);
            if (status != MLO_OK)
                return status;
        }
    }
}

static void stop_parts(struct up *u)
{
    bool was_up = u->http != NULL;
    if (was_up)
        mlo_cli_note(u->cli, "stopping: workers hand back what they have (Ctrl-C again: at once)");
    /* without a database nothing can be handed back: the leases run out */
    mlo_brood_stop(u->brood, u->pg && postgres_lives(u) ? WORKER_GRACE_MS : 0);
    mlo_schedules_stop(u->schedules);
    mlo_gc_service_stop(u->gc);
    mlo_http_stop(u->http, DRAIN_MS);
    mlo_webhooks_stop(u->webhooks);
    mlo_ledger_close(u->ledger);
    mlo_blob_store_close(u->blobs);
    mlo_db_close(u->db);
    mlo_embedded_stop(u->pg);
    if (was_up) {
        unlink(u->url_path);
        mlo_cli_note(u->cli, "stopped");
    }
    if (u->lock_fd >= 0)
        close(u->lock_fd);
    free(u->pg_dir);
    free(u->blob_url);
    free(u->work_dir);
    free(u->ledger_dir);
    free(u->token_path);
    free(u->url_path);
    free(u->worker_log);
    free(u->lock_path);
}

static enum mlo_status up_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct up u = {.cli = cli, .lock_fd = -1};
    const char *given = NULL, *listen = mlo_cli_opt(cli, "listen");
    char *absolute = NULL;
    mlo_serve_block_signals(); /* before any thread: all of them inherit it */
    MLO_TRY(mlo_serve_log(cli, "up", err));
    MLO_TRY(mlo_cli_required(cli, "data", &given, err));
    MLO_TRY(mlo_listen_parse(listen ? listen : MLO_DEFAULT_LISTEN, &u.listen, err));
    MLO_TRY(mlo_cli_int(cli, "workers", 1, 0, 256, &u.workers, err));
    int64_t share = mlo_cpu_count() / MLO_MAX(u.workers, 1); /* workers share the cores */
    MLO_TRY(mlo_cli_int(cli, "threads", MLO_MAX(share, 1), 1, 1024, &u.threads, err));
    MLO_TRY(make_folder(&u, given, &absolute, err));
    MLO_TRY(make_paths(&u, err));
    MLO_TRY(take_lock(&u, err));
    if (!mlo_cli_opt(cli, "blobs"))
        MLO_TRY(private_folder(&u, "blobs", err));
    MLO_TRY(private_folder(&u, "work", err));
    MLO_TRY(start_parts(&u, err));
    MLO_TRY(announce(&u, err));
    MLO_TRY(serve(&u, err));
out:
    stop_parts(&u);
    free(absolute);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"data", 0, "DIR", "the folder that holds everything; made when it is not there"},
    {"blobs", 0, "URL",
     "the blob store, when it is not in DIR: s3:bucket/prefix?endpoint=… (docs/storage.md)"},
    {"listen", 0, "ADDRESS:PORT", "where the server listens (" MLO_DEFAULT_LISTEN "); port 0: any free one"},
    {"workers", 0, "N", "worker processes (1)"},
    {"threads", 0, "N", "threads of a worker's job (its share of the CPUs)"},
    {"access-log", 0, NULL, "log every request"},
    MLO_OPTION_LEDGER_MIRROR,
    MLO_OPTION_GC,
    MLO_OPTION_WEBHOOKS,
    MLO_OPTION_METRICS,
    MLO_OPTION_RATE,
    MLO_OPTION_TLS,
    MLO_OPTION_LOG,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_up = {
    .name = "up",
    .group = "Service",
    .run = up_run,
    .options = options,
    .positional = "--data DIR",
    .help = "start everything on this machine: database, server, workers",
    .detail =
        "DIR holds the database (pg/), the files (blobs/), the ledgers (ledger/), the admin token (token, "
        "mode 0600), and, while "
        "it\n"
        "runs, the address (url). Ctrl-C stops all of it in order; what was running is taken up again.\n",
    .flags = MLO_CLI_OWN_SIGNALS,
};
