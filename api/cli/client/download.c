/* Files from the server, or from where it sends us. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/client/http_impl.h"

/* From the first byte on. */
static enum mlo_status start_anew(struct mlo_transfer *t, struct mlo_error *err)
{
    mlo_hasher_free(t->hasher);
    t->hasher = mlo_hasher_new();
    if (!t->hasher)
        return mlo_error_nomem(err);
    if (ftruncate(t->out_fd, 0) != 0 || lseek(t->out_fd, 0, SEEK_SET) != 0)
        return mlo_error_errno(err, errno, "cannot write the download");
    mlo_buf_reset(&t->body);
    return MLO_OK;
}

/* The bytes, or (when it follows) where they are. */
static enum mlo_status ask_for_bytes(struct mlo_transfer *t, const char *path, const char *query,
                                     struct mlo_error *err)
{
    struct curl_slist *headers = NULL;
    struct mlo_buf url = MLO_BUF_INIT;
    enum mlo_status status;
    MLO_TRY(start_anew(t, err));
    mlo_response_clear(t->response);
    mlo_buf_printf(&url, "%s%s%s", t->client->config.url, path, query);
    if (!mlo_buf_ok(&url) || !mlo_add_header(&headers, mlo_buf_str(&t->client->auth))) {
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
    if (start_anew(t, err) != MLO_OK) {
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

/* What cannot be had from elsewhere comes through the server, which finds out when the bytes are damaged. */
static enum mlo_status download(struct mlo_transfer *t, const char *path, const char *expected,
                                struct mlo_error *err)
{
    const char *through = strchr(path, '?') ? "&redirect=no" : "?redirect=no";
    struct mlo_error wrong = {0};
    char why[256] = "";
    enum mlo_status status;
    MLO_TRY(ask_for_bytes(t, path, t->follows ? "" : through, err));
    if (t->response->http == 307) {
        if (fetch_elsewhere(t, why, &wrong)) {
            if (check_download(t, expected, &wrong) == MLO_OK)
                goto out;
            snprintf(why, sizeof why, "%.200s", wrong.message);
        }
        if (t->write_errno) { /* the disk is full: it will be again */
            status = mlo_error_errno(err, t->write_errno, "cannot write the download");
            goto out;
        }
        mlo_cli_note(t->client->cli, "%s; asking the server for the bytes", why);
        t->client->stays = true;
        t->follows = false;
        MLO_TRY(ask_for_bytes(t, path, through, err));
    }
    MLO_TRY(check_download(t, expected, err));
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
    const char *scratch = NULL;
    char *temp = NULL;
    *written = NULL;
    memset(out, 0, sizeof *out);
    mlo_cli_progress_start(&progress, client->cli, fallback);
    MLO_TRY(mlo_fs_mkdirs(dir, err));
    MLO_TRY(mlo_cli_scratch(dir, &scratch, err)); /* beside its place, so that the rename is one */
    temp = mlo_fs_join(scratch, "download", NULL);
    if (!temp || (t.out_fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) < 0) {
        status = mlo_error_errno(err, temp ? errno : ENOMEM, "cannot write in %s", dir);
        goto out;
    }
    status = download(&t, path, expected, err);
    mlo_cli_progress_end(&progress);
    if (status == MLO_OK)
        status = finish_download(&t, temp, dir, name, fallback, written, err);
out:
    if (t.out_fd >= 0)
        close(t.out_fd);
    mlo_cli_scratch_remove(scratch);
    free(temp);
    mlo_hasher_free(t.hasher);
    mlo_buf_clear(&t.body);
    mlo_buf_clear(&t.location);
    return status;
}
