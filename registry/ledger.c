/* Recording changes for the ledger, in the transaction that makes them. */
#include "registry/ledger.h"

#include <stdlib.h>
#include <string.h>

#include "registry/sql_impl.h"

enum { LEDGER_EVENT_ADD, LEDGER_EVENT_QUEUE };

const struct mlo_sql mlo_sql_ledger[] = {
    [LEDGER_EVENT_ADD] =
        {"ledger_event_add",
         "INSERT INTO ledger_event (project_id, audit_seq, files) "
         "SELECT $1, $2, $3 FROM audit WHERE project_id = $4 AND seq = $5 RETURNING audit_seq",
         5},
    [LEDGER_EVENT_QUEUE] =
        {"ledger_event_queue",
         "INSERT INTO ledger_event (project_id, audit_seq, files) SELECT h.project_id, h.seq, "
         "$2::text || h.seq || $3::text FROM audit_head h WHERE h.project_id = $1",
         3},
};
const size_t mlo_sql_ledger_count = MLO_COUNT(mlo_sql_ledger);

enum { PATH_MAX_BYTES = 400 };

const char *const mlo_ledger_actions[] = {"stage.promote", "stage.rollback",    "policy.set",
                                          "approval.give", "approval.withdraw", NULL};

bool mlo_ledger_action(const char *action)
{
    for (const char *const *at = mlo_ledger_actions; *at; at++)
        if (strcmp(*at, action) == 0)
            return true;
    return false;
}

void mlo_ledger_json(const json_t *value, struct mlo_buf *out)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text) {
        out->failed = true;
        return;
    }
    mlo_buf_puts(out, text);
    mlo_buf_putc(out, '\n');
    free(text);
}

/* What git takes on every system, and no name of the ledger's own files. */
static bool path_valid(const char *path)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (!path || strlen(path) > PATH_MAX_BYTES || strcmp(path, "README.md") == 0 ||
        strcmp(path, "allowed_signers") == 0 || mlo_str_starts(path, "keys/") || strcmp(path, "keys") == 0)
        return false;
    for (const char *at = path;;) {
        size_t length = strspn(at, allowed);
        if (length == 0 || *at == '.')
            return false;
        at += length;
        if (!*at)
            return true;
        if (*at++ != '/')
            return false;
    }
}

/* Canonical JSON of the files, as it is kept. */
static enum mlo_status files_text(const struct mlo_ledger_file *files, size_t count, struct mlo_buf *out,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *all = json_array();
    for (size_t i = 0; i < count; i++) {
        if (!path_valid(files[i].path)) {
            status = mlo_error_set(err, MLO_EINVAL, "the ledger has no place '%.100s'",
                                   files[i].path ? files[i].path : "");
            goto out;
        }
        json_t *content = files[i].text ? json_stringn(files[i].text, files[i].size) : json_null();
        if (!content) {
            status =
                mlo_error_set(err, MLO_EINVAL, "what goes into the ledger at %s is not UTF-8", files[i].path);
            goto out;
        }
        json_array_append_new(all, json_pack("{s:s, s:o}", "path", files[i].path, "text", content));
    }
    if (json_array_size(all) == count)
        mlo_json_canonical(all, out);
    if (json_array_size(all) != count || !mlo_buf_ok(out))
        status = mlo_error_nomem(err);
out:
    json_decref(all);
    return status;
}

enum mlo_status mlo_ledger_append(struct mlo_db_conn *conn, int64_t project_id, int64_t audit_seq,
                                  const struct mlo_ledger_file *files, size_t count, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status;
    MLO_TRY(files_text(files, count, &text, err));
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, audit_seq);
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, audit_seq);
    status = mlo_sql_number(conn, &mlo_sql_ledger[LEDGER_EVENT_ADD], &p, NULL, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_set(err, MLO_ENOTFOUND, "there is no audit entry %lld to record in the ledger",
                      (long long)audit_seq);
out:
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_ledger_queue(struct mlo_db_conn *conn, int64_t project_id,
                                 const struct mlo_ledger_file *files, size_t count, struct mlo_error *err)
{
    /* the member as it stands in a JSON text within a JSON string. No value can hold it: a quote in one
     * has three backslashes there */
    static const char member[] = "\\\"audit_seq\\\": ";
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status;
    MLO_TRY(files_text(files, count, &text, err));
    char *found = text.len ? strstr(text.data, member) : NULL,
         *seq = found ? found + sizeof member - 1 : NULL;
    if (!seq || *seq != '0' || strstr(seq, member)) {
        status =
            mlo_error_set(err, MLO_EINTERNAL,
                          "what is queued for the ledger names its audit entry once, as %d", MLO_LEDGER_SEQ);
        goto out;
    }
    *seq = '\0';
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, text.data);
    mlo_param_text(&p, seq + 1);
    status = mlo_db_queue(conn, &mlo_sql_ledger[LEDGER_EVENT_QUEUE], &p, NULL, err);
out:
    mlo_buf_clear(&text);
    return status;
}
