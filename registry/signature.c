#include "registry/signature.h"

#include <string.h>

#include "registry/sql_impl.h"

enum { SIGNATURE_KNOWN, SIGNATURE_ADD, SIGNATURE_OF, SIGNATURE_VERSION };

const struct mlo_sql mlo_sql_signature[] = {
    [SIGNATURE_KNOWN] = {"signature_known", "SELECT count(*) FROM signature WHERE blob = $1", 1},
    [SIGNATURE_ADD] = {"signature_add",
                       "INSERT INTO signature (blob, document, digest, worker, job_id) "
                       "VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
                       5},
    [SIGNATURE_OF] =
        {"signature_of",
         /* the bytes may be another project's too: who read them there, and when, is not told here */
         "SELECT b.digest, f.digest, m.document, l.document, j.worker, "
         "to_char(j.at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), v.manifest::json -> "
         "'signature' "
         "FROM version v JOIN model o ON o.id = v.model_id "
         "JOIN version_blob b ON b.version_id = v.id AND b.role = 'model' "
         "LEFT JOIN LATERAL (SELECT digest FROM version_blob WHERE version_id = v.id AND role = "
         "'" MLO_ROLE_LABELS "' ORDER BY name LIMIT 1) f ON true "
         "LEFT JOIN LATERAL (SELECT * FROM signature WHERE blob = $2 ORDER BY id DESC LIMIT 1) m ON true "
         "LEFT JOIN LATERAL (SELECT * FROM signature WHERE blob = f.digest ORDER BY id DESC LIMIT 1) l ON "
         "true LEFT JOIN LATERAL (SELECT m.worker, m.at FROM job x WHERE x.id = m.job_id "
         "AND x.project = o.project_id) j ON true WHERE v.id = $1",
         2},
    [SIGNATURE_VERSION] = {"signature_version",
                           "SELECT p.id, p.name || '/' || m.name || '@' || v.number, b.digest FROM version v "
                           "JOIN model m ON m.id = v.model_id JOIN project p ON p.id = m.project_id "
                           "JOIN version_blob b ON b.version_id = v.id AND b.role = 'model' WHERE v.id = $1",
                           1},
};
const size_t mlo_sql_signature_count = MLO_COUNT(mlo_sql_signature);

/* The only member of a document that stands for one that is not kept. */
#define TOO_LARGE "too_large"

enum mlo_status mlo_signature_known(struct mlo_db_conn *conn, const struct mlo_digest *blob, bool *known,
                                    struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t count = 0;
    mlo_param_digest(&p, blob);
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_signature[SIGNATURE_KNOWN], &p, &count, err);
    *known = count > 0;
    return status;
}

enum mlo_status mlo_signature_record(struct mlo_db_conn *conn, const struct mlo_signature_reading *reading,
                                     bool *added, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    mlo_json_canonical(reading->document, &text);
    if (!mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (text.len > MLO_SIGNATURE_MAX_BYTES) { /* that it is so is kept, so that nobody reads it again */
        size_t size = text.len;
        mlo_buf_reset(&text);
        mlo_buf_printf(&text, "{\"" TOO_LARGE "\":%zu}", size);
        if (!mlo_buf_ok(&text)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    mlo_digest_of(text.data, text.len, &digest);
    mlo_param_digest(&p, &reading->blob);
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_digest(&p, &digest);
    mlo_param_text(&p, reading->worker);
    mlo_param_i64(&p, reading->job_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_signature[SIGNATURE_ADD], &p, &rows, err));
    if (added)
        *added = mlo_rows_affected(&rows) > 0;
out:
    mlo_rows_clear(&rows);
    mlo_buf_clear(&text);
    return status;
}

enum { S_SOURCE, S_LABEL_FILE, S_MODEL, S_LABELS, S_WORKER, S_AT, S_DECLARED };

/* What was read of the model and of the version's label file, together; NULL in *out where either is missing,
 * or too large to be kept. */
static enum mlo_status combine(const struct mlo_rows *rows, json_t **out, bool *too_large,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *model = mlo_rows_text(rows, 0, S_MODEL), *text = mlo_rows_text(rows, 0, S_LABELS);
    json_t *read = NULL, *labels = NULL;
    *out = NULL;
    *too_large = false;
    if (!model || (!mlo_rows_null(rows, 0, S_LABEL_FILE) && !text))
        return MLO_OK;
    MLO_TRY(mlo_json_parse(model, strlen(model), "a signature", &read, err));
    if (text)
        MLO_TRY(mlo_json_parse(text, strlen(text), "a signature", &labels, err));
    *too_large = json_object_get(read, TOO_LARGE) || json_object_get(labels, TOO_LARGE);
    if (*too_large)
        goto out;
    json_t *set = json_object_get(labels, "labels");
    if (json_object_set_new(read, "labels", set ? json_incref(set) : json_null()) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *out = json_incref(read);
out:
    json_decref(read);
    json_decref(labels);
    return status;
}

/* Where the two are not the same, in words. */
static void say_difference(const json_t *declared, const json_t *read, char why[400])
{
    char first[300] = "";
    if (!mlo_signature_compatible(declared, read, first, sizeof first) ||
        !mlo_signature_compatible(read, declared, first, sizeof first))
        snprintf(why, 400, "what was declared at the push is not what a worker read: %s", first);
    else
        snprintf(why, 400, "what was declared at the push is not what a worker read");
}

enum mlo_status mlo_signature_get(struct mlo_db_conn *conn, int64_t version_id,
                                  const struct mlo_digest *artifact, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest source;
    char text[MLO_DIGEST_TEXT_SIZE], why[400] = "";
    json_t *read = NULL, *declared = NULL;
    bool too_large = false;
    mlo_param_i64(&p, version_id);
    mlo_param_digest(&p, artifact);
    *out = NULL;
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_signature[SIGNATURE_OF], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such version");
        goto out;
    }
    MLO_TRY(combine(&rows, &read, &too_large, err));
    const char *said = mlo_rows_text(&rows, 0, S_DECLARED);
    bool of_upload = mlo_rows_digest(&rows, 0, S_SOURCE, &source) && mlo_digest_eq(&source, artifact);
    if (said && of_upload)
        MLO_TRY(mlo_json_parse(said, strlen(said), "the declared signature", &declared, err));
    if (declared && !json_object_get(declared, "labels"))
        json_object_set_new(declared, "labels", json_null());
    if (declared && read && !json_equal(declared, read))
        say_difference(declared, read, why);
    *out =
        json_pack("{s:s, s:O?, s:b, s:s?, s:s?, s:O?, s:s?}", "artifact", mlo_digest_text(artifact, text),
                  "read", read, TOO_LARGE, too_large, "read_at", read ? mlo_rows_text(&rows, 0, S_AT) : NULL,
                  "worker", read ? mlo_rows_text(&rows, 0, S_WORKER) : NULL, "declared", declared,
                  "difference", *why ? why : NULL);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    json_decref(read);
    json_decref(declared);
    return status;
}

enum mlo_status mlo_signature_refute(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                     int64_t version_id, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest source, declared, read;
    char declared_text[MLO_DIGEST_TEXT_SIZE], read_text[MLO_DIGEST_TEXT_SIZE];
    json_t *found = NULL, *after = NULL;
    mlo_param_i64(&p, version_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_signature[SIGNATURE_VERSION], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0 || !mlo_rows_digest(&rows, 0, 2, &source))
        goto out;
    MLO_TRY(mlo_signature_get(conn, version_id, &source, &found, err));
    const char *difference = mlo_json_str(found, "difference", NULL);
    if (!difference)
        goto out;
    MLO_TRY(mlo_json_digest(json_object_get(found, "declared"), &declared, err));
    MLO_TRY(mlo_json_digest(json_object_get(found, "read"), &read, err));
    after = json_pack("{s:s, s:s}", "declared", mlo_digest_text(&declared, declared_text), "read",
                      mlo_digest_text(&read, read_text));
    if (!after) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct mlo_audit_event event = {.action = "signature.refute",
                                    .object = mlo_rows_text(&rows, 0, 1),
                                    .after = after,
                                    .reason = difference};
    MLO_TRY(mlo_audit_append(conn, mlo_rows_i64(&rows, 0, 0), actor, &event, NULL, err));
out:
    json_decref(found);
    json_decref(after);
    mlo_rows_clear(&rows);
    return status;
}
