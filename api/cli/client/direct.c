/* Direct uploads: parts straight to the bucket, or one that is the whole file. One thread, several transfers
 * at a time (curl's multi interface). */
#include "api/cli/client/direct.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/client/http_impl.h"

enum {
    PARALLEL = 4,
    FAILURES = 8,       /* in a row, after which it is given up */
    FAILURES_WHOLE = 3, /* each costs the whole file */
    MD5_PIECE = 1 << 18,
};

/* A transfer of one part. */
struct slot {
    CURL *curl; /* NULL: free */
    struct curl_slist *headers;
    struct mlo_sending sending;
    uint64_t first, size;
    int number;
};

struct parts {
    struct mlo_client *client;
    const char *session;
    int fd, count;
    uint64_t size, part_size, arrived_bytes;
    bool whole;    /* one part, whose digest the bucket's server knows */
    bool *arrived; /* [1 … count], also what is on its way */
    CURLM *multi;
    struct slot slots[PARALLEL];
    int busy, failures;
    char why[384]; /* of the last failure */
    struct mlo_cli_progress *progress;
};

static uint64_t size_of(const struct parts *p, int number)
{
    uint64_t first = (uint64_t)(number - 1) * p->part_size;
    return MLO_MIN(p->part_size, p->size - first);
}

static enum mlo_status read_state(struct parts *p, const json_t *state, bool *some, struct mlo_error *err)
{
    json_t *range;
    size_t i;
    p->size = (uint64_t)mlo_json_i64(state, "size", 0);
    p->part_size = (uint64_t)mlo_json_i64(state, "part_size", 0);
    p->count = (int)mlo_json_i64(state, "parts", 0);
    p->whole = json_object_get(state, "digest") != NULL;
    if (p->count < 1 || p->count > 10000 || !p->part_size ||
        (uint64_t)(p->count - 1) * p->part_size >= p->size || (uint64_t)p->count * p->part_size < p->size)
        return mlo_error_set(err, MLO_EFORMAT, "the server's parts make no whole");
    p->arrived = calloc((size_t)p->count + 1, sizeof *p->arrived);
    if (!p->arrived)
        return mlo_error_nomem(err);
    json_array_foreach(json_object_get(state, "arrived"), i, range)
    {
        int64_t first = json_integer_value(json_array_get(range, 0)),
                last = json_integer_value(json_array_get(range, 1));
        for (int64_t n = MLO_MAX(first, 1); n <= last && n <= p->count; n++)
            if (!p->arrived[n]) {
                p->arrived[n] = *some = true;
                p->arrived_bytes += size_of(p, (int)n);
            }
    }
    return MLO_OK;
}

static void show(const struct parts *p)
{
    double now = (double)p->arrived_bytes;
    char done[32], all[32], text[128];
    for (size_t i = 0; i < PARALLEL; i++)
        if (p->slots[i].curl)
            now += (double)(p->slots[i].size - p->slots[i].sending.left);
    snprintf(text, sizeof text, "%s of %s to the bucket", mlo_str_size((uint64_t)now, done),
             mlo_str_size(p->size, all));
    mlo_cli_progress(p->progress, now / (double)p->size, text);
}

static enum mlo_status md5_of(const struct parts *p, int number, char out[32], struct mlo_error *err)
{
    uint64_t at = (uint64_t)(number - 1) * p->part_size, left = size_of(p, number);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    char *piece = malloc(MD5_PIECE);
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    bool ok = md && piece && EVP_DigestInit_ex(md, EVP_md5(), NULL) == 1;
    enum mlo_status status = ok ? MLO_OK : mlo_error_nomem(err);
    while (status == MLO_OK && left) {
        ssize_t got = pread(p->fd, piece, MLO_MIN(left, (uint64_t)MD5_PIECE), (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = mlo_error_errno(err, errno, "cannot read the file");
        else if (got == 0)
            status = mlo_error_set(err, MLO_EIO, "the file became shorter while it was sent");
        else if (EVP_DigestUpdate(md, piece, (size_t)got) != 1)
            status = mlo_error_nomem(err);
        else
            at += (uint64_t)got, left -= (uint64_t)got;
    }
    if (status == MLO_OK && EVP_DigestFinal_ex(md, sum, &n) == 1)
        EVP_EncodeBlock((unsigned char *)out, sum, (int)n);
    EVP_MD_CTX_free(md);
    free(piece);
    return status;
}

static size_t ignore(char *bytes, size_t one, size_t n, void *arg)
{
    MLO_UNUSED(bytes);
    MLO_UNUSED(arg);
    return one * n;
}

/* A connection that was kept and is gone: curl sends the part again from its start. */
static int rewind_part(void *arg, curl_off_t offset, int origin)
{
    struct slot *slot = arg;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > slot->size)
        return CURL_SEEKFUNC_FAIL;
    slot->sending.at = slot->first + (uint64_t)offset;
    slot->sending.left = slot->size - (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static void end_slot(struct parts *p, struct slot *slot)
{
    if (!slot->curl)
        return;
    curl_multi_remove_handle(p->multi, slot->curl);
    curl_easy_cleanup(slot->curl);
    curl_slist_free_all(slot->headers);
    memset(slot, 0, sizeof *slot);
    p->busy--;
}

/* As the server says, who has signed them. */
static enum mlo_status add_headers(struct slot *slot, const json_t *headers, struct mlo_error *err)
{
    struct mlo_buf line = MLO_BUF_INIT;
    json_t *value;
    const char *name;
    bool ok = mlo_add_header(&slot->headers, "Expect:");
    json_object_foreach((json_t *)headers, name, value)
    {
        mlo_buf_reset(&line);
        mlo_buf_printf(&line, "%s: %s", name, json_is_string(value) ? json_string_value(value) : "");
        if (strpbrk(mlo_buf_str(&line), "\r\n")) {
            mlo_buf_clear(&line);
            return mlo_error_set(err, MLO_EFORMAT, "the server wants a header of several lines");
        }
        ok = ok && mlo_buf_ok(&line) && mlo_add_header(&slot->headers, mlo_buf_str(&line));
    }
    mlo_buf_clear(&line);
    return ok ? MLO_OK : mlo_error_nomem(err);
}

/* Sends one part to the address that the server gave. */
static enum mlo_status begin_part(struct parts *p, struct slot *slot, const json_t *item, int number,
                                  struct mlo_error *err)
{
    const char *url = mlo_json_str(item, "url", "");
    char host[128];
    if (!mlo_client_may_go(p->client, url, host, p->why))
        return mlo_error_set(err, MLO_EUNAVAILABLE, "%s", p->why);
    slot->curl = curl_easy_init();
    if (!slot->curl)
        return mlo_error_nomem(err);
    p->busy++;
    slot->number = number;
    slot->first = (uint64_t)(number - 1) * p->part_size;
    slot->size = size_of(p, number);
    slot->sending = (struct mlo_sending){p->fd, slot->first, slot->size};
    enum mlo_status status = add_headers(slot, json_object_get(item, "headers"), err);
    if (status != MLO_OK) {
        end_slot(p, slot);
        return status;
    }
    curl_easy_setopt(slot->curl, CURLOPT_URL, url);
    curl_easy_setopt(slot->curl, CURLOPT_PRIVATE, slot);
    curl_easy_setopt(slot->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(slot->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(slot->curl, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    curl_easy_setopt(slot->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(slot->curl, CURLOPT_LOW_SPEED_TIME, 120L);
    curl_easy_setopt(slot->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(slot->curl, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
    curl_easy_setopt(slot->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)slot->size);
    curl_easy_setopt(slot->curl, CURLOPT_READFUNCTION, mlo_sending_read);
    curl_easy_setopt(slot->curl, CURLOPT_READDATA, &slot->sending);
    curl_easy_setopt(slot->curl, CURLOPT_SEEKFUNCTION, rewind_part);
    curl_easy_setopt(slot->curl, CURLOPT_SEEKDATA, slot);
    curl_easy_setopt(slot->curl, CURLOPT_WRITEFUNCTION, ignore);
    curl_easy_setopt(slot->curl, CURLOPT_HTTPHEADER, slot->headers);
    mlo_client_reach(p->client, slot->curl, url);
    if (curl_multi_add_handle(p->multi, slot->curl) != CURLM_OK) {
        end_slot(p, slot);
        return mlo_error_nomem(err);
    }
    p->arrived[number] = true;
    return MLO_OK;
}

/* Asks for an address for the part and begins to send it. */
static enum mlo_status next_part(struct parts *p, struct slot *slot, int number, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response response = {0};
    json_t *part = json_pack("{s:i}", "number", number), *body = NULL;
    char md5[32];
    enum mlo_status status = MLO_OK;
    if (!p->whole) {
        MLO_TRY(md5_of(p, number, md5, err));
        json_object_set_new(part, "md5", json_string(md5));
    }
    body = json_pack("{s:[O]}", "parts", part);
    mlo_buf_printf(&path, "%s/parts", p->session);
    if (!body || !mlo_buf_ok(&path)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_client_call(p->client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    MLO_TRY(begin_part(p, slot, json_array_get(json_object_get(response.json, "items"), 0), number, err));
out:
    json_decref(part);
    json_decref(body);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    return status;
}

static void end_part(struct parts *p, struct slot *slot, CURLcode code, bool *some)
{
    long http = 0;
    char *url = NULL, host[128] = "", ignored[256];
    curl_easy_getinfo(slot->curl, CURLINFO_RESPONSE_CODE, &http);
    curl_easy_getinfo(slot->curl, CURLINFO_EFFECTIVE_URL, &url);
    if (code == CURLE_OK && http == 200) {
        p->arrived_bytes += slot->size;
        p->failures = 0;
        *some = true;
    } else {
        if (url)
            (void)!mlo_client_may_go(p->client, url, host, ignored);
        if (code == CURLE_OK)
            snprintf(p->why, sizeof p->why, "%s answered %ld to part %d", host, http, slot->number);
        else
            snprintf(p->why, sizeof p->why, "%s: %s", host, curl_easy_strerror(code));
        p->arrived[slot->number] = false; /* once more, by a new address */
        p->failures++;
    }
    end_slot(p, slot);
}

/* Fills the free slots with the next parts that are missing. */
static enum mlo_status fill(struct parts *p, int *from, struct mlo_error *err)
{
    for (size_t i = 0; i < PARALLEL; i++) {
        if (p->slots[i].curl)
            continue;
        while (*from <= p->count && p->arrived[*from])
            ++*from;
        if (*from > p->count)
            return MLO_OK;
        enum mlo_status status = next_part(p, &p->slots[i], *from, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

static enum mlo_status drive(struct parts *p, bool *some, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int from = 1;;) {
        int running, left;
        CURLMsg *message;
        MLO_TRY(fill(p, &from, err));
        if (!p->busy)
            break;
        /* what has ended is looked at before anything is waited for */
        if (curl_multi_perform(p->multi, &running) != CURLM_OK ||
            (running == p->busy && curl_multi_poll(p->multi, NULL, 0, 200, NULL) != CURLM_OK)) {
            status = mlo_error_set(err, MLO_EUNAVAILABLE, "libcurl cannot go on");
            goto out;
        }
        int failures = p->failures;
        while ((message = curl_multi_info_read(p->multi, &left)))
            if (message->msg == CURLMSG_DONE) {
                char *slot = NULL;
                curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &slot);
                end_part(p, (struct slot *)(void *)slot, message->data.result, some);
            }
        show(p);
        if (p->failures >= (p->whole ? FAILURES_WHOLE : FAILURES)) {
            status = mlo_error_set(err, MLO_EUNAVAILABLE, "%s", p->why);
            goto out;
        }
        if (p->failures > failures) {
            from = 1;
            mlo_clock_sleep_ms(50u << p->failures);
        }
    }
out:
    return status;
}

enum mlo_status mlo_client_send_parts(struct mlo_client *client, const char *session, const json_t *state,
                                      int fd, struct mlo_cli_progress *progress, bool *some,
                                      struct mlo_error *err)
{
    struct parts p = {.client = client, .session = session, .fd = fd, .progress = progress};
    enum mlo_status status;
    p.multi = curl_multi_init();
    if (!p.multi) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(read_state(&p, state, some, err));
    MLO_TRY(drive(&p, some, err));
out:
    for (size_t i = 0; i < PARALLEL; i++)
        end_slot(&p, &p.slots[i]);
    if (p.multi)
        curl_multi_cleanup(p.multi);
    free(p.arrived);
    return status;
}
