/* Who writes ledgers: the key, the thread, and one call that brings a project's ledger up to date. */
#include "registry/ledger_service.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "registry/ledger_impl.h"
#include "registry/sql_impl.h"

enum { SERVICE_PROJECT, SERVICE_HEADS };

const struct mlo_sql mlo_sql_ledger_service[] = {
    [SERVICE_PROJECT] = {"ledger_project", "SELECT name FROM project WHERE id = $1", 1},
    [SERVICE_HEADS] =
        {"ledger_heads",
         "SELECT p.id, p.name, coalesce(h.n, 0), EXISTS (SELECT 1 FROM ledger_event e WHERE e.project_id "
         "= p.id AND e.audit_seq > coalesce(h.audit_seq, 0)) FROM project p LEFT JOIN ledger_head h ON "
         "h.project_id = p.id ORDER BY p.id",
         0},
};
const size_t mlo_sql_ledger_service_count = MLO_COUNT(mlo_sql_ledger_service);

enum { POLL_MS = 1000, RETRY_MS = 5000, PACK_GRACE_S = 3600, PACK_LOOK_S = 600 };

static const char KEY[] = "ledger.key", NEXT_KEY[] = "ledger.key.next";

void mlo_ledger_step(struct mlo_ledger *ledger, const char *step)
{
    if (ledger->on_step)
        ledger->on_step(ledger->step_arg, step);
}

char *mlo_ledger_repository(const struct mlo_ledger *ledger, const char *project)
{
    struct mlo_buf path = MLO_BUF_INIT;
    mlo_buf_printf(&path, "%s/%s.git", ledger->dir, project);
    return mlo_buf_take(&path);
}

/* --- the key ------------------------------------------------------------------------------------ */

/* Makes a key, registers it and puts its file in place, in this order: a crash leaves either the key as it
 * was and a file that is taken away, or a registered key whose file is put in place (settle_key). */
static enum mlo_status make_key(struct mlo_ledger *ledger, struct mlo_db_conn *conn,
                                const struct mlo_actor *actor, const struct mlo_sign_key *before,
                                struct mlo_sign_key **out, struct mlo_error *err)
{
    char *path = mlo_fs_join(ledger->dir, KEY, NULL), *next = mlo_fs_join(ledger->dir, NEXT_KEY, NULL);
    char host[80] = "", comment[96];
    struct mlo_sign_key *key = NULL;
    enum mlo_status status = path && next ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    gethostname(host, sizeof host - 1);
    snprintf(comment, sizeof comment, "mlopt ledger %s", host);
    MLO_TRY(mlo_sign_key_create(next, &key, err));
    mlo_ledger_step(ledger, "key file");
    status = mlo_keys_add(conn, actor, key, comment, before, err);
    if (status != MLO_OK) {
        unlink(next);
        goto out;
    }
    mlo_ledger_step(ledger, "key registered");
    if (rename(next, path) != 0) {
        status = mlo_error_errno(err, errno, "cannot put the new key at %s", path);
        goto out;
    }
    *out = key;
    key = NULL;
out:
    mlo_sign_key_free(key);
    free(path);
    free(next);
    return status;
}

/* A key file that a crash left: put in place when it was registered, else taken away. */
static enum mlo_status settle_key(struct mlo_ledger *ledger, struct mlo_db_conn *conn, struct mlo_error *err)
{
    char *path = mlo_fs_join(ledger->dir, KEY, NULL), *next = mlo_fs_join(ledger->dir, NEXT_KEY, NULL);
    struct mlo_sign_key *key = NULL;
    int64_t ignored;
    enum mlo_status status = path && next ? MLO_OK : mlo_error_nomem(err);
    if (status != MLO_OK || !mlo_fs_exists(next))
        goto out;
    MLO_TRY(mlo_sign_key_load(next, &key, err));
    MLO_TRY(mlo_db_begin(conn, err));
    status = mlo_keys_hold(conn, mlo_sign_key_public(key), &ignored, err);
    bool registered = status == MLO_OK;
    status = mlo_db_end(conn, status, err);
    if (status != MLO_OK && status != MLO_ENOTFOUND && status != MLO_ECONFLICT)
        goto out;
    status = MLO_OK;
    if (registered ? rename(next, path) != 0 : unlink(next) != 0)
        status = mlo_error_errno(err, errno, "cannot settle the key %s", next);
out:
    mlo_sign_key_free(key);
    free(path);
    free(next);
    return status;
}

static enum mlo_status open_key(struct mlo_ledger *ledger, struct mlo_db_conn *conn, struct mlo_error *err)
{
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    char *path = mlo_fs_join(ledger->dir, KEY, NULL);
    enum mlo_status status = path ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    MLO_TRY(settle_key(ledger, conn, err));
    if (!mlo_fs_exists(path)) {
        MLO_TRY(make_key(ledger, conn, &actor, NULL, &ledger->key, err));
    } else {
        MLO_TRY(mlo_sign_key_load(path, &ledger->key, err));
        MLO_TRY(mlo_keys_add(conn, &actor, ledger->key, "mlopt ledger", NULL, err));
    }
out:
    free(path);
    return status;
}

enum mlo_status mlo_ledger_rotate(struct mlo_ledger *ledger, struct mlo_db_conn *conn,
                                  const struct mlo_actor *actor, struct mlo_error *err)
{
    struct mlo_sign_key *key = NULL;
    pthread_mutex_lock(&ledger->lock);
    enum mlo_status status = mlo_actor_require(actor, 0, MLO_ADMIN, err);
    if (status == MLO_OK)
        status = make_key(ledger, conn, actor, ledger->key, &key, err);
    if (status == MLO_OK) {
        mlo_sign_key_free(ledger->key);
        ledger->key = key;
    }
    pthread_mutex_unlock(&ledger->lock);
    return status;
}

/* --- one project ---------------------------------------------------------------------------------- */

/* The key was rotated by another server that shares this folder: its file is another one now. */
static bool reload_key(struct mlo_ledger *ledger)
{
    struct mlo_sign_key *key = NULL;
    struct mlo_error ignored = {0};
    char *path = mlo_fs_join(ledger->dir, KEY, NULL);
    bool changed = path && mlo_sign_key_load(path, &key, &ignored) == MLO_OK &&
                   !mlo_public_key_eq(mlo_sign_key_public(key), mlo_sign_key_public(ledger->key));
    if (changed) {
        mlo_sign_key_free(ledger->key);
        ledger->key = key;
    } else {
        mlo_sign_key_free(key);
    }
    free(path);
    return changed;
}

static enum mlo_status write_pending(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    bool written = true;
    do {
        pthread_mutex_lock(&ledger->lock);
        status = mlo_ledger_write_next(ledger, conn, project_id, &written, err);
        if (status == MLO_ECONFLICT && reload_key(ledger))
            status = mlo_ledger_write_next(ledger, conn, project_id, &written, err);
        pthread_mutex_unlock(&ledger->lock);
    } while (status == MLO_OK && written);
    return status;
}

static enum mlo_status sync_named(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                  const char *project, bool packs, struct mlo_error *err)
{
    char *path = mlo_ledger_repository(ledger, project);
    enum mlo_status status = path ? write_pending(ledger, conn, project_id, err) : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = mlo_ledger_repo_sync(ledger, conn, project_id, path, packs, err);
    free(path);
    return status;
}

static enum mlo_status sync_one(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                bool packs, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, project_id);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_ledger_service[SERVICE_PROJECT], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no project %lld", (long long)project_id);
    if (status == MLO_OK)
        status = sync_named(ledger, conn, project_id, mlo_rows_text(&rows, 0, 0), packs, err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_ledger_sync(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                struct mlo_error *err)
{
    return sync_one(ledger, conn, project_id, true, err);
}

enum mlo_status mlo_ledger_freshen(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                   struct mlo_error *err)
{
    return sync_one(ledger, conn, project_id, false, err);
}

enum mlo_status mlo_ledger_push(struct mlo_ledger *ledger, const char *project, struct mlo_error *err)
{
    struct mlo_buf to = MLO_BUF_INIT;
    if (!ledger->mirror)
        return MLO_OK;
    char *path = mlo_ledger_repository(ledger, project);
    mlo_buf_printf(&to, "%s/%s.git", ledger->mirror, project);
    enum mlo_status status =
        path && mlo_buf_ok(&to) ? mlo_ledger_repo_push(path, mlo_buf_str(&to), err) : mlo_error_nomem(err);
    mlo_buf_clear(&to);
    free(path);
    return status;
}

/* --- the thread ----------------------------------------------------------------------------------- */

/* All projects whose head is another than the one in `done` ({name: n}), or that have something to write. */
static enum mlo_status round_of_all(struct mlo_ledger *ledger, json_t *done, struct mlo_error *err)
{
    struct mlo_db_conn *conn = NULL;
    struct mlo_rows rows = {0};
    struct mlo_ledger_place head;
    enum mlo_status status, failed = MLO_OK;
    MLO_TRY(mlo_db_acquire(ledger->db, &conn, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_ledger_service[SERVICE_HEADS], NULL, &rows, err));
    for (int r = 0; r < mlo_rows_count(&rows); r++) {
        const char *project = mlo_rows_text(&rows, r, 1);
        int64_t id = mlo_rows_i64(&rows, r, 0), n = mlo_rows_i64(&rows, r, 2);
        if (!mlo_rows_bool(&rows, r, 3) && mlo_json_i64(done, project, 0) == n)
            continue;
        /* the head from before: what another server adds meanwhile is of the next round */
        status = mlo_ledger_head(conn, id, &head, err);
        if (status == MLO_OK)
            status = sync_named(ledger, conn, id, project, true, err);
        if (status == MLO_OK)
            status = mlo_ledger_push(ledger, project, err);
        if (status == MLO_OK)
            json_object_set_new(done, project, json_integer(head.n));
        else
            failed = status;
    }
    status = failed;
out:
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
    return status;
}

static void *keep_written(void *arg)
{
    struct mlo_ledger *ledger = arg;
    json_t *done = json_object();
    enum mlo_status before = MLO_OK;
    uint64_t all_ns = mlo_clock_ns();
    pthread_mutex_lock(&ledger->lock);
    while (!ledger->stopping) {
        struct mlo_error err = {0};
        struct timespec until;
        ledger->kicked = false;
        pthread_mutex_unlock(&ledger->lock);
        /* also where nothing was written: what packs replaced goes when it was kept for long enough */
        if (mlo_clock_ns() - all_ns > (uint64_t)MLO_MAX(ledger->pack_grace_s, PACK_LOOK_S) * 1000000000u) {
            json_object_clear(done);
            all_ns = mlo_clock_ns();
        }
        enum mlo_status status = round_of_all(ledger, done, &err);
        if (status != MLO_OK && status != before)
            mlo_log(MLO_LOG_WARN, "a ledger could not be written; it is tried again", "error", err.message,
                    NULL);
        before = status;
        pthread_mutex_lock(&ledger->lock);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (status == MLO_OK ? POLL_MS : RETRY_MS) / 1000;
        while (!ledger->stopping && !ledger->kicked &&
               pthread_cond_timedwait(&ledger->woken, &ledger->lock, &until) == 0)
            ;
    }
    pthread_mutex_unlock(&ledger->lock);
    json_decref(done);
    return NULL;
}

void mlo_ledger_kick(struct mlo_ledger *ledger)
{
    if (!ledger)
        return;
    pthread_mutex_lock(&ledger->lock);
    ledger->kicked = true;
    pthread_cond_signal(&ledger->woken);
    pthread_mutex_unlock(&ledger->lock);
}

enum mlo_status mlo_ledger_start(struct mlo_ledger *ledger, struct mlo_error *err)
{
    if (pthread_create(&ledger->thread, NULL, keep_written, ledger) != 0)
        return mlo_error_set(err, MLO_EUNAVAILABLE, "cannot start the thread that writes ledgers");
    ledger->started = true;
    return MLO_OK;
}

/* --- open and close -------------------------------------------------------------------------------- */

enum mlo_status mlo_ledger_open(const struct mlo_ledger_options *options, struct mlo_ledger **out,
                                struct mlo_error *err)
{
    struct mlo_db_conn *conn = NULL;
    pthread_condattr_t attributes;
    struct mlo_ledger *ledger = calloc(1, sizeof *ledger);
    enum mlo_status status = MLO_OK;
    *out = NULL;
    if (!ledger)
        return mlo_error_nomem(err);
    pthread_mutex_init(&ledger->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ledger->woken, &attributes);
    pthread_condattr_destroy(&attributes);
    ledger->db = options->db;
    ledger->on_step = options->on_step;
    ledger->step_arg = options->step_arg;
    ledger->pack_grace_s = options->pack_grace_s == MLO_LEDGER_NO_GRACE ? 0
                           : options->pack_grace_s                      ? options->pack_grace_s
                                                                        : PACK_GRACE_S;
    ledger->dir = strdup(options->dir);
    ledger->mirror = options->mirror ? strdup(options->mirror) : NULL;
    if (!ledger->dir || (options->mirror && !ledger->mirror)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_mkdirs_private(ledger->dir, err));
    MLO_TRY(mlo_db_acquire(ledger->db, &conn, err));
    MLO_TRY(open_key(ledger, conn, err));
    *out = ledger;
    ledger = NULL;
out:
    mlo_db_release(conn);
    mlo_ledger_close(ledger);
    return status;
}

void mlo_ledger_close(struct mlo_ledger *ledger)
{
    if (!ledger)
        return;
    if (ledger->started) {
        pthread_mutex_lock(&ledger->lock);
        ledger->stopping = true;
        pthread_cond_signal(&ledger->woken);
        pthread_mutex_unlock(&ledger->lock);
        pthread_join(ledger->thread, NULL);
    }
    mlo_sign_key_free(ledger->key);
    pthread_cond_destroy(&ledger->woken);
    pthread_mutex_destroy(&ledger->lock);
    free(ledger->dir);
    free(ledger->mirror);
    free(ledger);
}
