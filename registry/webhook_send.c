/* The threads that send what is due. A delivery is leased for one attempt; what a killed server had leased is
 * due again when the lease has run out. No transaction is open while an attempt is made. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "registry/audit.h"
#include "registry/sql_impl.h"
#include "registry/webhook_impl.h"

enum {
    SEND_CLAIM,
    SEND_SECRETS,
    SEND_LOCK,
    SEND_ATTEMPT,
    SEND_DONE,
    SEND_FAILED,
    SEND_WELL,
    SEND_ILL,
    SEND_GIVE_UP,
    SEND_PURGE,
    SEND_PURGE_SECRETS
};

/* At most this many attempts of one webhook at a time; of one that is failing, one. */
#define PARALLEL "2"

const struct mlo_sql mlo_sql_webhook_send[] = {
    /* Whose turn it is: one with nothing under way first. $2: another one besides those under way may be
     * made; $3: one of a webhook that is failing. */
    [SEND_CLAIM] =
        {"webhook_claim",
         "WITH hook AS (SELECT w.id, w.failing_since IS NOT NULL AS failing, (SELECT count(*) FROM "
         "webhook_delivery o WHERE o.webhook_id = w.id AND o.lease IS NOT NULL AND o.lease_until > now()) AS "
         "sending, (SELECT min(d.next_at) FROM webhook_delivery d WHERE d.webhook_id = w.id AND d.state = "
         "'pending' AND d.next_at <= now() AND coalesce(d.lease_until <= now(), true)) AS due FROM webhook w "
         "WHERE w.state = 'enabled'), "
         "turn AS (SELECT id FROM hook WHERE due IS NOT NULL AND (sending = 0 OR ($2 AND NOT failing AND "
         "sending < " PARALLEL ")) AND ($3 OR NOT failing) ORDER BY sending > 0, due, id LIMIT 1) "
         "UPDATE webhook_delivery SET lease = gen_random_uuid(), lease_until = now() + make_interval(secs => "
         "$1::bigint), attempts = attempts + 1, tries = tries + 1 WHERE id = (SELECT d.id FROM "
         "webhook_delivery d WHERE d.webhook_id = (SELECT id FROM turn) AND d.state = 'pending' AND "
         "d.next_at "
         "<= now() AND coalesce(d.lease_until <= now(), true) ORDER BY d.next_at LIMIT 1 FOR UPDATE OF d "
         "SKIP "
         "LOCKED) RETURNING id, lease, message, attempts, tries, webhook_id, project_id, (SELECT url FROM "
         "webhook w WHERE w.id = webhook_id) AS url, (SELECT failing FROM hook h WHERE h.id = webhook_id) AS "
         "failing",
         3},
    [SEND_SECRETS] =
        {"webhook_secrets",
         "SELECT secret FROM webhook_secret WHERE webhook_id = $1 AND coalesce(expires_at > now(), "
         "true) ORDER BY id DESC LIMIT 8",
         1},
    /* before the delivery: who removes the webhook has it first as well */
    [SEND_LOCK] = {"webhook_send_lock", "SELECT id FROM webhook WHERE id = $1 FOR NO KEY UPDATE", 1},
    [SEND_ATTEMPT] =
        {"webhook_attempt",
         "INSERT INTO webhook_attempt (delivery_id, number, ms, http_status, address, error) VALUES "
         "($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
         6},
    [SEND_DONE] = {"webhook_done",
                   "UPDATE webhook_delivery SET state = 'delivered', delivered_at = now(), lease = NULL, "
                   "lease_until = NULL WHERE id = $1 AND lease = $2::uuid RETURNING id",
                   2},
    /* 'failed' already: the webhook was removed meanwhile */
    [SEND_FAILED] =
        {"webhook_failed",
         "UPDATE webhook_delivery SET state = CASE state WHEN 'pending' THEN $3 ELSE state END, next_at = "
         "now() + make_interval(secs => $4::double precision), lease = NULL, lease_until = NULL WHERE id = "
         "$1 AND lease = $2::uuid RETURNING id",
         4},
    [SEND_WELL] = {"webhook_well",
                   "UPDATE webhook SET failing_since = NULL WHERE id = $1 AND failing_since IS NOT NULL", 1},
    [SEND_ILL] = {"webhook_ill",
                  "UPDATE webhook SET failing_since = now() WHERE id = $1 AND failing_since IS NULL", 1},
    [SEND_GIVE_UP] = {"webhook_give_up",
                      "UPDATE webhook SET state = 'disabled', state_reason = $2 WHERE id = $1 AND state = "
                      "'enabled' AND ($3 OR "
                      "failing_since < now() - make_interval(secs => $4::bigint)) RETURNING id",
                      4},
    /* what waits for a webhook that is enabled is given up by its attempts */
    [SEND_PURGE] =
        {"webhook_purge",
         "DELETE FROM webhook_delivery WHERE id IN (SELECT d.id FROM webhook_delivery d JOIN webhook w ON "
         "w.id = d.webhook_id WHERE d.created_at < now() - interval '30 days' AND (d.state <> 'pending' OR "
         "w.state <> 'enabled') AND coalesce(d.lease_until <= now(), true) ORDER BY d.created_at LIMIT "
         "$1::bigint) RETURNING id",
         1},
    [SEND_PURGE_SECRETS] = {"webhook_purge_secrets", "DELETE FROM webhook_secret WHERE expires_at < now()",
                            0},
};
const size_t mlo_sql_webhook_send_count = MLO_COUNT(mlo_sql_webhook_send);

enum {
    THREADS = 3,
    THREADS_MAX = 16,
    TIMEOUT_MS = 15000,
    POLL_MS = 1000,
    GIVE_UP_S = 5 * 86400,
    LEASE_MARGIN_S = 30,
    PURGE_S = 3600,
    PURGE_BATCH = 1000,
    RETRY_AFTER_MAX_S = 3600
};

/* How long after an attempt the next one is made; after the last of them it has failed. About three days. */
static const unsigned delays_s[] = {5, 60, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400};

struct mlo_webhooks {
    struct mlo_webhooks_options o;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    atomic_bool stopping;
    pthread_mutex_t claiming;      /* one claim at a time, so that these are exact */
    unsigned sending, ill_sending; /* threads with an attempt; of them, of webhooks that are failing */
    pthread_t threads[THREADS_MAX];
    unsigned count;
    atomic_ullong purged_ns;
};

struct claim {
    int64_t id, attempts, tries, webhook_id, project_id;
    char lease[40], message[64];
    bool failing;
    char *url;
    json_t *secrets;
    struct mlo_buf body;
};

static void claim_clear(struct claim *c)
{
    free(c->url);
    json_decref(c->secrets);
    mlo_buf_clear(&c->body);
}

static bool stopping(void *arg)
{
    return atomic_load(&((struct mlo_webhooks *)arg)->stopping);
}

/* --- in the database ----------------------------------------------------------------------------- */

/* What receivers that hang can hold up is bounded: the last thread that is free goes to a webhook that has
 * nothing under way, and never, unless there is but one, to one that is failing. */
static enum mlo_status claim(struct mlo_webhooks *w, struct mlo_db_conn *conn, struct mlo_rows *rows,
                             bool *found, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    pthread_mutex_lock(&w->claiming);
    mlo_param_i64(&p, w->o.timeout_ms / 1000 + LEASE_MARGIN_S);
    mlo_param_bool(&p, w->sending + 1 < w->o.threads);
    mlo_param_bool(&p, w->o.threads == 1 || w->ill_sending + 1 < w->o.threads);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_webhook_send[SEND_CLAIM], &p, rows, err);
    *found = status == MLO_OK && mlo_rows_count(rows) > 0;
    w->sending += *found;
    w->ill_sending += *found && mlo_rows_bool(rows, 0, 8);
    pthread_mutex_unlock(&w->claiming);
    return status;
}

static void claim_end(struct mlo_webhooks *w, const struct claim *c)
{
    pthread_mutex_lock(&w->claiming);
    w->sending--;
    w->ill_sending -= c->failing;
    pthread_mutex_unlock(&w->claiming);
}

static enum mlo_status take(struct mlo_webhooks *w, struct mlo_db_conn *conn, struct claim *c, bool *found,
                            struct mlo_error *err)
{
    struct mlo_params of = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status;
    MLO_TRY(claim(w, conn, &rows, found, err));
    if (!*found)
        goto out;
    c->failing = mlo_rows_bool(&rows, 0, 8);
    c->id = mlo_rows_i64(&rows, 0, 0);
    snprintf(c->lease, sizeof c->lease, "%s", mlo_rows_text(&rows, 0, 1));
    snprintf(c->message, sizeof c->message, "%s", mlo_rows_text(&rows, 0, 2));
    c->attempts = mlo_rows_i64(&rows, 0, 3);
    c->tries = mlo_rows_i64(&rows, 0, 4);
    c->webhook_id = mlo_rows_i64(&rows, 0, 5);
    c->project_id = mlo_rows_i64(&rows, 0, 6);
    c->url = strdup(mlo_rows_text(&rows, 0, 7));
    c->secrets = json_array();
    mlo_param_i64(&of, c->webhook_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook_send[SEND_SECRETS], &of, &rows, err));
    for (int r = 0; r < mlo_rows_count(&rows); r++)
        json_array_append_new(c->secrets, json_string(mlo_rows_text(&rows, r, 0)));
    if (!c->url || !c->secrets)
        status = mlo_error_nomem(err);
    else
        status = mlo_webhook_payload(conn, c->id, &c->body, err);
out:
    mlo_rows_clear(&rows);
    return status;
}

static double delay_s(const struct claim *c, const struct mlo_webhook_post *post)
{
    size_t n = MLO_MIN((size_t)MLO_MAX(c->tries, 1) - 1, MLO_COUNT(delays_s) - 1);
    uint32_t random;
    mlo_random_bytes(&random, sizeof random);
    double delay =
        delays_s[n] * (0.8 + 0.4 * (random / 4294967296.0)); /* many that failed at once come apart */
    return MLO_MAX(delay, (double)MLO_MIN(post->retry_after_s, (int64_t)RETRY_AFTER_MAX_S));
}

/* The webhook has failed for long, or its receiver says that it is gone. */
static enum mlo_status give_up(struct mlo_webhooks *w, struct mlo_db_conn *conn, const struct claim *c,
                               const struct mlo_webhook_post *post, struct mlo_error *err)
{
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    struct mlo_params p = MLO_PARAMS_INIT;
    char object[40], why[96];
    bool gone = post->http_status == 410;
    json_t *after;
    if (gone)
        snprintf(why, sizeof why, "the receiver answered 410: it is gone");
    else
        snprintf(why, sizeof why, "no attempt worked for %u hours", w->o.give_up_s / 3600);
    mlo_param_i64(&p, c->webhook_id);
    mlo_param_text(&p, why);
    mlo_param_bool(&p, gone);
    mlo_param_i64(&p, w->o.give_up_s);
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_webhook_send[SEND_GIVE_UP], &p, NULL, err);
    if (status != MLO_OK)
        return status == MLO_ENOTFOUND ? MLO_OK : status;
    snprintf(object, sizeof object, "webhook %lld", (long long)c->webhook_id);
    after = json_pack("{s:s, s:s}", "state", "disabled", "why", why);
    const struct mlo_audit_event event = {.action = "webhook.disable", .object = object, .after = after};
    status = after ? mlo_audit_append(conn, c->project_id, &actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

/* What came of it, unless the lease ran out and somebody else has it now. */
static enum mlo_status settle(struct mlo_webhooks *w, struct mlo_db_conn *conn, const struct claim *c,
                              const struct mlo_webhook_post *post, struct mlo_error *err)
{
    struct mlo_params made = MLO_PARAMS_INIT, done = MLO_PARAMS_INIT, of = MLO_PARAMS_INIT;
    bool ok = post->http_status >= 200 && post->http_status < 300;
    bool last = c->tries > (int64_t)MLO_COUNT(delays_s);
    bool cut_off = !post->http_status && stopping(w); /* by us: no fault of the receiver */
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&of, c->webhook_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook_send[SEND_LOCK], &of, NULL, err));
    mlo_param_i64(&made, c->id);
    mlo_param_i64(&made, c->attempts);
    mlo_param_i64(&made, post->ms);
    mlo_param_id(&made, post->http_status);
    mlo_param_text(&made, *post->address ? post->address : NULL);
    mlo_param_text(&made, *post->error ? post->error : NULL);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook_send[SEND_ATTEMPT], &made, NULL, err));
    mlo_param_i64(&done, c->id);
    mlo_param_text(&done, c->lease);
    if (!ok) {
        mlo_param_text(&done, last && !cut_off ? "failed" : "pending");
        mlo_param_f64(&done, cut_off ? 0 : delay_s(c, post));
    }
    status = mlo_sql_number(conn, &mlo_sql_webhook_send[ok ? SEND_DONE : SEND_FAILED], &done, NULL, err);
    if (status == MLO_ENOTFOUND) {
        status = MLO_OK;
        goto out;
    }
    if (status != MLO_OK || cut_off)
        goto out;
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook_send[ok ? SEND_WELL : SEND_ILL], &of, NULL, err));
    if (!ok)
        MLO_TRY(give_up(w, conn, c, post, err));
out:
    return mlo_db_end(conn, status, err);
}

/* --- the threads --------------------------------------------------------------------------------- */

/* One delivery, if one is due. */
static enum mlo_status send_one(struct mlo_webhooks *w, bool *found, struct mlo_error *err)
{
    struct mlo_db_conn *conn = NULL;
    struct claim c = {0};
    enum mlo_status status;
    *found = false;
    MLO_TRY(mlo_db_acquire(w->o.db, &conn, err));
    status = take(w, conn, &c, found, err);
    bool told = status == MLO_OK; /* else: what cannot be composed fails like what cannot be sent */
    mlo_db_release(conn);
    conn = NULL;
    if (!*found || (!told && mlo_status_info(status)->retry))
        goto out;
    struct mlo_webhook_post post = {.url = c.url,
                                    .message = c.message,
                                    .body = mlo_buf_str(&c.body),
                                    .size = c.body.len,
                                    .secrets = c.secrets,
                                    .guard = &w->o.guard,
                                    .timeout_ms = w->o.timeout_ms,
                                    .cancelled = stopping,
                                    .cancelled_arg = w};
    if (told)
        mlo_webhook_post(&post);
    else
        snprintf(post.error, sizeof post.error, "%.250s", err ? err->message : "");
    MLO_TRY(mlo_db_acquire(w->o.db, &conn, err));
    MLO_TRY(settle(w, conn, &c, &post, err));
out:
    mlo_db_release(conn);
    if (*found)
        claim_end(w, &c);
    claim_clear(&c);
    return status;
}

/* Old deliveries and secrets that have expired go, once an hour. */
static enum mlo_status purge(struct mlo_webhooks *w, struct mlo_error *err)
{
    struct mlo_db_conn *conn = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    unsigned long long now = mlo_clock_ns(), before = atomic_load(&w->purged_ns);
    enum mlo_status status;
    if ((before && now - before < PURGE_S * 1000000000ull) ||
        !atomic_compare_exchange_strong(&w->purged_ns, &before, now))
        return MLO_OK;
    MLO_TRY(mlo_db_acquire(w->o.db, &conn, err));
    mlo_param_i64(&p, PURGE_BATCH);
    do
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook_send[SEND_PURGE], &p, &rows, err));
    while (mlo_rows_count(&rows) == PURGE_BATCH && !stopping(w));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_webhook_send[SEND_PURGE_SECRETS], NULL, NULL, err));
out:
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
    return status;
}

static void *keep_sending(void *arg)
{
    struct mlo_webhooks *w = arg;
    enum mlo_status before = MLO_OK;
    while (!stopping(w)) {
        struct mlo_error err = {0};
        struct timespec until;
        bool found = false;
        enum mlo_status status = send_one(w, &found, &err);
        if (status == MLO_OK && !found)
            status = purge(w, &err);
        if (status != MLO_OK && status != before)
            mlo_log(MLO_LOG_WARN, "a webhook could not be sent; it is tried again", "error", err.message,
                    NULL);
        before = status;
        if (status == MLO_OK && found)
            continue;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + w->o.poll_ms * 1000000ull;
        until.tv_sec += (time_t)(ns / 1000000000u);
        until.tv_nsec = (long)(ns % 1000000000u);
        pthread_mutex_lock(&w->lock);
        while (!stopping(w) && pthread_cond_timedwait(&w->woken, &w->lock, &until) != ETIMEDOUT) {
        }
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

const struct mlo_webhook_guard *mlo_webhooks_guard(const struct mlo_webhooks *webhooks)
{
    static const struct mlo_webhook_guard strict;
    return webhooks ? &webhooks->o.guard : &strict;
}

enum mlo_status mlo_webhooks_start(const struct mlo_webhooks_options *options, struct mlo_webhooks **out,
                                   struct mlo_error *err)
{
    pthread_condattr_t attributes;
    struct mlo_webhooks *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return mlo_error_nomem(err);
    w->o = *options;
    w->o.threads = MLO_MIN(options->threads ? options->threads : THREADS, (unsigned)THREADS_MAX);
    w->o.timeout_ms = options->timeout_ms ? options->timeout_ms : TIMEOUT_MS;
    w->o.poll_ms = options->poll_ms ? options->poll_ms : POLL_MS;
    w->o.give_up_s = options->give_up_s ? options->give_up_s : GIVE_UP_S;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->claiming, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->woken, &attributes);
    pthread_condattr_destroy(&attributes);
    for (; w->count < w->o.threads; w->count++) {
        if (pthread_create(&w->threads[w->count], NULL, keep_sending, w) != 0) {
            mlo_webhooks_stop(w);
            return mlo_error_set(err, MLO_EUNAVAILABLE, "cannot start the threads that send webhooks");
        }
    }
    *out = w;
    return MLO_OK;
}

void mlo_webhooks_stop(struct mlo_webhooks *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->stopping, true);
    pthread_cond_broadcast(&w->woken);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->woken);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->claiming);
    free(w);
}
