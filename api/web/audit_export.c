/* The audit log as a file, under the filters of its page: CSV for a spreadsheet, JSON with the exact texts,
 * as one document or a line an entry.
 */
#include <stdlib.h>
#include <string.h>

#include "api/web/web_impl.h"

/* What one answer holds in memory. */
#define EXPORT_MAX ((size_t)16 << 20)
/* So many entries are read for one answer, whatever the filters leave of them. */
enum { EXPORT_READ_MAX = 100000 };

#define COLUMNS "seq,at,who,via,address,request_id,action,object,reason,before,after,prev_hash,hash"

/* RFC 4180. What a spreadsheet would take for a formula gets an apostrophe in front: the texts are what users
 * wrote. */
static void cell(struct mlo_buf *out, const char *text)
{
    mlo_buf_putc(out, '"');
    if (*text && strchr("=+-@\t\r", *text))
        mlo_buf_putc(out, '\'');
    for (; *text; text++) {
        if (*text == '"')
            mlo_buf_putc(out, '"');
        mlo_buf_putc(out, *text);
    }
    mlo_buf_putc(out, '"');
}

static void csv_row(struct mlo_buf *out, const json_t *entry)
{
    for (const char *name = COLUMNS, *comma; name; name = comma ? comma + 1 : NULL) {
        comma = strchr(name, ',');
        const json_t *value = json_object_getn(entry, name, comma ? (size_t)(comma - name) : strlen(name));
        if (json_is_string(value)) {
            cell(out, json_string_value(value));
        } else if (json_is_integer(value)) {
            mlo_buf_printf(out, "%lld", (long long)json_integer_value(value));
        } else if (value && !json_is_null(value)) {
            struct mlo_buf text = MLO_BUF_INIT;
            mlo_json_canonical(value, &text);
            cell(out, mlo_buf_str(&text));
            mlo_buf_clear(&text);
        }
        mlo_buf_puts(out, comma ? "," : "");
    }
}

static void json_row(struct mlo_buf *out, const json_t *entry)
{
    char *text = json_dumps(entry, JSON_COMPACT);
    if (text)
        mlo_buf_puts(out, text);
    else
        out->failed = true;
    free(text);
}

static const struct format {
    const char *name, *type; /* the file name's end, too */
    const char *head;
    void (*row)(struct mlo_buf *out, const json_t *entry);
    const char *between, *end, *foot; /* two rows; of each row; of the file */
} FORMATS[] = {
    {"csv", "text/csv; charset=utf-8; header=present", COLUMNS "\r\n", csv_row, "", "\r\n", ""},
    {"json", "application/json", "{\"items\":[", json_row, ",\n", "", "]}\n"},
    {"jsonl", "application/jsonl", "", json_row, "", "\n", ""},
};

void mlo_page_audit_filter(const struct mlo_request *req, struct mlo_audit_filter *out)
{
    const struct {
        const char *name, **place;
    } fields[] = {{"who", &out->who},
                  {"action", &out->action},
                  {"object", &out->object},
                  {"since", &out->since},
                  {"until", &out->until}};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < MLO_COUNT(fields); i++)
        *fields[i].place = mlo_request_query(req, fields[i].name);
}

/* More than one answer may read: fine where what is left to be read lies before `since`, of which the next
 * entries by the thousand are taken as a sign. */
static enum mlo_status read_enough(struct mlo_db_conn *conn, int64_t project, const char *since,
                                   const char *cursor, struct mlo_error *err)
{
    const struct mlo_audit_filter filter = {.since = since};
    const struct mlo_page page = {.limit = 1, .cursor = cursor};
    json_t *newer = NULL;
    enum mlo_status status = MLO_OK;
    if (since)
        MLO_TRY(mlo_audit_list(conn, project, &filter, &page, &newer, err));
    if (!since || json_array_size(json_object_get(newer, "items"))) {
        status = mlo_error_set(err, MLO_ETOOBIG, "the log has more entries than one answer looks through");
        mlo_error_hint(
            err, "narrow it with a later since, or fetch …/audit/chain of the API, which has all of it");
    }
out:
    json_decref(newer);
    return status;
}

static enum mlo_status write_entries(struct mlo_request *req, struct mlo_db_conn *conn, int64_t project,
                                     const struct format *format, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_audit_filter filter;
    struct mlo_page page = {.limit = MLO_PAGE_MAX};
    struct mlo_buf *out = &req->out;
    json_t *entries = NULL, *item;
    size_t i;
    bool first = true;
    int64_t newest = 0;
    mlo_page_audit_filter(req, &filter);
    do {
        json_decref(entries);
        entries = NULL;
        MLO_TRY(mlo_audit_list(conn, project, &filter, &page, &entries, err));
        json_array_foreach(json_object_get(entries, "items"), i, item)
        {
            mlo_buf_puts(out, first ? "" : format->between);
            format->row(out, item);
            mlo_buf_puts(out, format->end);
            first = false;
        }
        if (out->len > EXPORT_MAX) {
            status = mlo_error_set(err, MLO_ETOOBIG, "the entries are more than one answer holds");
            mlo_error_hint(
                err,
                "narrow it with since and until, or fetch …/audit/chain of the API, which has all of it");
            goto out;
        }
        const char *next = mlo_json_str(entries, "next", NULL);
        int64_t at = 0;
        page.cursor = next ? mlo_arena_strdup(req->arena, next) : NULL;
        if (!next || !mlo_str_to_i64(next, &at))
            break;
        newest = MLO_MAX(newest, at); /* a cursor is a place in the chain, which has no gaps */
        if (newest - at > EXPORT_READ_MAX) {
            status = read_enough(conn, project, filter.since, next, err);
            break;
        }
    } while (page.cursor);
out:
    json_decref(entries);
    return status;
}

static enum mlo_status choose_format(const char *name, const struct format **out, struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(FORMATS); i++) {
        *out = &FORMATS[i];
        if (!name || strcmp(FORMATS[i].name, name) == 0)
            return MLO_OK;
    }
    mlo_error_set(err, MLO_EINVAL, "there is no format '%.40s'", name);
    mlo_error_hint(err, "csv, json or jsonl");
    return MLO_EINVAL;
}

enum mlo_status page_audit_export(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *name = mlo_request_param(req, "p");
    bool installation = strcmp(name, "-") == 0;
    const struct format *format;
    struct mlo_db_conn *conn;
    int64_t project = 0;
    enum mlo_status status;
    MLO_TRY(choose_format(mlo_request_query(req, "format"), &format, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    if (installation)
        MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    else
        MLO_TRY(mlo_request_project(req, &project, err));
    mlo_buf_reset(&req->out);
    mlo_buf_puts(&req->out, format->head);
    MLO_TRY(write_entries(req, conn, project, format, err));
    mlo_buf_puts(&req->out, format->foot);
    mlo_reply_header(req, "Content-Disposition", "attachment; filename=\"audit-%s.%s\"",
                     installation ? "installation" : name, format->name);
    MLO_TRY(mlo_reply_out(req, 200, format->type, err));
out:
    return status;
}
