/* Tokens: "mlopt_" + 32 random bytes in base64url; only their SHA-256 is kept. */
#include "registry/audit.h"
#include "registry/sql_impl.h"
#include "registry/together.h"

#include <string.h>

#define PREFIX "mlopt_"
enum { SECRET_BYTES = 32, SECRET_CHARS = 43, SHOWN_CHARS = 12 };

enum { TOKEN_ADD, TOKEN_FIND, TOKEN_FIND_EACH, TOKEN_USED, TOKEN_REVOKE, TOKEN_GET, TOKEN_LIST };

/* What read_principal reads. */
#define FOUND                                                                                                \
    "t.id, t.name, t.role, t.project_id, t.hash, t.revoked_at IS NOT NULL OR m.removed_at IS NOT NULL, "     \
    "coalesce(t.expires_at <= now(), false), t.may_rollback, t.stage, m.kind, m.name, m.role, "              \
    "m.staging_role, m.production_role, m.may_approve, p.name, "                                             \
    "t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute' "
#define ITS_MEMBER "LEFT JOIN member m ON m.id = t.member_id LEFT JOIN project p ON p.id = m.project_id "

const struct mlo_sql mlo_sql_token[] = {
    [TOKEN_ADD] =
        {"token_add",
         "INSERT INTO token (hash, prefix, name, role, project_id, created_by, expires_at, may_rollback, "
         "member_id, stage) VALUES ($1, $2, $3, $4, $5, $6, to_timestamp($7::double precision / 1e6), "
         "$8::boolean, $9, $10) RETURNING id",
         10},
    [TOKEN_FIND] = {"token_find", "SELECT " FOUND "FROM token t " ITS_MEMBER "WHERE t.hash IN ($1, $2)", 2},
    [TOKEN_FIND_EACH] = {"token_find_each",
                         "SELECT n.i, " FOUND "FROM unnest($1::text[], $2::text[]) WITH ORDINALITY "
                         "AS n(plain, scoped, i) JOIN token t ON t.hash = ANY (ARRAY[decode(n.plain, 'hex'), "
                         "decode(n.scoped, 'hex')]) " ITS_MEMBER,
                         2},
    [TOKEN_USED] = {"token_used",
                    "UPDATE token SET last_used_at = now() WHERE id = $1 "
                    "AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')",
                    1},
    [TOKEN_REVOKE] = {"token_revoke",
                      "UPDATE token SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL", 1},
    [TOKEN_GET] = {"token_get",
                   "SELECT coalesce(project_id, 0), name, role, prefix, coalesce(member_id, 0) FROM token "
                   "WHERE id = $1",
                   1},
    [TOKEN_LIST] =
        {"token_list",
         "SELECT t.id, t.prefix, t.name, "
         "CASE WHEN t.role = 'admin' THEN coalesce(m.role, t.role) ELSE t.role END AS role, "
         "t.role = 'viewer' AS read_only, "
         "t.may_rollback, p.name AS project, m.name AS member, coalesce(m.kind, 'token') AS kind, "
         "t.stage, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.last_used_at "
         "FROM token t LEFT JOIN project p ON p.id = t.project_id "
         "LEFT JOIN member m ON m.id = t.member_id WHERE ($1::bigint IS NULL OR t.project_id = $1) "
         "AND ($2::bigint IS NULL OR t.member_id = $2) ORDER BY t.id DESC",
         2},
};
const size_t mlo_sql_token_count = MLO_COUNT(mlo_sql_token);

static void base64url(const uint8_t *bytes, size_t size, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint32_t bits = 0;
    int have = 0;
    for (size_t i = 0; i < size; i++) {
        bits = bits << 8 | bytes[i];
        for (have += 8; have >= 6; have -= 6)
            *out++ = digits[bits >> (have - 6) & 63];
    }
    if (have > 0)
        *out++ = digits[bits << (6 - have) & 63];
    *out = '\0';
}

/* What a token is found by. One of a member, or for one stage, has a name of its own: a program of before
 * these existed would take it for one that may do all that its role says. */
static void hash_of(const char *text, bool scoped, struct mlo_digest *out)
{
    char named[sizeof "scoped:" + MLO_TOKEN_TEXT_SIZE];
    snprintf(named, sizeof named, "%s%.*s", scoped ? "scoped:" : "", MLO_TOKEN_TEXT_SIZE, text);
    mlo_digest_of(named, strlen(named), out);
    explicit_bzero(named, sizeof named);
}

static enum mlo_status write_audit(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   int64_t project_id, const char *action, int64_t id, json_t *state_take,
                                   bool is_before, struct mlo_error *err)
{
    char object[40];
    if (!state_take)
        return mlo_error_nomem(err);
    snprintf(object, sizeof object, "token %lld", (long long)id);
    struct mlo_audit_event event = {.action = action, .object = object};
    *(is_before ? &event.before : &event.after) = state_take;
    enum mlo_status status = mlo_audit_append(conn, project_id, actor, &event, NULL, err);
    json_decref(state_take);
    return status;
}

enum mlo_status mlo_token_create(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *name,
                                 enum mlo_role role, int64_t project_id, int64_t expires_at_us,
                                 char text[MLO_TOKEN_TEXT_SIZE], int64_t *id, struct mlo_error *err)
{
    const struct mlo_token_request request = {
        .name = name, .role = role, .project_id = project_id, .expires_at_us = expires_at_us};
    return mlo_token_make(conn, actor, &request, text, id, err);
}

enum mlo_status mlo_token_make(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                               const struct mlo_token_request *request, char text[MLO_TOKEN_TEXT_SIZE],
                               int64_t *id, struct mlo_error *err)
{
    const char *name = request->name;
    enum mlo_role role = request->role;
    int64_t project_id = request->project_id, expires_at_us = request->expires_at_us;
    static const char *const rights[] = {
        [MLO_RIGHT_BY_ROLE] = "by role", [MLO_RIGHT_GRANTED] = "granted", [MLO_RIGHT_WITHHELD] = "withheld"};
    uint8_t secret[SECRET_BYTES];
    char prefix[SHOWN_CHARS + 1];
    struct mlo_digest hash;
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t made = 0;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    if (status == MLO_OK)
        status = mlo_actor_require_person(actor, err);
    if (status != MLO_OK)
        return status;
    if (!name || !*name || strlen(name) > 200)
        return mlo_error_set(err, MLO_EINVAL, "a token needs a name of 1 to 200 characters");
    if ((unsigned)role >= MLO_ROLE_COUNT)
        return mlo_error_set(err, MLO_EINVAL, "unknown role %d", (int)role);
    if (mlo_str_starts(name, "service:") || strcmp(name, "system") == 0)
        return mlo_error_set(err, MLO_EINVAL, "'%.60s' is a name that a token cannot have", name);
    if (request->stage && !mlo_stage_valid(request->stage)) {
        mlo_error_set(err, MLO_EINVAL, "there is no stage '%.60s'", request->stage);
        mlo_error_hint(err, "staging or production");
        return MLO_EINVAL;
    }
    if (request->stage && role != MLO_PROMOTER && role != MLO_APPROVER && !request->member) {
        mlo_error_set(err, MLO_EINVAL, "a %s has no rights of one stage alone", mlo_role_name(role));
        mlo_error_hint(err,
                       "a token for one stage is a promoter's or an approver's there, and reads elsewhere");
        return MLO_EINVAL;
    }
    if (request->member && request->rollback == MLO_RIGHT_GRANTED)
        return mlo_error_set(err, MLO_EINVAL, "a member's token may roll back what its member may");
    if (expires_at_us && expires_at_us <= mlo_clock_utc_us())
        return mlo_error_set(err, MLO_EINVAL, "the token would have expired already");
    mlo_random_bytes(secret, sizeof secret);
    memcpy(text, PREFIX, sizeof PREFIX);
    base64url(secret, sizeof secret, text + strlen(PREFIX));
    hash_of(text, request->member || request->stage, &hash);
    snprintf(prefix, sizeof prefix, "%s", text);

    mlo_param_digest(&p, &hash);
    mlo_param_text(&p, prefix);
    mlo_param_text(&p, name);
    mlo_param_text(&p, mlo_role_name(role));
    mlo_param_id(&p, project_id);
    mlo_param_text(&p, actor->name);
    mlo_param_id(&p, expires_at_us);
    if (request->rollback == MLO_RIGHT_BY_ROLE)
        mlo_param_null(&p);
    else
        mlo_param_bool(&p, request->rollback == MLO_RIGHT_GRANTED);
    mlo_param_id(&p, request->member);
    mlo_param_text(&p, request->stage);
    status = mlo_db_begin(conn, err);
    if (status == MLO_OK) {
        status = mlo_sql_number(conn, &mlo_sql_token[TOKEN_ADD], &p, &made, err);
        if (status == MLO_OK)
            status = write_audit(
                conn, actor, project_id, "token.create", made,
                json_pack("{s:s, s:s, s:s, s:I, s:s, s:s*, s:s*}", "name", name, "role",
                          request->member && role == MLO_ADMIN ? "the member's" : mlo_role_name(role),
                          "prefix", prefix, "expires_at_us", (json_int_t)expires_at_us, "rollback",
                          rights[request->rollback], "member", request->member_name, "stage", request->stage),
                false, err);
        status = mlo_db_end(conn, status, err);
    }
    if (status != MLO_OK)
        memset(text, 0, MLO_TOKEN_TEXT_SIZE);
    else if (id)
        *id = made;
    return status;
}

enum mlo_status mlo_token_revoke(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t id,
                                 struct mlo_error *err)
{
    return mlo_token_revoke_of(conn, actor, 0, id, err);
}

enum mlo_status mlo_token_revoke_of(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t member,
                                    int64_t id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows token = {0}, done = {0};
    mlo_param_i64(&p, id);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_token[TOKEN_GET], &p, &token, err));
    if (mlo_rows_count(&token) == 0 || (member && mlo_rows_i64(&token, 0, 4) != member)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no token %lld", (long long)id);
        goto out;
    }
    int64_t project_id = mlo_rows_i64(&token, 0, 0);
    MLO_TRY(mlo_actor_require(actor, project_id, MLO_ADMIN, err));
    MLO_TRY(mlo_actor_require_person(actor, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_token[TOKEN_REVOKE], &p, &done, err));
    if (mlo_rows_affected(&done) == 1)
        status = write_audit(conn, actor, project_id, "token.revoke", id,
                             json_pack("{s:s, s:s, s:s}", "name", mlo_rows_text(&token, 0, 1), "role",
                                       mlo_rows_text(&token, 0, 2), "prefix", mlo_rows_text(&token, 0, 3)),
                             true, err);
out:
    mlo_rows_clear(&token);
    mlo_rows_clear(&done);
    return mlo_db_end(conn, status, err);
}

/* FOUND. */
enum {
    ID,
    NAME,
    ROLE,
    BOUND_TO,
    HASH,
    REVOKED,
    EXPIRED,
    ROLLBACK,
    STAGE,
    KIND,
    MEMBER,
    MEMBER_ROLE,
    STAGING,
    PRODUCTION,
    APPROVE,
    PROJECT,
    STALE /* its last use was noted more than a minute ago */
};

/* A row with FOUND from a column on. */
struct found {
    const struct mlo_rows *rows;
    int row, first;
};

static const char *text_of(const struct found *f, int column)
{
    return mlo_rows_text(f->rows, f->row, f->first + column);
}

static bool bool_of(const struct found *f, int column)
{
    return mlo_rows_bool(f->rows, f->row, f->first + column);
}

static int64_t id_of(const struct found *f, int column)
{
    return mlo_rows_i64(f->rows, f->row, f->first + column);
}

/* The most of what was granted in a stage, as the columns say; NULL: as in the project. */
static enum mlo_role stage_role(const struct found *f, int column, enum mlo_role role)
{
    enum mlo_role granted;
    return mlo_role_parse(text_of(f, column), &granted) ? MLO_MAX(role, granted) : role;
}

/* What the row of a good token stands for. False: a role that this program does not know. */
static bool read_principal(const struct found *f, struct mlo_principal *out)
{
    enum mlo_role most, role;
    memset(out, 0, sizeof *out);
    out->token_id = id_of(f, ID);
    out->project_id = id_of(f, BOUND_TO);
    out->rollback = !text_of(f, ROLLBACK)  ? MLO_RIGHT_BY_ROLE
                    : bool_of(f, ROLLBACK) ? MLO_RIGHT_GRANTED
                                           : MLO_RIGHT_WITHHELD;
    if (!mlo_role_parse(text_of(f, ROLE), &most))
        return false;
    role = most;
    const char *kind = text_of(f, KIND);
    if (!kind) {
        snprintf(out->name, sizeof out->name, "%s", text_of(f, NAME));
    } else {
        bool service = strcmp(kind, "service") == 0;
        if (!mlo_role_parse(text_of(f, MEMBER_ROLE), &role))
            return false;
        out->kind = service ? MLO_KIND_SERVICE : MLO_KIND_PERSON;
        out->may_approve = bool_of(f, APPROVE);
        snprintf(out->name, sizeof out->name, "%s%s%s%s", service ? "service:" : "",
                 service ? text_of(f, PROJECT) : "", service ? "/" : "", text_of(f, MEMBER));
    }
    const char *only = text_of(f, STAGE);
    snprintf(out->only_stage, sizeof out->only_stage, "%s", only ? only : "");
    size_t count;
    const char *const *stages = mlo_stage_names(&count);
    for (size_t i = 0; i < count; i++) {
        enum mlo_role granted = stage_role(f, i == mlo_stage_index("staging") ? STAGING : PRODUCTION, role);
        bool here = !only || strcmp(only, stages[i]) == 0;
        out->stage_role[i] = here ? MLO_MIN(granted, most) : MLO_VIEWER;
    }
    out->role = only ? MLO_VIEWER : MLO_MIN(role, most);
    return true;
}

static bool is_token(const char *text, struct mlo_error *err)
{
    if (text && mlo_str_starts(text, PREFIX) && strlen(text) == strlen(PREFIX) + SECRET_CHARS)
        return true;
    mlo_error_set(err, MLO_EAUTH, "that is not a token");
    mlo_error_hint(err, "a token begins with " PREFIX " and has %zu characters",
                   strlen(PREFIX) + SECRET_CHARS);
    return false;
}

/* The row that a token's hashes found, `f->row` -1 for none, is one of it, and good. */
static enum mlo_status judge(const struct found *f, const struct mlo_digest hash[2],
                             struct mlo_principal *out, struct mlo_error *err)
{
    struct mlo_digest stored;
    bool found = f->row >= 0 && mlo_rows_digest(f->rows, f->row, f->first + HASH, &stored);
    bool plain = found && mlo_equal_constant_time(&hash[0], &stored, sizeof stored);
    bool bound = found && mlo_equal_constant_time(&hash[1], &stored, sizeof stored);
    if (!(plain || bound) || bool_of(f, REVOKED))
        return mlo_error_set(err, MLO_EAUTH, "the token is unknown or was revoked");
    if (bool_of(f, EXPIRED))
        return mlo_error_set(err, MLO_EAUTH, "the token has expired");
    if (!read_principal(f, out))
        return mlo_error_set(err, MLO_EINTERNAL, "token %lld has an unknown role", (long long)id_of(f, ID));
    return MLO_OK;
}

/* To the minute: a read asks for no write. */
static enum mlo_status note_use(struct mlo_db_conn *conn, int64_t id, struct mlo_error *err)
{
    struct mlo_params used = MLO_PARAMS_INIT;
    mlo_param_i64(&used, id);
    return mlo_db_exec(conn, &mlo_sql_token[TOKEN_USED], &used, NULL, err);
}

enum mlo_status mlo_token_check(struct mlo_db_conn *conn, const char *text, struct mlo_principal *out,
                                struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest hash[2];
    struct found found = {&rows, -1, 0};
    enum mlo_status status = MLO_OK;
    if (!is_token(text, err))
        return MLO_EAUTH;
    for (int scoped = 0; scoped < 2; scoped++) {
        hash_of(text, scoped, &hash[scoped]);
        mlo_param_digest(&p, &hash[scoped]);
    }
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_token[TOKEN_FIND], &p, &rows, err));
    found.row = mlo_rows_count(&rows) ? 0 : -1;
    MLO_TRY(judge(&found, hash, out, err));
    if (bool_of(&found, STALE))
        MLO_TRY(note_use(conn, out->token_id, err));
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_token_ask(const char *text, struct mlo_token_question *out, struct mlo_error *err)
{
    if (!is_token(text, err))
        return MLO_EAUTH;
    for (int scoped = 0; scoped < 2; scoped++) {
        hash_of(text, scoped, &out->hash[scoped]);
        mlo_digest_hex(&out->hash[scoped], out->hex[scoped]);
    }
    out->ask =
        (struct mlo_gather_ask){.sql = &mlo_sql_token[TOKEN_FIND_EACH], .values = {out->hex[0], out->hex[1]}};
    return MLO_OK;
}

enum mlo_status mlo_token_answer(struct mlo_db *db, const struct mlo_token_question *question,
                                 struct mlo_principal *out, struct mlo_error *err)
{
    const struct found found = {&question->ask.rows, question->ask.row, 1};
    struct mlo_db_conn *conn;
    enum mlo_status status = judge(&found, question->hash, out, err);
    if (status != MLO_OK || !bool_of(&found, STALE))
        return status;
    status = mlo_db_acquire(db, &conn, err);
    if (status == MLO_OK) {
        status = note_use(conn, out->token_id, err);
        mlo_db_release(conn);
    }
    return status;
}

static enum mlo_status list(struct mlo_db_conn *conn, int64_t project_id, int64_t member, json_t **out,
                            struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_id(&p, project_id);
    mlo_param_id(&p, member);
    return mlo_sql_array(conn, &mlo_sql_token[TOKEN_LIST], &p, out, err);
}

enum mlo_status mlo_token_list(struct mlo_db_conn *conn, int64_t project_id, json_t **out,
                               struct mlo_error *err)
{
    return list(conn, project_id, 0, out, err);
}

enum mlo_status mlo_token_list_of(struct mlo_db_conn *conn, int64_t member, json_t **out,
                                  struct mlo_error *err)
{
    return list(conn, 0, member, out, err);
}
