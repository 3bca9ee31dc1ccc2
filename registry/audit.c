#include "registry/audit.h"

#include <ctype.h>
#include <string.h>

#include "registry/sql_impl.h"

enum { AUDIT_APPEND, AUDIT_HEAD, AUDIT_AFTER, AUDIT_BEFORE };

const struct mlo_sql mlo_sql_audit[] = {
    [AUDIT_APPEND] = {"audit_append", "SELECT audit_append($1, $2)", 2},
    [AUDIT_HEAD] = {"audit_head", "SELECT seq, hash FROM audit_head WHERE project_id = $1", 1},
    [AUDIT_AFTER] = {"audit_after",
                     "SELECT seq, prev_hash, hash, body FROM audit WHERE project_id = $1 AND seq > $2 ORDER "
                     "BY seq LIMIT $3",
                     3},
    [AUDIT_BEFORE] = {"audit_before",
                      "SELECT seq, prev_hash, hash, body FROM audit WHERE project_id = $1 AND seq < $2 "
                      "ORDER BY seq DESC LIMIT $3",
                      3},
};
const size_t mlo_sql_audit_count = MLO_COUNT(mlo_sql_audit);

enum { BATCH = 500, SCAN_MAX = 10000 };

static json_t *or_null(const json_t *value)
{
    return value ? json_incref((json_t *)value) : json_null();
}

static enum mlo_status entry_body(const struct mlo_actor *actor, const struct mlo_audit_event *event,
                                  struct mlo_buf *out, struct mlo_error *err)
{
    char at[32];
    json_t *entry = json_pack("{s:s, s:s?, s:o, s:s, s:o, s:s, s:s?, s:s?, s:s, s:s, s:I}", "action",
                              event->action, "address", actor->address, "after", or_null(event->after), "at",
                              mlo_clock_format(mlo_clock_utc_us(), at), "before", or_null(event->before),
                              "object", event->object, "reason", event->reason, "request_id",
                              actor->request_id, "via", actor->via ? actor->via : "system", "who",
                              actor->name, "token_id", (json_int_t)actor->token_id);
    if (!entry)
        return mlo_error_set(err, MLO_EINVAL, "an audit entry's text is not UTF-8");
    mlo_json_canonical(entry, out);
    json_decref(entry);
    return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
}

/* The parameters of AUDIT_APPEND; *body holds what they borrow. */
static enum mlo_status entry_params(int64_t project_id, const struct mlo_actor *actor,
                                    const struct mlo_audit_event *event, struct mlo_buf *body,
                                    struct mlo_params *p, struct mlo_error *err)
{
    enum mlo_status status = entry_body(actor, event, body, err);
    mlo_param_i64(p, project_id);
    mlo_param_bytes(p, mlo_buf_str(body), body->len);
    return status;
}

enum mlo_status mlo_audit_queue(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_actor *actor,
                                const struct mlo_audit_event *event, struct mlo_rows *rows,
                                struct mlo_error *err)
{
    struct mlo_buf body = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = entry_params(project_id, actor, event, &body, &p, err);
    if (status == MLO_OK)
        status = mlo_db_queue(conn, &mlo_sql_audit[AUDIT_APPEND], &p, rows, err);
    mlo_buf_clear(&body);
    return status;
}

enum mlo_status mlo_audit_append(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_actor *actor,
                                 const struct mlo_audit_event *event, int64_t *seq, struct mlo_error *err)
{
    struct mlo_buf body = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = entry_params(project_id, actor, event, &body, &p, err);
    if (status == MLO_OK)
        status = !seq && mlo_db_in_transaction(conn)
                     ? mlo_db_queue_last(conn, &mlo_sql_audit[AUDIT_APPEND], &p, err)
                     : mlo_sql_number(conn, &mlo_sql_audit[AUDIT_APPEND], &p, seq, err);
    mlo_buf_clear(&body);
    return status;
}

/* --- reading ----------------------------------------------------------------------------------- */

static bool matches(const json_t *item, const struct mlo_audit_filter *f)
{
    const char *action = mlo_json_str(item, "action", ""), *at = mlo_json_str(item, "at", "");
    if (f->action && *f->action &&
        !(mlo_str_ends(f->action, ".") ? mlo_str_starts(action, f->action) : strcmp(action, f->action) == 0))
        return false;
    if (f->who && *f->who && strcmp(mlo_json_str(item, "who", ""), f->who) != 0)
        return false;
    if (f->object && *f->object && !mlo_str_starts(mlo_json_str(item, "object", ""), f->object))
        return false;
    if (f->since && *f->since && strcmp(at, f->since) < 0)
        return false;
    return !(f->until && *f->until && strcmp(at, f->until) > 0);
}

/* An entry for people. A body that is no JSON any more (somebody changed it) still shows. */
static json_t *entry_json(const struct mlo_rows *rows, int row)
{
    struct mlo_buf body = MLO_BUF_INIT;
    struct mlo_digest digest;
    char prev[MLO_DIGEST_TEXT_SIZE] = "", hash[MLO_DIGEST_TEXT_SIZE] = "";
    mlo_rows_bytes(rows, row, 3, &body);
    if (mlo_rows_digest(rows, row, 1, &digest))
        mlo_digest_text(&digest, prev);
    if (mlo_rows_digest(rows, row, 2, &digest))
        mlo_digest_text(&digest, hash);
    json_t *item = json_loadb(mlo_buf_str(&body), body.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(item)) {
        json_decref(item);
        item = json_object();
    }
    json_t *text = json_stringn(mlo_buf_str(&body), body.len);
    bool failed = !item || json_object_set_new(item, "body", text ? text : json_null()) != 0 ||
                  json_object_set_new(item, "seq", json_integer(mlo_rows_i64(rows, row, 0))) != 0 ||
                  json_object_set_new(item, "prev_hash", json_string(prev)) != 0 ||
                  json_object_set_new(item, "hash", json_string(hash)) != 0;
    mlo_buf_clear(&body);
    if (failed) {
        json_decref(item);
        return NULL;
    }
    return item;
}

/* The two digits at `at`, up to `most`; -1: they are none. */
static int two_digits(const char *at, int most)
{
    if (!isdigit((unsigned char)at[0]) || !isdigit((unsigned char)at[1]))
        return -1;
    int value = (at[0] - '0') * 10 + at[1] - '0';
    return value <= most ? value : -1;
}

bool mlo_audit_moment(const char *text, bool last, char out[MLO_AUDIT_MOMENT_SIZE])
{
    enum { DAY = 10, MINUTE = 16, SECOND = 19 };
    static const char shape[] = "0000-00-00T00:00:00";
    size_t n = 0;
    snprintf(out, MLO_AUDIT_MOMENT_SIZE, "%s",
             last ? "0000-00-00T23:59:59.999Z" : "0000-00-00T00:00:00.000Z");
    for (; text[n] && n < SECOND && (shape[n] == '0' ? isdigit((unsigned char)text[n]) : text[n] == shape[n]);
         n++)
        out[n] = text[n];
    if (n != DAY && n != MINUTE && n != SECOND)
        return false;
    const char *rest = text + n;
    if (n == SECOND && *rest == '.') {
        size_t digits = strspn(++rest, "0123456789");
        for (size_t i = 0; i < 3; i++)
            out[SECOND + 1 + i] = i < digits ? rest[i] : '0';
        rest += digits;
    }
    if (n > DAY && *rest == 'Z')
        rest++;
    return !*rest && two_digits(out + 5, 12) > 0 && two_digits(out + 8, 31) > 0 &&
           two_digits(out + 11, 23) >= 0 && two_digits(out + 14, 59) >= 0 && two_digits(out + 17, 59) >= 0;
}

/* A bound as the entries' `at` is written, with which it is compared as a text; "": there is none. */
static enum mlo_status read_bound(const char *text, const char *name, bool last,
                                  char out[MLO_AUDIT_MOMENT_SIZE], struct mlo_error *err)
{
    out[0] = '\0';
    if (!text || !*text || mlo_audit_moment(text, last, out))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%.60s' is no time", text);
    mlo_error_where(err, "query argument '%s'", name);
    mlo_error_hint(err, "a day or a time in UTC: 2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00:00Z");
    return MLO_EINVAL;
}

enum mlo_status mlo_audit_list(struct mlo_db_conn *conn, int64_t project_id,
                               const struct mlo_audit_filter *filter, const struct mlo_page *page,
                               json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    int64_t limit, before, scanned = 0;
    bool more = true;
    enum mlo_status status;
    json_t *items = json_array();
    struct mlo_audit_filter asked = {0};
    char since[MLO_AUDIT_MOMENT_SIZE], until[MLO_AUDIT_MOMENT_SIZE];
    *out = NULL;
    if (!items)
        return mlo_error_nomem(err);
    if (filter)
        asked = *filter;
    MLO_TRY(read_bound(asked.since, "since", false, since, err));
    MLO_TRY(read_bound(asked.until, "until", true, until, err));
    asked.since = since;
    asked.until = until;
    MLO_TRY(mlo_page_limit(page, &limit, err));
    MLO_TRY(mlo_page_number(page, INT64_MAX, &before, err));
    /* filtered here: the log's bytes are not asked to be JSON that PostgreSQL can read */
    while (more && (int64_t)json_array_size(items) < limit && scanned < SCAN_MAX) {
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, project_id);
        mlo_param_i64(&p, before);
        mlo_param_i64(&p, BATCH);
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_audit[AUDIT_BEFORE], &p, &rows, err));
        int count = mlo_rows_count(&rows), r = 0;
        for (; r < count && (int64_t)json_array_size(items) < limit; r++, scanned++) {
            json_t *item = entry_json(&rows, r);
            if (!item) {
                status = mlo_error_nomem(err);
                goto out;
            }
            before = mlo_rows_i64(&rows, r, 0);
            if (matches(item, &asked))
                json_array_append_new(items, item);
            else
                json_decref(item);
        }
        more = r < count || count == BATCH;
    }
    char next[24];
    snprintf(next, sizeof next, "%lld", (long long)before);
    *out = json_pack("{s:O, s:s?}", "items", items, "next", more && before > 1 ? next : NULL);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(items);
    mlo_rows_clear(&rows);
    return status;
}

/* "SEQ PREV_HASH HASH SIZE", the body, a line feed. A digest that is none (somebody changed it) is "-". */
static void put_entry(const struct mlo_rows *rows, int row, struct mlo_buf *body, struct mlo_buf *out)
{
    char prev[MLO_DIGEST_TEXT_SIZE] = "-", hash[MLO_DIGEST_TEXT_SIZE] = "-";
    struct mlo_digest digest;
    if (mlo_rows_digest(rows, row, 1, &digest))
        mlo_digest_hex(&digest, prev);
    if (mlo_rows_digest(rows, row, 2, &digest))
        mlo_digest_hex(&digest, hash);
    mlo_buf_reset(body);
    mlo_rows_bytes(rows, row, 3, body);
    mlo_buf_printf(out, "%lld %s %s %zu\n", (long long)mlo_rows_i64(rows, row, 0), prev, hash, body->len);
    mlo_buf_append(out, mlo_buf_str(body), body->len);
    mlo_buf_putc(out, '\n');
}

enum mlo_status mlo_audit_chain(struct mlo_db_conn *conn, int64_t project_id, int64_t after, int64_t limit,
                                struct mlo_buf *out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_buf body = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    size_t until = out->len + MLO_AUDIT_CHAIN_BYTES;
    int count = BATCH;
    for (int64_t left = limit; left > 0 && count == BATCH && out->len < until; left -= count) {
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, project_id);
        mlo_param_i64(&p, after);
        mlo_param_i64(&p, MLO_MIN(left, (int64_t)BATCH));
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_audit[AUDIT_AFTER], &p, &rows, err));
        count = mlo_rows_count(&rows);
        for (int r = 0; r < count && out->len < until; r++) {
            put_entry(&rows, r, &body, out);
            after = mlo_rows_i64(&rows, r, 0);
        }
        if (!mlo_buf_ok(out) || !mlo_buf_ok(&body)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
out:
    mlo_buf_clear(&body);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_audit_head(struct mlo_db_conn *conn, int64_t project_id, struct mlo_audit_head *out,
                               struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, project_id);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_audit[AUDIT_HEAD], &p, &rows, err);
    if (status == MLO_OK && (mlo_rows_count(&rows) == 0 || !mlo_rows_digest(&rows, 0, 1, &out->hash)))
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no audit chain %lld", (long long)project_id);
    if (status == MLO_OK)
        out->seq = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}

/* --- checking ---------------------------------------------------------------------------------- */

static void found_bad(struct mlo_audit_result *result, int64_t seq, const char *fmt, ...) MLO_PRINTF(3, 4);
static void found_bad(struct mlo_audit_result *result, int64_t seq, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(result->problem, sizeof result->problem, fmt, args);
    va_end(args);
    result->intact = false;
    result->bad_seq = seq;
}

/* Checks one row against the last good one; false when it is bad. */
static bool check_row(const struct mlo_rows *rows, int r, struct mlo_hasher *hasher, struct mlo_buf *body,
                      const struct mlo_audit_head *remembered, struct mlo_audit_result *result)
{
    int64_t seq = mlo_rows_i64(rows, r, 0), expected = result->head.seq + 1;
    struct mlo_digest prev, stored, computed;
    if (seq != expected) {
        found_bad(result, seq < expected ? seq : expected,
                  seq < expected ? "entry %lld does not belong before entry %lld"
                                 : "entry %lld is missing: %lld follows",
                  (long long)(seq < expected ? seq : expected), (long long)(seq < expected ? expected : seq));
        return false;
    }
    if (!mlo_rows_digest(rows, r, 1, &prev) || !mlo_digest_eq(&prev, &result->head.hash)) {
        found_bad(result, seq, "entry %lld does not link to the hash of the entry before it", (long long)seq);
        return false;
    }
    mlo_buf_reset(body);
    mlo_rows_bytes(rows, r, 3, body);
    mlo_hasher_link(hasher, &prev, seq, mlo_buf_str(body), body->len, &computed);
    if (!mlo_rows_digest(rows, r, 2, &stored) || !mlo_digest_eq(&stored, &computed)) {
        found_bad(result, seq, "the content of entry %lld is not what was hashed: it was changed",
                  (long long)seq);
        return false;
    }
    if (remembered && remembered->seq == seq && !mlo_digest_eq(&remembered->hash, &computed)) {
        found_bad(result, seq, "entry %lld is not the one that was seen before: the history was rewritten",
                  (long long)seq);
        return false;
    }
    result->head.seq = seq;
    result->head.hash = computed;
    result->entries++;
    return true;
}

enum mlo_status mlo_audit_verify(struct mlo_db_conn *conn, int64_t project_id,
                                 const struct mlo_audit_head *remembered, struct mlo_audit_result *out,
                                 struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_buf body = MLO_BUF_INIT;
    struct mlo_audit_head head;
    bool outermost = !mlo_db_in_transaction(conn);
    struct mlo_hasher *hasher = mlo_hasher_new();
    memset(out, 0, sizeof *out);
    out->intact = true;
    if (!hasher)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK) {
        mlo_hasher_free(hasher);
        return status;
    }
    if (outermost) /* the head and the rows of one moment */
        MLO_TRY(mlo_db_exec_text(conn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", err));
    MLO_TRY(mlo_audit_head(conn, project_id, &head, err));
    int64_t after = INT64_MIN;
    for (int count = BATCH; out->intact && count == BATCH;) {
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, project_id);
        mlo_param_i64(&p, after);
        mlo_param_i64(&p, BATCH);
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_audit[AUDIT_AFTER], &p, &rows, err));
        count = mlo_rows_count(&rows);
        for (int r = 0; r < count && check_row(&rows, r, hasher, &body, remembered, out); r++)
            after = out->head.seq;
        if (!mlo_buf_ok(&body)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    if (!out->intact)
        goto out;
    int64_t last = out->head.seq;
    if (last < head.seq)
        found_bad(out, last + 1, "the log ends at entry %lld, its head says %lld: the tail was cut",
                  (long long)last, (long long)head.seq);
    else if (last > head.seq || !mlo_digest_eq(&head.hash, &out->head.hash))
        found_bad(out, last, "the head says entry %lld with another hash: entries were added or replaced",
                  (long long)head.seq);
    else if (remembered && remembered->seq > last)
        found_bad(out, last + 1,
                  "the log ends at entry %lld, but entry %lld was seen before: the tail was cut",
                  (long long)last, (long long)remembered->seq);
out:
    mlo_rows_clear(&rows);
    mlo_buf_clear(&body);
    mlo_hasher_free(hasher);
    return mlo_db_end(conn, status, err);
}
