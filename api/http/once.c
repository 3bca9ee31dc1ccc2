/* Idempotency-Key, for all rows that take one (draft-ietf-httpapi-idempotency-key-header).
 *
 * The whole of the handler is one transaction with the row of its key: what it begins itself nests. So a
 * server that is killed did all of it and kept the answer, or did nothing. A request that fails leaves no
 * key; a refusal of gates does, since it is recorded like a move. */
#include <string.h>

#include "api/http/http_impl.h"
#include "base/periodic.h"

enum { TRIES = 4 };

/* Only these of a handler's headers are part of the answer. */
static const char *const KEPT[] = {"Location", "ETag"};

static enum mlo_status read_key(struct mlo_request *req, const char *text, const char **key,
                                struct mlo_error *err)
{
    size_t length;
    enum mlo_status status = mlo_idempotency_key(text, key, &length, err);
    if (status == MLO_OK && !(*key = mlo_arena_strndup(req->arena, *key, length)))
        status = mlo_error_nomem(err);
    return status;
}

static void reply_other(struct mlo_request *req, const struct mlo_idempotent *request)
{
    struct mlo_error err = {0};
    if (req->route->kind == MLO_ROUTE_PAGE) {
        mlo_error_set(&err, MLO_EINVAL, "this form was sent before with something else in it");
        mlo_error_hint(&err, "open the form again: each is sent once");
        req->module->failed(req, &err, 422);
        return;
    }
    mlo_error_set(&err, MLO_EINVAL, "the Idempotency-Key '%s' was used for another request", request->key);
    mlo_error_where(&err, "header Idempotency-Key");
    mlo_error_hint(&err, "use a new key for a new request, and the same body for the same one");
    mlo_reply_coded_problem(req, 422, "idempotency-key-reused", "key of another request", false, &err);
}

static void reply_busy(struct mlo_request *req, const struct mlo_idempotent *request)
{
    struct mlo_error err = {0};
    if (req->route->kind == MLO_ROUTE_PAGE) {
        mlo_error_set(&err, MLO_ECONFLICT, "this form was sent before, and that is still under way");
        mlo_error_hint(&err, "send it again in a moment, which does nothing twice, or open the form again");
        req->module->failed(req, &err, 409);
    } else {
        mlo_error_set(&err, MLO_ECONFLICT, "the request with the Idempotency-Key '%s' is under way",
                      request->key);
        mlo_error_where(&err, "header Idempotency-Key");
        mlo_error_hint(&err,
                       "send it again after the seconds that Retry-After says: its answer will be there");
        mlo_reply_coded_problem(req, 409, "idempotency-key-in-use", "request under way", true, &err);
    }
    mlo_reply_header(req, "Retry-After", "1");
}

static enum mlo_status replay(struct mlo_request *req, const struct mlo_idempotent_answer *answer,
                              struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(KEPT); i++) {
        const char *value = mlo_json_str(answer->headers, KEPT[i], NULL);
        if (value)
            mlo_reply_header(req, KEPT[i], "%s", value);
    }
    mlo_reply_header(req, "Idempotency-Replayed", "true");
    mlo_buf_append(&req->out, mlo_buf_str(&answer->body), answer->body.len);
    if (req->route->kind == MLO_ROUTE_PAGE)
        return mlo_reply_empty(req, answer->http_status);
    return mlo_reply_out(req, answer->http_status,
                         answer->http_status >= 400 ? "application/problem+json" : "application/json", err);
}

/* The answer as it is kept: without its secret. */
static enum mlo_status keep_body(const struct mlo_request *req, struct mlo_buf *out, struct mlo_error *err)
{
    const char *secret = req->route->secret;
    if (!secret || req->status >= 300) {
        mlo_buf_append(out, mlo_buf_str(&req->out), req->out.len);
        return MLO_OK;
    }
    json_t *value = json_loadb(mlo_buf_str(&req->out), req->out.len, 0, NULL);
    enum mlo_status status = MLO_OK;
    if (!value || json_object_set_new(value, secret, json_null()) != 0)
        status = mlo_error_nomem(err);
    else
        mlo_json_canonical(value, out);
    json_decref(value);
    return status;
}

static enum mlo_status finish(struct mlo_request *req, const struct mlo_idempotent *request,
                              struct mlo_error *err)
{
    struct mlo_idempotent_answer answer = {.http_status = req->status, .headers = json_object()};
    enum mlo_status status = keep_body(req, &answer.body, err);
    for (const struct mlo_header *h = req->headers; h; h = h->next)
        for (size_t i = 0; i < MLO_COUNT(KEPT); i++)
            if (strcmp(h->name, KEPT[i]) == 0 &&
                json_object_set_new(answer.headers, KEPT[i], json_string(h->value)) != 0)
                status = mlo_error_nomem(err);
    if (status == MLO_OK)
        status = mlo_idempotency_finish(req->conn, request, &answer, err);
    mlo_idempotent_answer_clear(&answer);
    return status;
}

/* A page that says what was wrong with its form: it stands, and nothing else does. */
static bool says_no(const struct mlo_request *req)
{
    return req->route->kind == MLO_ROUTE_PAGE && req->status >= 400;
}

/* The handler, and its answer in req. MLO_OK: it and its key are to be kept. */
static enum mlo_status run(struct mlo_request *req, const struct mlo_idempotent *request,
                           struct mlo_error *err)
{
    enum mlo_status status = req->route->handler(req, err);
    if (status == MLO_EGATE)
        mlo_reply_problem(req, err);
    else if (status != MLO_OK)
        return status;
    if (says_no(req))
        return MLO_ECANCELLED;
    if (!mlo_db_in_transaction(req->conn))
        return mlo_error_set(err, MLO_EINTERNAL, "%s %s lets go of its transaction", req->route->method,
                             req->route->path);
    return finish(req, request, err);
}

/* What is said of a transaction that ended must last (mlo_db_unlock_early). `status`, or why that is not so.
 */
static enum mlo_status settle(struct mlo_request *req, enum mlo_status status, struct mlo_error *err)
{
    struct mlo_error why = {0};
    enum mlo_status settled = mlo_db_settle(req->conn, &why);
    if (settled != MLO_OK)
        *err = why;
    return settled == MLO_OK ? status : settled;
}

/* `again`: the database wants it to be tried once more. */
static enum mlo_status attempt(struct mlo_request *req, const struct mlo_idempotent *request, bool *again,
                               struct mlo_error *err)
{
    struct mlo_idempotent_answer answer = {0};
    struct mlo_db_conn *conn;
    enum mlo_idempotency how = MLO_IDEMPOTENCY_NEW;
    enum mlo_status status;
    *again = false;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_db_begin(conn, err));
    mlo_queue_wake_hold(conn);
    status = mlo_idempotency_begin(conn, request, &how, &answer, err);
    if (status == MLO_OK && how == MLO_IDEMPOTENCY_NEW)
        status = run(req, request, err);
    else if (status == MLO_OK) /* there is nothing to keep */
        status = MLO_ECANCELLED;
    if (!req->conn) { /* a failure that let go of it, and of all that was done */
        mlo_queue_wake_release(NULL, false);
        goto out;
    }
    status = mlo_db_end(req->conn, status, err);
    mlo_queue_wake_release(req->conn, status == MLO_OK);
    *again = status != MLO_OK && mlo_db_retryable(req->conn);
    if (status == MLO_ECANCELLED && how == MLO_IDEMPOTENCY_NEW && says_no(req))
        status = MLO_OK;
    if (how == MLO_IDEMPOTENCY_NEW) {
        if (status == MLO_ECONFLICT || status == MLO_EPRECONDITION)
            status = settle(req, status, err);
        goto out;
    }
    status = MLO_OK;
    if (how == MLO_IDEMPOTENCY_DONE)
        status = settle(req, MLO_OK, err) == MLO_OK ? replay(req, &answer, err) : err->status;
    else if (how == MLO_IDEMPOTENCY_OTHER)
        reply_other(req, request);
    else
        reply_busy(req, request);
out:
    mlo_idempotent_answer_clear(&answer);
    return status;
}

enum mlo_status mlo_request_handle(struct mlo_request *req, struct mlo_error *err)
{
    /* a form has its key in a field */
    const char *header = !req->route->once                    ? NULL
                         : req->route->kind == MLO_ROUTE_PAGE ? mlo_request_form(req, "key")
                                                              : mlo_request_header(req, "Idempotency-Key");
    struct mlo_idempotent request = {.token_id = req->who.token_id, .method = req->method, .path = req->path};
    enum mlo_status status;
    bool again = true;
    status = header ? read_key(req, header, &request.key, err) : MLO_OK;
    if (status != MLO_OK)
        return status;
    if (!header || (req->route->dry && mlo_json_bool(req->state->json, "dry_run", false)))
        return req->route->handler(req, err);
    mlo_digest_of(mlo_buf_str(&req->body), req->body.len, &request.body);
    for (int i = 0; again && i < TRIES; i++) {
        if (i) {
            mlo_reply_reset(req);
            json_decref(req->state->members);
            req->state->members = NULL;
            mlo_clock_sleep_ms(5u << i);
        }
        status = attempt(req, &request, &again, err);
    }
    if (status == MLO_OK) /* whose handler spoke of it before it was committed */
        mlo_ledger_kick(req->http->options.ledger);
    return status;
}

/* Whether or not this server collects garbage: keys come by themselves. */
static void expire(struct mlo_periodic *clock, void *arg)
{
    const struct mlo_http *http = arg;
    struct mlo_error err = {0};
    enum mlo_status status = MLO_OK;
    int64_t removed = MLO_IDEMPOTENCY_BATCH;
    while (status == MLO_OK && removed >= MLO_IDEMPOTENCY_BATCH && !mlo_periodic_stopping(clock)) {
        struct mlo_db_conn *conn = NULL;
        status = mlo_db_acquire(http->options.db, &conn, &err);
        if (status == MLO_OK)
            status = mlo_idempotency_expire(conn, &removed, &err);
        mlo_db_release(conn);
    }
    if (status != MLO_OK)
        mlo_log_error(MLO_LOG_WARN, "old Idempotency-Keys stay; the next look goes on", &err);
}

enum mlo_status mlo_keys_start(struct mlo_http *http, struct mlo_error *err)
{
    const uint64_t every_ms = http->options.keys_every_ms;
    return mlo_periodic_start(expire, http, every_ms, every_ms, "forgets old Idempotency-Keys", &http->keys,
                              err);
}
