#include "registry/ledger_commit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char HEADER[] = "gpgsig ";

bool mlo_ledger_seconds(const char *text, int64_t *out)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest || (*rest != '.' && *rest != 'Z'))
        return false;
    *out = (int64_t)timegm(&tm);
    return true;
}

/* --- state and trees --------------------------------------------------------------------------- */

enum mlo_status mlo_ledger_apply(json_t *state, const json_t *files, mlo_git_object_fn *emit, void *arg,
                                 struct mlo_error *err)
{
    json_t *file;
    size_t i;
    json_array_foreach((json_t *)files, i, file)
    {
        const char *path = mlo_json_str(file, "path", NULL);
        const json_t *text = json_object_get(file, "text");
        struct mlo_git_id id;
        char hex[MLO_GIT_ID_TEXT_SIZE];
        if (!path || !*path || !(json_is_string(text) || json_is_null(text)))
            return mlo_error_set(err, MLO_EFORMAT, "a file of the ledger has no path or no text");
        if (json_is_null(text)) {
            json_object_del(state, path);
            continue;
        }
        mlo_git_object_id("blob", json_string_value(text), json_string_length(text), &id);
        if (json_object_set_new(state, path, json_string(mlo_git_id_text(&id, hex))) != 0)
            return mlo_error_nomem(err);
        if (emit) {
            enum mlo_status status =
                emit(arg, "blob", json_string_value(text), json_string_length(text), err);
            if (status != MLO_OK)
                return status;
        }
    }
    return MLO_OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct mlo_git_file *)a)->path, ((const struct mlo_git_file *)b)->path);
}

enum mlo_status mlo_ledger_tree(const json_t *state, mlo_git_object_fn *emit, void *arg,
                                struct mlo_git_id *out, struct mlo_error *err)
{
    size_t count = json_object_size(state), n = 0;
    struct mlo_git_file *files = calloc(count + 1, sizeof *files);
    const char *path;
    json_t *id;
    enum mlo_status status = files ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK)
        json_object_foreach((json_t *)state, path, id)
        {
            files[n].path = path;
            if (!json_is_string(id) || !mlo_git_id_parse(json_string_value(id), &files[n++].blob)) {
                status = mlo_error_set(err, MLO_EFORMAT, "the ledger's state has no id for '%.200s'", path);
                break;
            }
        }
    if (status == MLO_OK) {
        qsort(files, n, sizeof *files, by_path);
        status = mlo_git_tree(files, n, emit, arg, out, err);
    }
    free(files);
    return status;
}

/* --- commits ------------------------------------------------------------------------------------ */

/* A name as git takes it: what would end it becomes a blank. */
static void put_name(struct mlo_buf *out, const char *name)
{
    bool any = false;
    for (; *name; name++) {
        mlo_buf_putc(out, (unsigned char)*name < 0x20 || *name == 0x7f || strchr("<>", *name) ? ' ' : *name);
        any = any || *name != ' ';
    }
    if (!any)
        mlo_buf_puts(out, "unknown");
}

/* A line of text, or several: without what terminals take for commands. */
static void put_text(struct mlo_buf *out, const char *text, bool lines)
{
    for (; *text; text++)
        mlo_buf_putc(
            out, ((unsigned char)*text < 0x20 && !(lines && *text == '\n')) || *text == 0x7f ? ' ' : *text);
}

enum mlo_status mlo_ledger_compose(const struct mlo_ledger_commit *commit, struct mlo_buf *out,
                                   struct mlo_error *err)
{
    char id[MLO_GIT_ID_TEXT_SIZE], hash[MLO_DIGEST_TEXT_SIZE];
    const char *reason = mlo_json_str(commit->audit, "reason", "");
    int64_t at;
    if (!mlo_ledger_seconds(mlo_json_str(commit->audit, "at", ""), &at))
        return mlo_error_set(err, MLO_EFORMAT, "audit entry %lld has no time", (long long)commit->audit_seq);
    mlo_buf_printf(out, "tree %s\n", mlo_git_id_text(&commit->tree, id));
    if (commit->parent)
        mlo_buf_printf(out, "parent %s\n", mlo_git_id_text(commit->parent, id));
    mlo_buf_puts(out, "author ");
    put_name(out, mlo_json_str(commit->audit, "who", ""));
    mlo_buf_puts(out, " <");
    put_name(out, mlo_json_str(commit->audit, "via", ""));
    mlo_buf_printf(out, "@mlopt> %" PRId64 " +0000\n", at);
    mlo_buf_printf(out, "committer mlopt ledger <" MLO_LEDGER_PRINCIPAL "> %" PRId64 " +0000\n\n",
                   commit->time_s);
    put_text(out, mlo_json_str(commit->audit, "action", ""), false);
    mlo_buf_putc(out, ' ');
    put_text(out, mlo_json_str(commit->audit, "object", ""), false);
    mlo_buf_puts(out, "\n\n");
    if (reason[strspn(reason, " \t\r\n")]) {
        put_text(out, reason, true);
        mlo_buf_puts(out, "\n\n");
    }
    mlo_buf_printf(out, "Audit: %lld %s\n", (long long)commit->audit_seq,
                   mlo_digest_text(&commit->audit_hash, hash));
    return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
}

void mlo_ledger_join(const struct mlo_buf *unsigned_commit, const struct mlo_buf *armored,
                     struct mlo_buf *out)
{
    const char *text = mlo_buf_str(unsigned_commit), *end = strstr(text, "\n\n");
    size_t headers = end ? (size_t)(end - text) + 1 : 0;
    mlo_buf_append(out, text, headers);
    mlo_buf_puts(out, HEADER);
    for (size_t i = 0; i < armored->len; i++) { /* a line that goes on begins with a blank */
        mlo_buf_putc(out, armored->data[i]);
        if (armored->data[i] == '\n' && i + 1 < armored->len)
            mlo_buf_putc(out, ' ');
    }
    mlo_buf_append(out, text + headers, unsigned_commit->len - headers);
    out->failed = out->failed || !headers || unsigned_commit->failed || armored->failed;
}

bool mlo_ledger_split(const char *commit, size_t size, struct mlo_buf *unsigned_commit,
                      struct mlo_buf *armored)
{
    const char *end = commit + size, *line = commit;
    bool found = false, inside = false;
    while (line < end && *line != '\n') {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = stop ? (size_t)(stop - line) + 1 : (size_t)(end - line);
        bool first = length >= sizeof HEADER && memcmp(line, HEADER, sizeof HEADER - 1) == 0;
        if (first && found)
            return false;
        inside = first || (inside && *line == ' ');
        found = found || first;
        size_t skip = first ? sizeof HEADER - 1 : 1;
        if (inside)
            mlo_buf_append(armored, line + skip, length - skip);
        else
            mlo_buf_append(unsigned_commit, line, length);
        line += length;
    }
    mlo_buf_append(unsigned_commit, line, (size_t)(end - line));
    return found && mlo_buf_ok(unsigned_commit) && mlo_buf_ok(armored);
}

int64_t mlo_ledger_commit_time(const char *unsigned_commit)
{
    const char *line = strstr(unsigned_commit, "\ncommitter "), *end = line ? strchr(line + 1, '\n') : NULL;
    const char *mail = line ? strchr(line, '>') : NULL;
    char number[24];
    int64_t time_s;
    if (!end || !mail || mail > end)
        return -1;
    size_t length = strcspn(mail + 2, " \n");
    if (mail[1] != ' ' || length >= sizeof number)
        return -1;
    snprintf(number, sizeof number, "%.*s", (int)length, mail + 2);
    return mlo_str_to_i64(number, &time_s) && time_s >= 0 ? time_s : -1;
}
