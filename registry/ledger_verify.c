/* The server's own check of a ledger: see ledger_check.h. */
#include <string.h>

#include "registry/ledger_check.h"
#include "registry/ledger_impl.h"
#include "registry/sql_impl.h"

enum { VERIFY_ENTRIES };

const struct mlo_sql mlo_sql_ledger_verify[] = {
    /* of those that a commit names, or should */
    [VERIFY_ENTRIES] =
        {"ledger_entries",
         "SELECT a.seq, a.hash, a.body FROM audit a WHERE a.project_id = $1 AND a.seq > $2 AND a.seq IN "
         "(SELECT e.audit_seq FROM ledger_event e WHERE e.project_id = $3 UNION SELECT c.audit_seq FROM "
         "ledger_commit c WHERE c.project_id = $4) ORDER BY a.seq LIMIT $5",
         5},
};
const size_t mlo_sql_ledger_verify_count = MLO_COUNT(mlo_sql_ledger_verify);

enum { BATCH = 200 };

static enum mlo_status check_commits(struct mlo_db_conn *conn, int64_t project_id,
                                     struct mlo_ledger_check *check, struct mlo_error *err)
{
    char cursor[24] = "";
    json_t *list = NULL, *row;
    size_t i;
    enum mlo_status status;
    for (bool more = true; more;) {
        const struct mlo_page page = {.limit = BATCH, .cursor = cursor[0] ? cursor : NULL};
        MLO_TRY(mlo_ledger_list(conn, project_id, &page, &list, err));
        json_array_foreach(json_object_get(list, "items"), i, row)
            MLO_TRY(mlo_ledger_check_commit(check, row, err));
        const char *next = mlo_json_str(list, "next", NULL);
        more = next != NULL;
        snprintf(cursor, sizeof cursor, "%s", next ? next : "");
        json_decref(list);
        list = NULL;
    }
out:
    json_decref(list);
    return status;
}

static enum mlo_status check_entries(struct mlo_db_conn *conn, int64_t project_id, int64_t written_to,
                                     struct mlo_ledger_check *check, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_buf body = MLO_BUF_INIT;
    struct mlo_digest hash;
    int64_t after = 0;
    enum mlo_status status = MLO_OK;
    for (int count = BATCH; count == BATCH;) {
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, project_id);
        mlo_param_i64(&p, after);
        mlo_param_i64(&p, project_id);
        mlo_param_i64(&p, project_id);
        mlo_param_i64(&p, BATCH);
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_ledger_verify[VERIFY_ENTRIES], &p, &rows, err));
        count = mlo_rows_count(&rows);
        for (int r = 0; r < count; r++) {
            after = mlo_rows_i64(&rows, r, 0);
            mlo_buf_reset(&body);
            mlo_rows_bytes(&rows, r, 2, &body);
            json_t *entry =
                json_loadb(mlo_buf_str(&body), body.len, 0, NULL); /* NULL: the chain's check says so */
            status = mlo_rows_digest(&rows, r, 1, &hash)
                         ? mlo_ledger_check_entry(check, after, &hash, entry, written_to, err)
                         : MLO_OK;
            json_decref(entry);
            MLO_TRY(status);
        }
    }
out:
    mlo_rows_clear(&rows);
    mlo_buf_clear(&body);
    return status;
}

enum mlo_status mlo_ledger_verify(struct mlo_db_conn *conn, int64_t project_id, struct mlo_ledger_result *out,
                                  struct mlo_error *err)
{
    struct mlo_ledger_check *check = NULL;
    struct mlo_ledger_place head;
    json_t *keys = NULL;
    bool outermost = !mlo_db_in_transaction(conn);
    memset(out, 0, sizeof *out);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    if (outermost) /* commits and entries of one moment */
        MLO_TRY(mlo_db_exec_text(conn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", err));
    MLO_TRY(mlo_keys_list(conn, &keys, err));
    MLO_TRY(mlo_ledger_head(conn, project_id, &head, err));
    const struct mlo_ledger_seen said = {.n = head.n, .id = head.id};
    check = mlo_ledger_check_new(keys, &said);
    if (!check) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(check_commits(conn, project_id, check, err));
    MLO_TRY(check_entries(conn, project_id, head.audit_seq, check, err));
    mlo_ledger_check_end(check, out);
out:
    mlo_ledger_check_free(check);
    json_decref(keys);
    return mlo_db_end(conn, status, err);
}
