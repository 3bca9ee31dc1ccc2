#include "registry/keys.h"

#include <string.h>

#include "base/ssh_sign.h"
#include "registry/audit.h"
#include "registry/ledger_commit.h"
#include "registry/sql_impl.h"

enum { KEYS_LIST, KEYS_LOCK, KEYS_FIND, KEYS_ACTIVE, KEYS_ADD, KEYS_RETIRE, KEYS_REVOKE, KEYS_HOLD };

#define SECONDS(column) "to_char(" column ", 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"

const struct mlo_sql mlo_sql_keys[] = {
    [KEYS_LIST] =
        {"keys_list",
         "SELECT k.fingerprint, k.public_key, k.comment, " SECONDS("k.valid_from") " AS valid_from, " SECONDS(
             "k.retired_at") " AS retired_at, " SECONDS("k.revoked_from") " AS revoked_from, "
                                                                          "e.fingerprint AS endorser, "
                                                                          "k.endorsement, k.created_by "
                                                                          "FROM signing_key k LEFT JOIN "
                                                                          "signing_key e ON e.id = "
                                                                          "k.endorser ORDER BY k.id",
         0},
    [KEYS_LOCK] = {"keys_lock",
                   "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended('mlopt signing keys', 0))", 0},
    [KEYS_FIND] = {"keys_find", "SELECT id FROM signing_key WHERE public_key = $1", 1},
    [KEYS_ACTIVE] =
        {"keys_active",
         "SELECT id, fingerprint, public_key FROM signing_key WHERE retired_at IS NULL AND revoked_from "
         "IS NULL ORDER BY id DESC LIMIT 1",
         0},
    /* whole seconds, and not before what the key before may have signed */
    [KEYS_ADD] =
        {"keys_add",
         "INSERT INTO signing_key (fingerprint, public_key, comment, valid_from, endorser, endorsement, "
         "created_by) VALUES ($1, $2, $3, date_trunc('second', clock_timestamp()), $4, $5, $6) RETURNING id",
         6},
    [KEYS_RETIRE] =
        {"keys_retire",
         "UPDATE signing_key SET retired_at = (SELECT n.valid_from FROM signing_key n WHERE n.id = $2) "
         "WHERE id = $1",
         2},
    [KEYS_REVOKE] =
        {"keys_revoke",
         "UPDATE signing_key SET revoked_from = date_trunc('second', coalesce($2::timestamptz, "
         "clock_timestamp())) WHERE fingerprint = $1 AND (revoked_from IS NULL OR revoked_from >= "
         "date_trunc('second', coalesce($2::timestamptz, clock_timestamp()))) RETURNING id",
         2},
    [KEYS_HOLD] =
        {"keys_hold",
         "SELECT extract(epoch FROM valid_from)::bigint, retired_at IS NOT NULL OR revoked_from IS NOT NULL "
         "FROM signing_key WHERE public_key = $1 FOR SHARE",
         1},
};
const size_t mlo_sql_keys_count = MLO_COUNT(mlo_sql_keys);

enum mlo_status mlo_keys_list(struct mlo_db_conn *conn, json_t **out, struct mlo_error *err)
{
    json_t *key;
    size_t i;
    enum mlo_status status = mlo_sql_array(conn, &mlo_sql_keys[KEYS_LIST], NULL, out, err);
    if (status != MLO_OK)
        return status;
    json_array_foreach(*out, i, key)
    {
        struct mlo_digest bytes; /* a key is as long, and comes as a digest does */
        struct mlo_public_key public_key;
        struct mlo_buf line = MLO_BUF_INIT;
        if (!mlo_digest_parse(mlo_json_str(key, "public_key", ""), &bytes))
            continue;
        memcpy(public_key.bytes, bytes.bytes, sizeof public_key.bytes);
        mlo_ssh_public_key(&public_key, &line);
        json_object_set_new(key, "key", json_string(mlo_buf_str(&line)));
        json_object_del(key, "public_key");
        mlo_buf_clear(&line);
    }
    return MLO_OK;
}

/* "2026-01-31T12:34:56Z" as ssh-keygen reads it: 20260131123456Z. */
static void put_time(struct mlo_buf *out, const char *name, const char *time)
{
    mlo_buf_printf(out, ",%s=\"", name);
    for (; *time; time++)
        if (!strchr("-:T", *time))
            mlo_buf_putc(out, *time);
    mlo_buf_putc(out, '"');
}

/* The last moment at which it could sign; NULL: it can now. */
static const char *end_of(const json_t *key)
{
    const char *retired = mlo_json_str(key, "retired_at", NULL),
               *revoked = mlo_json_str(key, "revoked_from", NULL);
    return !retired ? revoked : !revoked || strcmp(retired, revoked) < 0 ? retired : revoked;
}

void mlo_keys_allowed_signers(const json_t *keys, struct mlo_buf *out)
{
    json_t *key;
    size_t i;
    json_array_foreach((json_t *)keys, i, key)
    {
        const char *end = end_of(key);
        mlo_buf_puts(out, MLO_LEDGER_PRINCIPAL " namespaces=\"" MLO_LEDGER_SIGNED_AS "," MLO_KEY_ENDORSED_AS
                                               "," MLO_BACKUP_SIGNED_AS "\"");
        put_time(out, "valid-after", mlo_json_str(key, "valid_from", ""));
        if (end)
            put_time(out, "valid-before", end);
        mlo_buf_printf(out, " %s %s\n", mlo_json_str(key, "key", ""), mlo_json_str(key, "fingerprint", ""));
    }
}

bool mlo_keys_valid_at(const json_t *key, int64_t time_s)
{
    const char *end = end_of(key);
    int64_t from, to = INT64_MAX;
    return mlo_ledger_seconds(mlo_json_str(key, "valid_from", ""), &from) &&
           (!end || mlo_ledger_seconds(end, &to)) && time_s >= from && time_s <= to;
}

/* Signs the line of `key` by the key before. */
static enum mlo_status endorse(const struct mlo_public_key *key, const struct mlo_sign_key *before,
                               struct mlo_buf *out, struct mlo_error *err)
{
    struct mlo_buf line = MLO_BUF_INIT;
    mlo_ssh_public_key(key, &line);
    mlo_buf_putc(&line, '\n');
    enum mlo_status status =
        mlo_buf_ok(&line) ? mlo_ssh_sign(before, MLO_KEY_ENDORSED_AS, mlo_buf_str(&line), line.len, out, err)
                          : mlo_error_nomem(err);
    mlo_buf_clear(&line);
    return status;
}

/* The key that signs now, when it is not `before`. */
static enum mlo_status check_active(struct mlo_db_conn *conn, const struct mlo_sign_key *before, int64_t *id,
                                    struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_digest bytes;
    enum mlo_status status;
    *id = 0;
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_keys[KEYS_ACTIVE], NULL, &rows, err));
    bool any = mlo_rows_count(&rows) > 0;
    bool same = any && before && mlo_rows_digest(&rows, 0, 2, &bytes) &&
                memcmp(bytes.bytes, mlo_sign_key_public(before)->bytes, sizeof bytes.bytes) == 0;
    if (any && !same) {
        status = mlo_error_set(err, MLO_ECONFLICT,
                               "the ledgers of this installation are signed with another key, %s",
                               mlo_rows_text(&rows, 0, 1));
        mlo_error_hint(err, "copy its file ledger.key to this server; when it is lost: mlopt keys revoke %s",
                       mlo_rows_text(&rows, 0, 1));
    } else if (!any && before) {
        status = mlo_error_set(err, MLO_ECONFLICT, "the key before does not sign any more");
    } else {
        *id = any ? mlo_rows_i64(&rows, 0, 0) : 0;
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status audit(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *action,
                             const char *fingerprint, json_t *after, struct mlo_error *err)
{
    const struct mlo_audit_event event = {.action = action, .object = fingerprint, .after = after};
    enum mlo_status status =
        after ? mlo_audit_append(conn, 0, actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

enum mlo_status mlo_keys_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                             const struct mlo_sign_key *key, const char *comment,
                             const struct mlo_sign_key *before, struct mlo_error *err)
{
    const struct mlo_public_key *public_key = mlo_sign_key_public(key);
    struct mlo_params find = MLO_PARAMS_INIT, add = MLO_PARAMS_INIT, retire = MLO_PARAMS_INIT;
    struct mlo_buf endorsement = MLO_BUF_INIT;
    struct mlo_digest bytes;
    char fingerprint[MLO_SSH_FINGERPRINT_SIZE];
    int64_t id, old;
    memcpy(bytes.bytes, public_key->bytes, sizeof bytes.bytes);
    mlo_ssh_fingerprint(public_key, fingerprint);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_actor_require(actor, 0, MLO_ADMIN, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_keys[KEYS_LOCK], NULL, NULL, err));
    mlo_param_digest(&find, &bytes);
    status = mlo_sql_number(conn, &mlo_sql_keys[KEYS_FIND], &find, &id, err);
    if (status != MLO_ENOTFOUND)
        goto out; /* it is there, or the database failed */
    MLO_TRY(check_active(conn, before, &old, err));
    if (before)
        MLO_TRY(endorse(public_key, before, &endorsement, err));
    mlo_param_text(&add, fingerprint);
    mlo_param_digest(&add, &bytes);
    mlo_param_text(&add, comment);
    mlo_param_id(&add, old);
    mlo_param_text(&add, before ? mlo_buf_str(&endorsement) : NULL);
    mlo_param_text(&add, actor->name);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_keys[KEYS_ADD], &add, &id, err));
    if (old) {
        mlo_param_i64(&retire, old);
        mlo_param_i64(&retire, id);
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_keys[KEYS_RETIRE], &retire, NULL, err));
    }
    MLO_TRY(audit(conn, actor, before ? "key.rotate" : "key.make", fingerprint,
                  json_pack("{s:s}", "comment", comment), err));
out:
    mlo_buf_clear(&endorsement);
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_keys_revoke(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                const char *fingerprint, const char *from, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t seconds;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_actor_require(actor, 0, MLO_ADMIN, err));
    if (from && !mlo_ledger_seconds(from, &seconds)) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.60s' is no time", from);
        mlo_error_hint(err, "write 2026-01-31T12:00:00Z");
        goto out;
    }
    mlo_param_text(&p, fingerprint);
    mlo_param_text(&p, from);
    status = mlo_sql_number(conn, &mlo_sql_keys[KEYS_REVOKE], &p, NULL, err);
    if (status == MLO_ENOTFOUND) {
        status =
            mlo_error_set(err, MLO_ECONFLICT,
                          "there is no key %.80s, or it is revoked from earlier on already", fingerprint);
        mlo_error_hint(err, "mlopt keys shows them");
    }
    MLO_TRY(status);
    MLO_TRY(audit(conn, actor, "key.revoke", fingerprint, json_pack("{s:s?}", "from", from), err));
out:
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_keys_hold(struct mlo_db_conn *conn, const struct mlo_public_key *key,
                              int64_t *valid_from_s, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest bytes;
    char fingerprint[MLO_SSH_FINGERPRINT_SIZE];
    memcpy(bytes.bytes, key->bytes, sizeof bytes.bytes);
    mlo_ssh_fingerprint(key, fingerprint);
    mlo_param_digest(&p, &bytes);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_keys[KEYS_HOLD], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "the key %s is not known to the database", fingerprint);
    else if (status == MLO_OK && mlo_rows_bool(&rows, 0, 1))
        status = mlo_error_set(err, MLO_ECONFLICT, "the key %s was retired or revoked", fingerprint);
    if (status == MLO_OK)
        *valid_from_s = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}
