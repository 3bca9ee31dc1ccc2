/* The samples of datasets, so that a gate can tell data that judged from data that chose. */
#include <string.h>

#include "registry/evidence.h"
#include "registry/sql_impl.h"

enum { SAMPLES_ADD, SAMPLES_KNOWN, SAMPLES_GET };

const struct mlo_sql mlo_sql_samples[] = {
    [SAMPLES_ADD] =
        {"samples_add",
         "INSERT INTO dataset_samples (dataset, count, hashes) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
         3},
    [SAMPLES_KNOWN] = {"samples_known", "SELECT count FROM dataset_samples WHERE dataset = $1", 1},
    [SAMPLES_GET] = {"samples_get", "SELECT hashes FROM dataset_samples WHERE dataset = $1", 1},
};
const size_t mlo_sql_samples_count = MLO_COUNT(mlo_sql_samples);

enum mlo_status mlo_samples_record(struct mlo_db_conn *conn, const struct mlo_digest *dataset,
                                   const void *hashes, size_t size_bytes, struct mlo_error *err)
{
    const uint8_t *at = hashes;
    struct mlo_params p = MLO_PARAMS_INIT;
    bool sorted = size_bytes > 0 && size_bytes % MLO_SAMPLE_BYTES == 0;
    for (size_t i = MLO_SAMPLE_BYTES; sorted && i < size_bytes; i += MLO_SAMPLE_BYTES)
        sorted = memcmp(at + i - MLO_SAMPLE_BYTES, at + i, MLO_SAMPLE_BYTES) <= 0;
    if (!sorted)
        return mlo_error_set(err, MLO_EFORMAT, "the samples of a dataset must be sorted hashes of %d bytes",
                             MLO_SAMPLE_BYTES);
    mlo_param_digest(&p, dataset);
    mlo_param_i64(&p, (int64_t)(size_bytes / MLO_SAMPLE_BYTES));
    mlo_param_bytes(&p, hashes, size_bytes);
    return mlo_db_exec(conn, &mlo_sql_samples[SAMPLES_ADD], &p, NULL, err);
}

enum mlo_status mlo_samples_known(struct mlo_db_conn *conn, const struct mlo_digest *dataset, bool *known,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t count;
    mlo_param_digest(&p, dataset);
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_samples[SAMPLES_KNOWN], &p, &count, err);
    *known = status == MLO_OK;
    return status == MLO_ENOTFOUND ? MLO_OK : status;
}

static enum mlo_status load(struct mlo_db_conn *conn, const struct mlo_digest *dataset, struct mlo_buf *out,
                            bool *known, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_digest(&p, dataset);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_samples[SAMPLES_GET], &p, &rows, err);
    *known = status == MLO_OK && mlo_rows_count(&rows) > 0;
    if (*known)
        mlo_rows_bytes(&rows, 0, 0, out);
    if (!mlo_buf_ok(out))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_samples_shared(struct mlo_db_conn *conn, const struct mlo_digest *a,
                                   const struct mlo_digest *b, int64_t *shared, bool *known,
                                   struct mlo_error *err)
{
    struct mlo_buf one = MLO_BUF_INIT, other = MLO_BUF_INIT;
    bool know_one = false, know_other = false;
    enum mlo_status status;
    *shared = 0;
    *known = false;
    MLO_TRY(load(conn, a, &one, &know_one, err));
    MLO_TRY(load(conn, b, &other, &know_other, err));
    *known = know_one && know_other;
    for (size_t i = 0, j = 0; *known && i < one.len && j < other.len;) {
        int order = memcmp(one.data + i, other.data + j, MLO_SAMPLE_BYTES);
        *shared += order == 0;
        i += order <= 0 ? MLO_SAMPLE_BYTES : 0;
        j += order >= 0 ? MLO_SAMPLE_BYTES : 0;
    }
out:
    mlo_buf_clear(&one);
    mlo_buf_clear(&other);
    return status;
}
