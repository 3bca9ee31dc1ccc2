#include "pipeline/service/job_log_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { S_APPEND, S_READ, S_ENDS };

const struct mlo_sql MLO_JOB_LOG_SQL[] = {
    [S_APPEND] =
        {"job_log_append",
         "insert into attempt_log (job, number, part, text) select a.job, a.number, $3, $4 from attempt a "
         "join job j on j.id = a.job and j.token = a.token where a.job = $1 and a.token = $2::uuid",
         4},
    [S_READ] =
        {"job_log_read",
         "select j.id as job, j.position, coalesce(j.name, j.step) as name, j.step, l.number as attempt, "
         "  min(l.at) as began_at, max(l.at) as last_at, string_agg(l.text, '' order by l.part) as text "
         "from job j join attempt_log l on l.job = j.id where j.run = $1 and ($2::bigint = 0 or j.id = $2) "
         "group by j.id, l.number order by j.position, l.number",
         2},
    /* An attempt's last part tells when it wrote, by one look into the index; and no more of a text is read
     * than is shown: its length is beside it. */
    [S_ENDS] =
        {"job_log_ends",
         "with logged as (select j.id as job, j.position, coalesce(j.name, j.step) as name, a.number, "
         "    j.state = 'running' and a.token = j.token as runs, l.at "
         "  from job j join attempt a on a.job = j.id cross join lateral (select at from attempt_log "
         "    where job = a.job and number = a.number order by part desc limit 1) l where j.run = $1), "
         "newest as (select *, count(*) over () as found from logged order by runs desc, at desc, job, "
         "  number limit $2), "
         "share as (select $3::bigint / greatest(count(*), 1) as bytes from newest) "
         "select n.job, n.name, n.number as attempt, n.runs, e.bytes, e.text, n.found from newest n "
         "cross join lateral (select sum(size)::bigint as bytes, "
         "    string_agg(p.text, '' order by p.part) filter (where p.up_to - p.size < share.bytes) as text "
         "  from (select part, text, octet_length(text) as size, "
         "      sum(octet_length(text)) over (order by part desc rows unbounded preceding) as up_to "
         "    from attempt_log where job = n.job and number = n.number) p, share) e "
         "order by n.position, n.number",
         3},
};
const size_t MLO_JOB_LOG_SQL_COUNT = MLO_COUNT(MLO_JOB_LOG_SQL);

enum { PIECE_MAX = 16 << 10, FIRST_MS = 500, AGE_SHARE = 50 };

#define MS_NS 1000000ull

/* --- text ---------------------------------------------------------------------------------------------- */

/* The bytes of the UTF-8 character at `at`; 0: none (RFC 3629: no overlong forms, no surrogates). */
static size_t character(const unsigned char *at, size_t left)
{
    size_t size = at[0] < 0x80                    ? 1
                  : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                  : (at[0] & 0xf0) == 0xe0        ? 3
                  : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                  : 0;
    if (size == 0 || size > left)
        return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] >= 0xa0) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] >= 0x90))
        return 0;
    return size;
}

/* What an untrusted step writes becomes text that a row, a page and a terminal can have. */
static void add_clean(struct mlo_buf *out, const char *bytes, size_t size)
{
    const unsigned char *at = (const unsigned char *)bytes;
    for (size_t i = 0; i < size;) {
        size_t n = character(at + i, size - i);
        bool plain = n > 1 ? !(n == 2 && at[i] == 0xc2 && at[i + 1] < 0xa0) /* C1 controls */
                           : n == 1 && ((at[i] >= ' ' && at[i] != 0x7f) || at[i] == '\n' || at[i] == '\t');
        if (plain)
            mlo_buf_append(out, bytes + i, n);
        else if (n != 1 || at[i] != '\r')
            mlo_buf_putc(out, '?');
        i += n ? n : 1;
    }
}

/* --- sending ------------------------------------------------------------------------------------------- */

void mlo_job_log_begin(struct mlo_job_log *log, struct mlo_db *db, const struct mlo_job *job)
{
    *log = (struct mlo_job_log){.db = db, .job = job, .begun_ns = mlo_clock_ns()};
    log->next_ns = log->begun_ns + FIRST_MS * MS_NS;
}

static bool send_text(struct mlo_job_log *log, const struct mlo_buf *text)
{
    struct mlo_db_conn *conn;
    struct mlo_rows rows = {0};
    struct mlo_error error = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, log->job->id);
    mlo_param_text(&p, log->job->token);
    mlo_param_i64(&p, log->part);
    mlo_param_text(&p, mlo_buf_str(text));
    if (!mlo_buf_ok(text) || mlo_db_acquire(log->db, &conn, &error) != MLO_OK)
        return false;
    enum mlo_status status = mlo_db_exec(conn, &MLO_JOB_LOG_SQL[S_APPEND], &p, &rows, &error);
    mlo_db_release(conn);
    log->lost = log->lost || (status == MLO_OK && mlo_rows_affected(&rows) == 0) ||
                (status != MLO_OK && !mlo_status_info(status)->retry);
    mlo_rows_clear(&rows);
    log->part += status == MLO_OK;
    return status == MLO_OK && !log->lost;
}

/* The next bytes from `from` on, at most `most`; whole lines unless `last` or the line is longer. */
static size_t read_piece(int fd, uint64_t from, size_t most, bool last, char *bytes)
{
    ssize_t got = pread(fd, bytes, most, (off_t)from);
    size_t size = got > 0 ? (size_t)got : 0;
    const char *end = size ? memrchr(bytes, '\n', size) : NULL;
    if (end)
        return (size_t)(end - bytes) + 1;
    return last || size == most ? size : 0;
}

static bool send_piece(struct mlo_job_log *log, const char *bytes, size_t size, uint64_t left_out)
{
    struct mlo_buf text = MLO_BUF_INIT;
    if (left_out)
        mlo_buf_printf(&text, "... %llu bytes are left out here ...\n", (unsigned long long)left_out);
    add_clean(&text, bytes, size);
    bool sent = send_text(log, &text);
    mlo_buf_clear(&text);
    return sent;
}

void mlo_job_log_look(struct mlo_job_log *log, int fd, bool last)
{
    char bytes[PIECE_MAX];
    struct stat st;
    uint64_t now = mlo_clock_ns();
    if (log->lost || (!last && now < log->next_ns) || fstat(fd, &st) != 0)
        return;
    uint64_t size = (uint64_t)st.st_size;
    log->next_ns = now + MLO_MAX((uint64_t)FIRST_MS * MS_NS, (now - log->begun_ns) / AGE_SHARE);
    while (log->sent_bytes < MLO_MIN(size, (uint64_t)MLO_JOB_LOG_HEAD)) {
        size_t most = (size_t)MLO_MIN((uint64_t)PIECE_MAX, MLO_JOB_LOG_HEAD - log->sent_bytes);
        size_t n = read_piece(fd, log->sent_bytes, most, last, bytes);
        if (n == 0 || !send_piece(log, bytes, n, 0))
            return;
        log->sent_bytes += n;
    }
    if (!last || log->sent_bytes >= size)
        return;
    uint64_t from = MLO_MAX(log->sent_bytes, size > MLO_JOB_LOG_TAIL ? size - MLO_JOB_LOG_TAIL : 0);
    uint64_t left_out = from - log->sent_bytes;
    for (size_t n; (n = read_piece(fd, from, PIECE_MAX, true, bytes)) > 0; from += n, left_out = 0)
        if (!send_piece(log, bytes, n, left_out))
            return;
}

/* --- reading ------------------------------------------------------------------------------------------- */

enum mlo_status mlo_run_log(struct mlo_db_conn *conn, int64_t run, int64_t job, json_t **out,
                            struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *items = NULL;
    mlo_param_i64(&p, run);
    mlo_param_i64(&p, job);
    MLO_TRY(mlo_db_exec(conn, &MLO_JOB_LOG_SQL[S_READ], &p, &rows, err));
    items = mlo_rows_json_all(&rows);
    if (!items || !(*out = json_pack("{s:O, s:n}", "items", items, "next")))
        status = mlo_error_nomem(err);
out:
    json_decref(items);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_run_log_ends(struct mlo_db_conn *conn, int64_t run, int most, int64_t bytes, json_t **out,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *items = NULL, *item;
    int64_t found = 0;
    size_t i;
    mlo_param_i64(&p, run);
    mlo_param_i64(&p, most);
    mlo_param_i64(&p, bytes);
    MLO_TRY(mlo_db_exec(conn, &MLO_JOB_LOG_SQL[S_ENDS], &p, &rows, err));
    items = mlo_rows_json_all(&rows);
    json_array_foreach(items, i, item)
    {
        found = mlo_json_i64(item, "found", 0);
        json_object_del(item, "found");
    }
    if (!items || !(*out = json_pack("{s:O, s:I}", "items", items, "left_out",
                                     (json_int_t)(found - (int64_t)json_array_size(items)))))
        status = mlo_error_nomem(err);
out:
    json_decref(items);
    mlo_rows_clear(&rows);
    return status;
}
