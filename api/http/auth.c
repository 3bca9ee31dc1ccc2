/* Who asks: bearer tokens on API routes, the session cookie on pages; one-time codes for signing in. */
#include <stdlib.h>
#include <string.h>

#include "api/http/http_impl.h"

enum mlo_status mlo_request_db(struct mlo_request *req, struct mlo_db_conn **out, struct mlo_error *err)
{
    enum mlo_status status = req->conn ? MLO_OK : mlo_db_acquire(req->http->options.db, &req->conn, err);
    *out = req->conn;
    return status;
}

void mlo_request_db_release(struct mlo_request *req)
{
    mlo_db_release(req->conn);
    req->conn = NULL;
}

/* In one round trip with other requests, and with no connection of its own. */
static enum mlo_status identify_together(struct mlo_request *req, const char *token,
                                         struct mlo_principal *who, struct mlo_error *err)
{
    struct mlo_request_state *state = req->state;
    enum mlo_status status;
    MLO_TRY(mlo_token_ask(token, &state->token, err));
    state->asks[MLO_ASK_TOKEN] = state->token.ask;
    MLO_TRY(mlo_gather_read(req->http->gather, state->asks, MLO_ASKS, err));
    state->gathered = true;
    state->token.ask = state->asks[MLO_ASK_TOKEN];
    MLO_TRY(mlo_token_answer(req->http->options.db, &state->token, who, err));
out:
    return status;
}

enum mlo_status mlo_http_identify(struct mlo_request *req, const char *token, struct mlo_principal *who,
                                  struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    enum mlo_status status;
    if (req->route->gathered && req->state->bodiless &&
        mlo_names_ask(req, &req->state->asks[MLO_ASK_VERSION]))
        return identify_together(req, token, who, err);
    MLO_TRY(mlo_request_db(req, &conn, err));
    if (req->state->bodiless)
        MLO_TRY(mlo_names_ahead(req, conn, err));
    MLO_TRY(mlo_token_check(conn, token, who, err));
out:
    if (status != MLO_OK || !req->state->bodiless)
        mlo_request_db_release(req); /* a body may follow, slowly: it needs none while it comes */
    return status;
}

/* The token in "Authorization: Bearer …"; NULL when there is none. */
static const char *bearer(const struct mlo_request *req)
{
    const char *text = mlo_request_header(req, "Authorization");
    if (!text || strncasecmp(text, "Bearer ", 7) != 0)
        return NULL;
    text += 7;
    return text + strspn(text, " ");
}

/* The password in "Authorization: Basic …", where the row allows it; the name may be any. */
static const char *basic(const struct mlo_request *req)
{
    const char *text = mlo_request_header(req, "Authorization"), *token = NULL;
    struct mlo_buf pair = MLO_BUF_INIT;
    if (!req->route->basic || !text || strncasecmp(text, "Basic ", 6) != 0)
        return NULL;
    text += 6 + strspn(text + 6, " ");
    if (mlo_base64_decode(text, strlen(text), &pair) && strlen(mlo_buf_str(&pair)) == pair.len) {
        const char *colon = strchr(mlo_buf_str(&pair), ':');
        token = colon ? mlo_arena_strdup(req->arena, colon + 1) : NULL;
    }
    if (pair.data)
        explicit_bzero(pair.data, pair.len);
    mlo_buf_clear(&pair);
    return token;
}

static enum mlo_status to_sign_in(struct mlo_request *req)
{
    /* only a plain path of this server comes back as ?next= */
    if (strspn(req->path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") ==
            strlen(req->path) &&
        strlen(req->path) > 1)
        return mlo_reply_redirect(req, "/login?next=%s", req->path);
    return mlo_reply_redirect(req, "/login");
}

enum mlo_status mlo_request_authorize(struct mlo_request *req, struct mlo_error *err)
{
    bool page = req->route->kind == MLO_ROUTE_PAGE;
    if (req->route->open)
        return MLO_OK;
    const char *token = page ? mlo_request_cookie(req, MLO_SESSION_COOKIE) : bearer(req);
    if (!token && !page)
        token = basic(req);
    if (!token || !token[0]) {
        if (page && strcmp(req->route->method, "GET") == 0)
            return to_sign_in(req);
        mlo_error_set(err, MLO_EAUTH, "this needs a token");
        mlo_error_hint(err, page ? "sign in at /login"
                                 : "send the header Authorization: Bearer mlopt_…, or set MLOPT_TOKEN");
        return MLO_EAUTH;
    }
    enum mlo_status status = mlo_http_identify(req, token, &req->who, err);
    if (status == MLO_EAUTH && page && strcmp(req->route->method, "GET") == 0)
        return to_sign_in(req);
    if (status != MLO_OK)
        return status;
    req->token = mlo_arena_strdup(req->arena, token);
    if (!req->token)
        return mlo_error_nomem(err);
    unsigned wait_s;
    if (!mlo_rate_take(req->http->rate, req->who.token_id, mlo_clock_ns(), &wait_s)) {
        mlo_reply_too_many(req, wait_s);
        return MLO_OK; /* it is answered */
    }
    if (page && req->who.kind == MLO_KIND_SERVICE) {
        mlo_error_set(err, MLO_EFORBIDDEN, "%s is a service account: the pages are for people",
                      req->who.name);
        mlo_error_hint(err, "sign in with a token of your own");
        return MLO_EFORBIDDEN;
    }
    enum mlo_role has = req->route->by_stage ? mlo_principal_most(&req->who) : req->who.role;
    if (has < req->route->role) {
        mlo_error_set(err, MLO_EFORBIDDEN, "the token '%s' has the role %s; this needs %s", req->who.name,
                      mlo_role_name(has), mlo_role_name(req->route->role));
        mlo_error_hint(err, "ask an admin for a token with the role %s", mlo_role_name(req->route->role));
        return MLO_EFORBIDDEN;
    }
    return MLO_OK;
}

struct mlo_actor mlo_request_actor(const struct mlo_request *req)
{
    const char *agent = mlo_request_header(req, "User-Agent");
    const char *via = req->route->kind == MLO_ROUTE_PAGE        ? "web"
                      : agent && mlo_str_starts(agent, "mlopt") ? "cli"
                                                                : "api";
    struct mlo_actor actor = {.token_id = req->who.token_id,
                              .name = req->who.name,
                              .role = req->who.role,
                              .rollback = req->who.rollback,
                              .project_id = req->who.project_id,
                              .kind = req->who.kind,
                              .may_approve = req->who.may_approve,
                              .only_stage = req->who.only_stage,
                              .via = via,
                              .address = req->address,
                              .request_id = req->id};
    memcpy(actor.stage_role, req->who.stage_role, sizeof actor.stage_role);
    return actor;
}

/* --- one-time codes ---------------------------------------------------------------------------- */

enum mlo_status mlo_http_login_code(struct mlo_http *http, const char *token, char code[48],
                                    struct mlo_error *err)
{
    uint8_t random[16];
    char *copy = strdup(token);
    if (!copy)
        return mlo_error_nomem(err);
    mlo_random_bytes(random, sizeof random);
    mlo_hex(random, sizeof random, code);
    pthread_mutex_lock(&http->lock);
    struct mlo_login_code *slot = &http->codes[http->next_code++ % MLO_LOGIN_CODES];
    free(slot->token);
    slot->token = copy;
    mlo_digest_of(code, strlen(code), &slot->digest);
    pthread_mutex_unlock(&http->lock);
    return MLO_OK;
}

const char *mlo_http_redeem(struct mlo_request *req, const char *code)
{
    struct mlo_http *http = req->http;
    struct mlo_digest digest;
    const char *token = NULL;
    mlo_digest_of(code, strlen(code), &digest);
    pthread_mutex_lock(&http->lock);
    for (size_t i = 0; i < MLO_LOGIN_CODES && !token; i++) {
        struct mlo_login_code *slot = &http->codes[i];
        if (slot->token && mlo_equal_constant_time(&slot->digest, &digest, sizeof digest)) {
            token = mlo_arena_strdup(req->arena, slot->token);
            free(slot->token);
            slot->token = NULL;
        }
    }
    pthread_mutex_unlock(&http->lock);
    return token;
}
