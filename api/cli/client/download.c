/* Files from the server, or from where it sends us. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/client/http_impl.h"
#include "api/cli/client/part.h"

enum mlo_status mlo_transfer_start_anew(struct mlo_transfer *t, struct mlo_error *err)
{
    t->had = 0;
    mlo_hasher_free(t->hasher);
    t->hasher = mlo_hasher_new();
    if (!t->hasher)
        return mlo_error_nomem(err);
    if (ftruncate(t->out_fd, 0) != 0 || lseek(t->out_fd, 0, SEEK_SET) != 0)
        return mlo_error_errno(err, errno, "cannot write the download");
    mlo_buf_reset(&t->body);
    return MLO_OK;
}

static enum mlo_status ask_once(struct mlo_transfer *t, const char *path, const char *query,
                                struct mlo_error *err)
{
    struct curl_slist *headers = NULL;
    struct mlo_buf url = MLO_BUF_INIT;
    char text[MLO_DIGEST_TEXT_SIZE], if_range[MLO_DIGEST_TEXT_SIZE + 16] = "", range[48] = "";
    enum mlo_status status = MLO_OK;
    if (t->had) {
        snprintf(if_range, sizeof if_range, "If-Range: \"%s\"", mlo_digest_text(&t->wanted, text));
        snprintf(range, sizeof range, "Range: bytes=%llu-", (unsigned long long)t->had);
        mlo_buf_reset(&t->body);
    } else {
        MLO_TRY(mlo_transfer_start_anew(t, err));
    }
    mlo_response_clear(t->response);
    mlo_buf_printf(&url, "%s%s%s", t->client->config.url, path, query);
    if (!mlo_buf_ok(&url) || !mlo_add_header(&headers, mlo_buf_str(&t->client->auth)) ||
        !mlo_add_header(&headers, if_range) || !mlo_add_header(&headers, range)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_transfer_set_up(t, "GET", mlo_buf_str(&url), headers);
    status = mlo_transfer_perform(t, err);
out:
    curl_slist_free_all(headers);
    mlo_buf_clear(&url);
    return status;
}

/* The bytes, or (when it follows) where they are. Those that are there already are not asked for again: then
 * our server sends the rest itself, as only its ETags tell whether it is the rest of the same. */
static enum mlo_status ask_for_bytes(struct mlo_transfer *t, const char *path, const char *query,
                                     struct mlo_error *err)
{
    struct mlo_error why = {0};
    bool resumes = t->had > 0;
    enum mlo_status status = ask_once(t, path, query, &why);
    if (status == MLO_ERANGE && resumes) { /* more is here than it has: it is not the beginning of it */
        MLO_TRY(mlo_transfer_start_anew(t, err));
        return ask_once(t, path, query, err);
    }
    if (status != MLO_OK && err)
        *err = why;
out:
    return status;
}

bool mlo_client_may_go(const struct mlo_client *client, const char *url, char host[128], char why[256])
{
    const char *begin = strstr(url, "://");
    bool tls = mlo_str_starts(url, "https://");
    host[0] = '\0';
    if (begin)
        mlo_copy_text(host, 128, begin + 3, strcspn(begin + 3, "/?#"));
    if (!*host || (!tls && !mlo_str_starts(url, "http://")) || strchr(host, '@'))
        snprintf(why, 256, "the server sends us to no address");
    else if (!tls && mlo_str_starts(client->config.url, "https://"))
        snprintf(why, 256, "the server sends us to %s without TLS", host);
    else
        return true;
    return false;
}

/* The bytes from where the server sends us, without our token. `why` says what was wrong. */
static bool fetch_elsewhere(struct mlo_transfer *t, char why[256], struct mlo_error *err)
{
    const char *url = mlo_buf_str(&t->location);
    char name[128];
    long http = 0;
    if (!mlo_buf_ok(&t->location)) {
        snprintf(why, 256, "out of memory");
        return false;
    }
    if (!mlo_client_may_go(t->client, url, name, why))
        return false;
    if (mlo_transfer_start_anew(t, err) != MLO_OK) {
        snprintf(why, 256, "%.255s", err->message);
        return false;
    }
    char request_id[sizeof t->client->cli->request_id];
    memcpy(request_id, t->client->cli->request_id, sizeof request_id);
    t->elsewhere = true;
    mlo_transfer_set_up(t, "GET", url, NULL);
    CURLcode code = curl_easy_perform(t->client->curl);
    t->elsewhere = false;
    memcpy(t->client->cli->request_id, request_id, sizeof request_id);
    curl_easy_getinfo(t->client->curl, CURLINFO_RESPONSE_CODE, &http);
    if (code == CURLE_OK && http == 200)
        return true;
    if (code != CURLE_OK)
        snprintf(why, 256, "%s: %s", name, curl_easy_strerror(code));
    else
        snprintf(why, 256, "%s answered %ld", name, http);
    return false;
}

/* Are the bytes what was asked for, or what our server said they are? */
static enum mlo_status check_download(const struct mlo_transfer *t, const char *expected,
                                      struct mlo_error *err)
{
    struct mlo_digest got, want;
    char text[MLO_DIGEST_TEXT_SIZE];
    const char *claimed = expected ? expected : t->response->digest;
    mlo_hasher_final(t->hasher, &got);
    if (!mlo_digest_parse(claimed, &want))
        return mlo_error_set(err, MLO_EDIGEST, "the server does not say which digest the bytes have");
    if (!mlo_digest_eq(&got, &want))
        return mlo_error_set(err, MLO_EDIGEST, "the bytes received hash to %s, not to %s; nothing was kept",
                             mlo_digest_text(&got, text), claimed);
    return MLO_OK;
}

/* Where the file stands that is written: what was hashed is what is in it. */
static void go_on_behind(struct mlo_transfer *t)
{
    t->had = t->hasher ? mlo_hasher_size(t->hasher) : 0;
}

/* What cannot be had from elsewhere comes through the server, which finds out when the bytes are damaged. */
static enum mlo_status download(struct mlo_transfer *t, const char *path, const char *expected,
                                struct mlo_error *err)
{
    const char *through = strchr(path, '?') ? "&redirect=no" : "?redirect=no";
    struct mlo_error wrong = {0};
    char why[256] = "";
    enum mlo_status status;
    MLO_TRY(ask_for_bytes(t, path, t->follows && !t->had ? "" : through, err));
    if (t->response->http == 307) {
        if (fetch_elsewhere(t, why, &wrong)) {
            if (check_download(t, expected, &wrong) == MLO_OK)
                goto out;
            snprintf(why, sizeof why, "%.200s", wrong.message);
            MLO_TRY(mlo_transfer_start_anew(t, err));
        }
        if (t->write_errno) { /* the disk is full: it will be again */
            status = mlo_error_errno(err, t->write_errno, "cannot write the download");
            goto out;
        }
        mlo_cli_note(t->client->cli, "%s; asking the server for the bytes", why);
        t->client->stays = true;
        t->follows = false;
        if (t->keeps)
            go_on_behind(t);
        MLO_TRY(ask_for_bytes(t, path, through, err));
    }
    bool resumed = t->had > 0;
    status = check_download(t, expected, resumed ? &wrong : err);
    if (status != MLO_OK && resumed) { /* what lay there was not the beginning of it */
        MLO_TRY(mlo_transfer_start_anew(t, err));
        MLO_TRY(ask_for_bytes(t, path, through, err));
        MLO_TRY(check_download(t, expected, err));
    }
    MLO_TRY(status == MLO_OK || resumed ? MLO_OK : status);
out:
    return status;
}

/* A connection that breaks is made again, as long as the server answers, and the bytes that came are not sent
 * again. */
static enum mlo_status download_whole(struct mlo_transfer *t, const char *path, const char *expected,
                                      struct mlo_error *err)
{
    enum { PAUSE_MS = 500 };
    t->last_ns = 0;
    for (;;) {
        struct mlo_error trouble = {0};
        uint64_t had = t->had;
        char size[32];
        enum mlo_status status = download(t, path, expected, &trouble);
        if (status == MLO_OK)
            return status;
        bool broke = t->keeps && !t->write_errno && (status == MLO_EUNAVAILABLE || status == MLO_ETIMEOUT);
        if (!broke || !t->last_ns || !mlo_client_may_ask_again(status, t->last_ns)) {
            if (err)
                *err = trouble;
            return status;
        }
        go_on_behind(t);
        if (t->had > had)
            mlo_cli_note(t->client->cli, "%s; going on behind %s", trouble.message,
                         mlo_str_size(t->had, size));
        mlo_clock_sleep_ms(PAUSE_MS);
    }
}

/* Which digest the bytes have, as far as the server says so before it sends them. */
static bool ask_digest(struct mlo_client *client, const char *path, const char *expected,
                       struct mlo_digest *out)
{
    struct mlo_response response;
    struct mlo_error ignored = {0};
    if (expected)
        return mlo_digest_parse(expected, out);
    bool known = mlo_client_call(client, "HEAD", path, NULL, NULL, &response, &ignored) == MLO_OK &&
                 mlo_digest_parse(response.digest, out);
    mlo_response_clear(&response);
    return known;
}

/* All of it may be there, when a process ended between the last byte and the name. A byte is then left to ask
 * for: what the file is called comes with it. */
static void leave_a_byte(struct mlo_transfer *t, struct mlo_part *part)
{
    struct mlo_hash_state state;
    struct mlo_digest got;
    if (!t->had)
        return;
    mlo_hasher_save(t->hasher, &state);
    mlo_hasher_final(t->hasher, &got);
    if (!mlo_digest_eq(&got, &t->wanted))
        mlo_hasher_restore(t->hasher, &state);
    else if (ftruncate(part->fd, (off_t)t->had - 1) == 0)
        t->had = mlo_part_hash(part, t->hasher);
    else
        t->had = 0;
}

/* The file that is written: what is there of it, where its digest is known, else one that goes with the
 * process. */
static enum mlo_status open_output(struct mlo_transfer *t, const char *path, const char *dir,
                                   const char *expected, struct mlo_part *part, const char **scratch,
                                   char **temp, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    *part = (struct mlo_part){.fd = -1};
    if (ask_digest(t->client, path, expected, &t->wanted))
        mlo_part_open(dir, &t->wanted, part);
    if (part->path) {
        t->keeps = true;
        t->hasher = mlo_hasher_new();
        *temp = strdup(part->path);
        if (!t->hasher || !*temp)
            return mlo_error_nomem(err);
        t->out_fd = part->fd;
        t->had = mlo_part_hash(part, t->hasher);
        leave_a_byte(t, part);
        return MLO_OK;
    }
    MLO_TRY(mlo_cli_scratch(dir, scratch, err)); /* beside its place, so that the rename is one */
    *temp = mlo_fs_join(*scratch, "download", NULL);
    if (!*temp || (part->fd = open(*temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) < 0)
        status = mlo_error_errno(err, *temp ? errno : ENOMEM, "cannot write in %s", dir);
    t->out_fd = part->fd;
out:
    return status;
}

/* Puts the finished temporary file, whose bytes were checked, in its place. */
static enum mlo_status finish_download(struct mlo_transfer *t, const char *temp, const char *dir,
                                       const char *name, const char *fallback, char **written,
                                       struct mlo_error *err)
{
    if (fsync(t->out_fd) != 0)
        return mlo_error_errno(err, errno, "cannot write %s to disk", temp);
    if (!name)
        name = *t->response->filename ? t->response->filename : fallback;
    char *path = mlo_fs_join(dir, mlo_fs_basename(name), NULL);
    if (!path)
        return mlo_error_nomem(err);
    if (rename(temp, path) != 0) {
        enum mlo_status status = mlo_error_errno(err, errno, "cannot put %s in its place", path);
        free(path);
        return status;
    }
    *written = path;
    return MLO_OK;
}

enum mlo_status mlo_client_download(struct mlo_client *client, const char *path, const char *dir,
                                    const char *name, const char *fallback, const char *expected,
                                    char **written, struct mlo_response *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_cli_progress progress;
    struct mlo_transfer t = {
        .client = client, .response = out, .out_fd = -1, .progress = &progress, .follows = !client->stays};
    struct mlo_part part = {.fd = -1};
    const char *scratch = NULL;
    char *temp = NULL, size[32];
    uint64_t kept;
    *written = NULL;
    memset(out, 0, sizeof *out);
    mlo_cli_progress_start(&progress, client->cli, fallback);
    MLO_TRY(mlo_fs_mkdirs(dir, err));
    MLO_TRY(open_output(&t, path, dir, expected, &part, &scratch, &temp, err));
    if (t.had)
        mlo_cli_note(client->cli, "%s of it are here already", mlo_str_size(t.had, size));
    mlo_cli_on_interrupt(t.keeps ? "what came is kept: the same command goes on from there" : NULL);
    status = download_whole(&t, path, expected, err);
    mlo_cli_on_interrupt(NULL);
    mlo_cli_progress_end(&progress);
    if (status == MLO_OK)
        status = finish_download(&t, temp, dir, name, fallback, written, err);
out:
    /* what has got its name is no part any more; wrong bytes are of no use */
    if (t.keeps && status == MLO_OK) {
        free(part.path);
        part.path = NULL;
    }
    mlo_part_close(&part, status == MLO_EDIGEST || status == MLO_ERANGE, &kept);
    if (t.keeps && status != MLO_OK && kept && err && !err->hint[0])
        mlo_error_hint(err, "%s are kept in %s: the same command goes on from there",
                       mlo_str_size(kept, size), dir);
    mlo_cli_scratch_remove(scratch);
    free(temp);
    mlo_hasher_free(t.hasher);
    mlo_buf_clear(&t.body);
    mlo_buf_clear(&t.location);
    return status;
}
