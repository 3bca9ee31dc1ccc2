/* The private PostgreSQL: starting, waiting, stopping. Where its programs, user and socket are:
 * embedded_place.c. */
#include "registry/embedded_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    INITDB_TIMEOUT_S = 600,
    START_TIMEOUT_S = 300,
    STOP_TIMEOUT_S = 60,
    ORPHAN_TIMEOUT_S = 120,
    START_TRIES = 6
};

/* The process in postmaster.pid when it really is the server of this cluster; 0 otherwise. */
static pid_t server_of(const struct mlo_embedded *pg, const char *pid_file)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_error ignored = {0};
    pid_t pid = 0;
    if (mlo_fs_read(pid_file, 65536, &text, &ignored) == MLO_OK) {
        char link[64], *there = NULL, *ours = realpath(pg->cluster, NULL);
        long n = strtol(mlo_buf_str(&text), NULL, 10);
        snprintf(link, sizeof link, "/proc/%ld/cwd", n);
        if (n > 1)
            there = realpath(link, NULL); /* PostgreSQL works in its data folder */
        if (there && ours && strcmp(there, ours) == 0)
            pid = (pid_t)n;
        free(there);
        free(ours);
    }
    mlo_buf_clear(&text);
    return pid;
}

/* We hold the folder's lock, so a server that still runs on it lost its parent: it is stopping already (it
 * gets SIGINT at its parent's death), or must. A pid file that names somebody else is stale. */
static enum mlo_status end_orphan(const struct mlo_embedded *pg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *pid_file = mlo_fs_join(pg->cluster, "postmaster.pid", NULL);
    if (!pid_file)
        return mlo_error_nomem(err);
    pid_t pid = server_of(pg, pid_file);
    uint64_t begin_ns = mlo_clock_ns();
    if (pid)
        kill(pid, SIGINT);
    while (pid && kill(pid, 0) == 0) {
        uint64_t waited_s = (mlo_clock_ns() - begin_ns) / 1000000000;
        if (waited_s > ORPHAN_TIMEOUT_S) {
            status = mlo_error_set(err, MLO_ECONFLICT,
                                   "a PostgreSQL server left behind in %s (process %d) does not stop",
                                   pg->dir, (int)pid);
            mlo_error_hint(err, "end it: kill -QUIT %d", (int)pid);
            break;
        }
        mlo_clock_sleep_ms(20);
        pid = server_of(pg, pid_file);
    }
    if (status == MLO_OK)
        unlink(pid_file);
    free(pid_file);
    return status;
}

static enum mlo_status lock_folder(struct mlo_embedded *pg, struct mlo_error *err)
{
    char *path = mlo_fs_join(pg->dir, "lock", NULL);
    if (!path)
        return mlo_error_nomem(err);
    pg->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int e = errno;
    free(path);
    if (pg->lock_fd < 0)
        return mlo_error_errno(err, e, "cannot lock %s", pg->dir);
    if (flock(pg->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        mlo_error_set(err, MLO_ECONFLICT, "%s is in use by another mlopt", pg->dir);
        mlo_error_hint(err, "stop the other one, or choose another data folder");
        return MLO_ECONFLICT;
    }
    return MLO_OK;
}

static enum mlo_status make_cluster(struct mlo_embedded *pg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int exit_code = 0;
    char *program = NULL, *fresh = NULL, *version = mlo_fs_join(pg->cluster, "PG_VERSION", NULL);
    if (!version)
        return mlo_error_nomem(err);
    bool there = mlo_fs_exists(version);
    free(version);
    if (there)
        return MLO_OK;
    /* made beside and renamed, so that a half-made one is never taken for a cluster */
    program = mlo_fs_join(pg->bindir, "initdb", NULL);
    fresh = mlo_fs_join(pg->dir, "cluster.new", NULL);
    if (!program || !fresh) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_fs_remove_tree(fresh);
    const char *argv[] = {
        program, "-D", fresh,  "-U",          MLO_EMBEDDED_ADMIN,  "-A",
        "trust", "-E", "UTF8", "--no-locale", "--no-instructions", pg->no_fsync ? "--no-sync" : NULL,
        NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    const char *const env[] = {"PGOPTIONS", "PGDATA", "MLOPT_TOKEN", NULL};
    o.argv = argv, o.env = env, o.cwd = pg->dir;
    o.stdout_fd = o.stderr_fd = pg->log_fd;
    o.run_as_uid = pg->uid, o.run_as_gid = pg->gid;
    MLO_TRY(mlo_process_run(&o, INITDB_TIMEOUT_S * 1000, 0, NULL, &exit_code, err));
    if (exit_code != 0) {
        mlo_error_set(err, MLO_EIO, "initdb failed with exit code %d", exit_code);
        status = mlo_embedded_log_tail(pg, MLO_EIO, err);
        goto out;
    }
    if (rename(fresh, pg->cluster) != 0)
        status = mlo_error_errno(err, errno, "cannot make %s", pg->cluster);
out:
    if (status != MLO_OK && fresh)
        mlo_fs_remove_tree(fresh);
    free(program);
    free(fresh);
    return status;
}

static enum mlo_status launch(struct mlo_embedded *pg, struct mlo_error *err)
{
    struct mlo_buf sockets = MLO_BUF_INIT, connections = MLO_BUF_INIT;
    char *program = mlo_fs_join(pg->bindir, "postgres", NULL);
    mlo_buf_printf(&sockets, "unix_socket_directories=%s", pg->socket_dir);
    mlo_buf_printf(&connections, "max_connections=%u", pg->max_connections);
    enum mlo_status status = MLO_OK;
    if (!program || !mlo_buf_ok(&sockets) || !mlo_buf_ok(&connections)) {
        status = mlo_error_nomem(err);
    } else {
        const char *argv[] = {program,
                              "-D",
                              pg->cluster,
                              "-c",
                              "listen_addresses=",
                              "-c",
                              mlo_buf_str(&sockets),
                              "-c",
                              "unix_socket_permissions=0700",
                              "-c",
                              mlo_buf_str(&connections),
                              "-c",
                              "logging_collector=off",
                              "-c",
                              pg->no_fsync ? "fsync=off" : "fsync=on",
                              NULL};
        const char *const env[] = {"PGOPTIONS", "PGDATA", "PGPORT", "MLOPT_TOKEN", NULL};
        struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
        o.argv = argv, o.env = env, o.cwd = pg->dir;
        o.stdout_fd = o.stderr_fd = pg->log_fd;
        o.own_group = true; /* Ctrl-C is for us: we stop it when we are done with it */
        o.die_with_parent = true;
        o.death_signal = SIGINT; /* fast shutdown; SIGTERM would wait for clients */
        o.run_as_uid = pg->uid, o.run_as_gid = pg->gid;
        status = mlo_process_start(&o, &pg->pid, err);
    }
    free(program);
    mlo_buf_clear(&sockets);
    mlo_buf_clear(&connections);
    return status;
}

/* MLO_EUNAVAILABLE when the server ended again: worth another try, since the backends of a killed predecessor
 * hold its shared memory for a moment. */
static enum mlo_status wait_ready(struct mlo_embedded *pg, struct mlo_error *err)
{
    char *conninfo = mlo_embedded_conninfo(pg, NULL, "postgres");
    if (!conninfo)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    uint64_t begin_ns = mlo_clock_ns();
    while (PQping(conninfo) != PQPING_OK) {
        int wait_status;
        if (waitpid(pg->pid, &wait_status, WNOHANG) == pg->pid) {
            pg->pid = 0;
            mlo_error_set(err, MLO_EUNAVAILABLE, "PostgreSQL ended while starting");
            status = mlo_embedded_log_tail(pg, MLO_EUNAVAILABLE, err);
            break;
        }
        if ((mlo_clock_ns() - begin_ns) / 1000000000 > START_TIMEOUT_S) {
            mlo_error_set(err, MLO_ETIMEOUT, "PostgreSQL was not ready after %d s", START_TIMEOUT_S);
            status = mlo_embedded_log_tail(pg, MLO_ETIMEOUT, err);
            break;
        }
        mlo_clock_sleep_ms(10);
    }
    free(conninfo);
    return status;
}

/* What is left of a killed predecessor ends soon, though on a loaded machine not at once; another reason gets
 * a few tries. */
static bool may_pass(const struct mlo_error *err, int tries, uint64_t begin_ns)
{
    if (err && strstr(err->message, "shared memory"))
        return (mlo_clock_ns() - begin_ns) / 1000000000 < ORPHAN_TIMEOUT_S;
    return tries < START_TRIES;
}

static enum mlo_status bring_up(struct mlo_embedded *pg, struct mlo_error *err)
{
    uint64_t begin_ns = mlo_clock_ns();
    for (int tries = 1;; tries++) {
        enum mlo_status status = launch(pg, err);
        if (status == MLO_OK)
            status = wait_ready(pg, err);
        if (status != MLO_EUNAVAILABLE || !may_pass(err, tries, begin_ns))
            return status;
        mlo_clock_sleep_ms(250);
    }
}

enum mlo_status mlo_embedded_restart(struct mlo_embedded *pg, struct mlo_error *err)
{
    if (pg->pid > 0 && waitpid(pg->pid, NULL, WNOHANG) == 0)
        return mlo_error_set(err, MLO_ECONFLICT, "PostgreSQL still runs");
    pg->pid = 0;
    enum mlo_status status = end_orphan(pg, err);
    return status == MLO_OK ? bring_up(pg, err) : status;
}

enum mlo_status mlo_embedded_start(const struct mlo_embedded_options *options, struct mlo_embedded **out,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *admin = NULL;
    *out = NULL;
    struct mlo_embedded *pg = calloc(1, sizeof *pg);
    if (!pg)
        return mlo_error_nomem(err);
    pg->lock_fd = pg->log_fd = -1;
    pg->max_connections = options->max_connections ? options->max_connections : 100;
    pg->no_fsync = options->no_fsync;
    pg->database = strdup(options->database ? options->database : "mlopt");
    if (!pg->database) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_embedded_place(pg, options->dir, err));
    MLO_TRY(lock_folder(pg, err));
    MLO_TRY(end_orphan(pg, err));
    MLO_TRY(make_cluster(pg, err));
    MLO_TRY(bring_up(pg, err));
    admin = mlo_embedded_conninfo(pg, NULL, "postgres");
    if (!admin) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_db_bootstrap(admin, pg->database, err));
    *out = pg;
out:
    free(admin);
    if (status != MLO_OK)
        mlo_embedded_stop(pg);
    return status;
}

enum mlo_status mlo_embedded_attach(const char *dir, struct mlo_embedded **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *conninfo = NULL, *version = mlo_fs_join(dir, "cluster", "PG_VERSION", NULL);
    struct mlo_embedded *pg = calloc(1, sizeof *pg);
    *out = NULL;
    if (!pg || !version || !(pg->database = strdup("mlopt"))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    pg->lock_fd = pg->log_fd = -1;
    if (!mlo_fs_exists(version)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no database in %s", dir);
        goto out;
    }
    MLO_TRY(mlo_embedded_place(pg, dir, err));
    conninfo = mlo_embedded_conninfo(pg, NULL, "postgres");
    if (!conninfo)
        status = mlo_error_nomem(err);
    else if (PQping(conninfo) != PQPING_OK)
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "the database in %s does not answer", dir);
out:
    if (pg)
        pg->short_socket_dir = false; /* it is another process's to remove */
    if (status == MLO_OK)
        *out = pg;
    else
        mlo_embedded_stop(pg);
    free(conninfo);
    free(version);
    return status;
}

char *mlo_embedded_conninfo(const struct mlo_embedded *pg, const char *role, const char *database)
{
    struct mlo_buf text = MLO_BUF_INIT;
    const char *const parts[] = {"host", pg->socket_dir, "user", role ? role : MLO_EMBEDDED_ADMIN, "dbname",
                                 database ? database : pg->database,
                                 /* never far away, only busy */
                                 "connect_timeout", "60"};
    for (size_t i = 0; i < MLO_COUNT(parts); i += 2) {
        mlo_buf_printf(&text, "%s%s='", i ? " " : "", parts[i]);
        for (const char *c = parts[i + 1]; *c; c++) {
            if (*c == '\'' || *c == '\\')
                mlo_buf_putc(&text, '\\');
            mlo_buf_putc(&text, *c);
        }
        mlo_buf_putc(&text, '\'');
    }
    return mlo_buf_take(&text);
}

pid_t mlo_embedded_pid(const struct mlo_embedded *pg)
{
    return pg->pid;
}

void mlo_embedded_stop(struct mlo_embedded *pg)
{
    if (!pg)
        return;
    if (pg->pid > 0) {
        uint64_t begin_ns = mlo_clock_ns();
        bool quit = false;
        kill(pg->pid, SIGINT);
        while (waitpid(pg->pid, NULL, WNOHANG) == 0) {
            if (!quit && (mlo_clock_ns() - begin_ns) / 1000000000 > STOP_TIMEOUT_S) {
                kill(pg->pid, SIGQUIT); /* recovers at the next start */
                quit = true;
            }
            mlo_clock_sleep_ms(5);
        }
    }
    if (pg->short_socket_dir)
        rmdir(pg->socket_dir);
    if (pg->log_fd >= 0)
        close(pg->log_fd);
    if (pg->lock_fd >= 0)
        close(pg->lock_fd);
    free(pg->dir);
    free(pg->cluster);
    free(pg->socket_dir);
    free(pg->bindir);
    free(pg->database);
    free(pg);
}
