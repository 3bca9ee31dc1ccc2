#include "registry/evidence.h"
#include "registry/sql_impl.h"

enum { DERIVATION_ADD, DERIVATION_FIND, DERIVATION_GET };

const struct mlo_sql mlo_sql_derivation[] = {
    [DERIVATION_ADD] = {"derivation_add",
                        "INSERT INTO derivation (key, canonical, step, artifact, size, report) "
                        "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                        6},
    [DERIVATION_FIND] = {"derivation_find", "SELECT artifact, size, report FROM derivation WHERE key = $1",
                         1},
    [DERIVATION_GET] =
        {"derivation_get",
         "SELECT key, canonical::json AS derivation, step, artifact, size, report::json AS report, made_at "
         "FROM derivation WHERE key = $1",
         1},
};
const size_t mlo_sql_derivation_count = MLO_COUNT(mlo_sql_derivation);

enum mlo_status mlo_derivation_record(struct mlo_db_conn *conn, const json_t *derivation, const char *step,
                                      const struct mlo_digest *artifact, uint64_t size_bytes,
                                      const json_t *report, struct mlo_digest *key, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf canonical = MLO_BUF_INIT, report_text = MLO_BUF_INIT;
    struct mlo_digest computed, before;
    enum mlo_status status = MLO_OK;
    mlo_json_canonical(derivation, &canonical);
    if (report)
        mlo_json_canonical(report, &report_text);
    if (!mlo_buf_ok(&canonical) || !mlo_buf_ok(&report_text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_digest_of(mlo_buf_str(&canonical), canonical.len, &computed);
    mlo_param_digest(&p, &computed);
    mlo_param_text(&p, mlo_buf_str(&canonical));
    mlo_param_text(&p, step);
    mlo_param_digest(&p, artifact);
    mlo_param_i64(&p, (int64_t)size_bytes);
    mlo_param_text(&p, report ? mlo_buf_str(&report_text) : "{}");
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_derivation[DERIVATION_ADD], &p, &rows, err));
    if (mlo_rows_affected(&rows) == 0) {
        MLO_TRY(mlo_derivation_find(conn, &computed, &before, NULL, NULL, err));
        if (!mlo_digest_eq(&before, artifact)) {
            char a[MLO_DIGEST_TEXT_SIZE], b[MLO_DIGEST_TEXT_SIZE], k[MLO_DIGEST_TEXT_SIZE];
            status = mlo_error_set(
                err, MLO_ECONFLICT, "derivation %s made %s before, and %s now: it is not reproducible",
                mlo_digest_text(&computed, k), mlo_digest_text(&before, a), mlo_digest_text(artifact, b));
            mlo_error_where(err, "step '%s'", step);
            mlo_error_hint(
                err,
                "a pass changed its output without a new revision, or its output depends on the machine");
            goto out;
        }
    }
    if (key)
        *key = computed;
out:
    mlo_rows_clear(&rows);
    mlo_buf_clear(&canonical);
    mlo_buf_clear(&report_text);
    return status;
}

static enum mlo_status unknown(const struct mlo_digest *key, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    return mlo_error_set(err, MLO_ENOTFOUND, "there is no derivation %s", mlo_digest_text(key, text));
}

enum mlo_status mlo_derivation_find(struct mlo_db_conn *conn, const struct mlo_digest *key,
                                    struct mlo_digest *artifact, uint64_t *size_bytes, json_t **report,
                                    struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_digest(&p, key);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_derivation[DERIVATION_FIND], &p, &rows, err);
    if (status == MLO_OK && (mlo_rows_count(&rows) == 0 || !mlo_rows_digest(&rows, 0, 0, artifact)))
        status = unknown(key, err);
    if (status == MLO_OK && size_bytes)
        *size_bytes = (uint64_t)mlo_rows_i64(&rows, 0, 1);
    if (status == MLO_OK && report) {
        *report = json_loads(mlo_rows_text(&rows, 0, 2), JSON_DECODE_ANY, NULL);
        if (!*report)
            status = mlo_error_nomem(err);
    }
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_derivation_get(struct mlo_db_conn *conn, const struct mlo_digest *key, json_t **out,
                                   struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_digest(&p, key);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_derivation[DERIVATION_GET], &p, out, err);
    return status == MLO_ENOTFOUND ? unknown(key, err) : status;
}
