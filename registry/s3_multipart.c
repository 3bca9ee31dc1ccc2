/* Multipart uploads. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

enum { LIST_PAGES_MAX = 64 };

/* The text of one element, wherever it is. */
struct wanted {
    const char *name;
    char *to;
    size_t size;
    bool found, refused;
};

static enum mlo_status on_wanted(void *arg, const char *parent, const char *name, const char *text,
                                 struct mlo_error *err)
{
    struct wanted *w = arg;
    MLO_UNUSED(err);
    w->refused = w->refused || strcmp(parent, "Error") == 0;
    if (text && strcmp(name, w->name) == 0 && strlen(text) < w->size) {
        snprintf(w->to, w->size, "%s", text);
        w->found = true;
    }
    return MLO_OK;
}

/* One attempt at a call whose good answer may still hold an error (S3 begins to answer before it is done). */
static enum mlo_status attempt_slowly(struct mlo_s3 *s3, struct mlo_s3_call *call, struct wanted *w,
                                      bool fresh, bool *retry, struct mlo_error *err)
{
    call->stall_ms = MLO_S3_SLOW_STALL_MS;
    w->found = w->refused = false;
    enum mlo_status status = mlo_s3_attempt(s3, call, fresh, retry, err);
    if (status != MLO_OK || (status = mlo_s3_xml(&call->answer, on_wanted, w, err)) != MLO_OK)
        return status;
    if (w->refused)
        return mlo_s3_refused(s3, call, retry, err);
    return w->found ? MLO_OK : mlo_error_set(err, MLO_EFORMAT, "the S3 server's answer has no %s", w->name);
}

enum mlo_status mlo_s3_perform_slowly(struct mlo_s3 *s3, struct mlo_s3_call *call, const char *name,
                                      char *text, size_t size, struct mlo_error *err)
{
    struct wanted w = {name, text, size};
    for (uint32_t n = 1;; n++) {
        bool retry;
        enum mlo_status status = attempt_slowly(s3, call, &w, n > 1, &retry, err);
        if (status == MLO_OK || !retry || n == s3->attempts)
            return status;
        mlo_s3_backoff(n);
    }
}

enum mlo_status mlo_s3_multipart_create(struct mlo_s3 *s3, const char *key, char **upload,
                                        struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "POST", .key = key, .crypt = MLO_S3_CRYPT_WRITE};
    char id[1024];
    struct wanted w = {"UploadId", id, sizeof id};
    enum mlo_status status;
    *upload = NULL;
    mlo_s3_call_query(&call, "uploads", "");
    MLO_TRY(mlo_s3_perform(s3, &call, err));
    MLO_TRY(mlo_s3_xml(&call.answer, on_wanted, &w, err));
    if (!w.found || !*id)
        status = mlo_error_set(err, MLO_EFORMAT, "the S3 server began an upload and does not name it");
    else if (!(*upload = strdup(id)))
        status = mlo_error_nomem(err);
out:
    mlo_s3_call_clear(&call);
    return status;
}

enum mlo_status mlo_s3_multipart_put(struct mlo_s3 *s3, const char *key, const char *upload, int number,
                                     const void *bytes, size_t size, struct mlo_s3_part *part,
                                     struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "PUT",
                               .key = key,
                               .crypt = MLO_S3_CRYPT_USE,
                               .body = bytes,
                               .body_size = size,
                               .unsigned_body = s3->unsigned_parts};
    char digits[12];
    enum mlo_status status;
    snprintf(digits, sizeof digits, "%d", number);
    mlo_s3_call_query(&call, "partNumber", digits);
    mlo_s3_call_query(&call, "uploadId", upload);
    MLO_TRY(mlo_s3_perform(s3, &call, err));
    if (!*call.object.etag) {
        status = mlo_error_set(err, MLO_EFORMAT, "the S3 server took a part and gave no ETag");
        goto out;
    }
    part->number = number;
    part->size_bytes = size;
    snprintf(part->etag, sizeof part->etag, "%s", call.object.etag);
out:
    mlo_s3_call_clear(&call);
    return status;
}

enum mlo_status mlo_s3_multipart_abort(struct mlo_s3 *s3, const char *key, const char *upload,
                                       struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "DELETE", .key = key};
    mlo_s3_call_query(&call, "uploadId", upload);
    enum mlo_status status = mlo_s3_perform(s3, &call, err);
    if (status == MLO_ENOTFOUND)
        status = MLO_OK;
    mlo_s3_call_clear(&call);
    return status;
}

/* --- complete ----------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The MD5 in "\"<32 hex digits>\"". */
static bool etag_bytes(const char *etag, uint8_t out[16])
{
    if (strlen(etag) != 34)
        return false;
    for (size_t i = 0; i < 16; i++) {
        int high = hex_digit(etag[1 + 2 * i]), low = hex_digit(etag[2 + 2 * i]);
        if (high < 0 || low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* What S3 (and Ceph) make of the parts' ETags: the MD5 of their MD5s, and how many. False where they are
 * none. */
static bool joined_etag(const struct mlo_s3_part *parts, size_t count, char out[MLO_S3_ETAG_SIZE])
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint8_t bytes[EVP_MAX_MD_SIZE];
    char hex[2 * EVP_MAX_MD_SIZE + 1];
    unsigned n = 0;
    bool ok = md && EVP_DigestInit_ex(md, EVP_md5(), NULL) == 1;
    for (size_t i = 0; ok && i < count; i++)
        ok = etag_bytes(parts[i].etag, bytes) && EVP_DigestUpdate(md, bytes, 16) == 1;
    ok = ok && EVP_DigestFinal_ex(md, bytes, &n) == 1;
    EVP_MD_CTX_free(md);
    if (ok) {
        mlo_hex(bytes, n, hex);
        snprintf(out, MLO_S3_ETAG_SIZE, "\"%.32s-%zu\"", hex, count);
    }
    return ok;
}

/* Is the object what the parts make? `strict`: an ETag of another kind than theirs says no, not nothing. */
static enum mlo_status compare_made(struct mlo_s3 *s3, const struct mlo_s3_call *call,
                                    const struct mlo_s3_part *parts, size_t count, bool strict,
                                    struct mlo_error *err)
{
    char etag[MLO_S3_ETAG_SIZE];
    uint64_t size = 0;
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < count; i++)
        size += parts[i].size_bytes;
    bool plain = !call->encrypted && !s3->customer_key && joined_etag(parts, count, etag);
    if (!call->has_length || call->object.size_bytes != size)
        status = mlo_error_set(err, MLO_EDIGEST, "S3 made an object of %llu bytes of parts that have %llu",
                               (unsigned long long)call->object.size_bytes, (unsigned long long)size);
    else if (plain && (strict || strchr(call->object.etag, '-')) && strcmp(call->object.etag, etag) != 0)
        status = mlo_error_set(err, MLO_EDIGEST, "S3 made the object %s of parts that make %s",
                               call->object.etag, etag);
    if (status != MLO_OK) {
        mlo_error_where(err, "s3://%s/%s", s3->bucket, call->key);
        mlo_error_hint(err, "another upload to the same key may have come between: try again");
    }
    return status;
}

/* Asks for it; `once`: whoever asks comes again by himself. */
static enum mlo_status check_made(struct mlo_s3 *s3, const char *key, const struct mlo_s3_part *parts,
                                  size_t count, bool strict, bool once, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "HEAD", .key = key, .crypt = MLO_S3_CRYPT_USE};
    bool retry;
    enum mlo_status status =
        once ? mlo_s3_attempt(s3, &call, false, &retry, err) : mlo_s3_perform(s3, &call, err);
    if (status == MLO_OK)
        status = compare_made(s3, &call, parts, count, strict, err);
    mlo_s3_call_clear(&call);
    return status;
}

static void write_parts(struct mlo_buf *body, const struct mlo_s3_part *parts, size_t count)
{
    mlo_buf_puts(body, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (size_t i = 0; i < count; i++) {
        mlo_buf_printf(body, "<Part><PartNumber>%d</PartNumber><ETag>", parts[i].number);
        mlo_s3_xml_escape(body, parts[i].etag);
        mlo_buf_puts(body, "</ETag></Part>");
    }
    mlo_buf_puts(body, "</CompleteMultipartUpload>");
}

/* An earlier attempt, whose answer was lost, may have done it. Amazon says then that there is no such upload,
 * Ceph sometimes that it is being completed; and what Ceph was killed in the middle of it does again when its
 * lock is over, ten minutes later, and frees the parts that the object is made of. So nothing is completed
 * again before the object was looked for, not by libcurl either, which sends again what a kept connection
 * broke at. */
enum mlo_status mlo_s3_multipart_complete(struct mlo_s3 *s3, const char *key, const char *upload,
                                          const struct mlo_s3_part *parts, size_t count, bool *refused,
                                          struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "POST", .key = key, .crypt = MLO_S3_CRYPT_USE};
    struct mlo_buf body = MLO_BUF_INIT;
    char etag[MLO_S3_ETAG_SIZE];
    struct wanted w = {"ETag", etag, sizeof etag};
    enum mlo_status status = MLO_OK, looked = MLO_ENOTFOUND;
    bool retry = false, no = false;
    write_parts(&body, parts, count);
    if (!mlo_buf_ok(&body)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    call.body = mlo_buf_str(&body);
    call.body_size = body.len;
    mlo_s3_call_query(&call, "uploadId", upload);
    for (uint32_t n = 1;; n++) {
        struct mlo_error seen = {0};
        if (looked == MLO_ENOTFOUND || looked == MLO_EDIGEST)
            status = attempt_slowly(s3, &call, &w, true, &retry, err);
        if (status == MLO_OK) {
            MLO_TRY(check_made(s3, key, parts, count, false, false, err));
            goto out;
        }
        no = n == 1 && !retry && status != MLO_EFORMAT && (w.refused || call.http >= 300);
        if (no && status != MLO_ENOTFOUND)
            goto out;
        bool last = !retry || n == s3->attempts;
        if (!last)
            mlo_s3_backoff(n);
        looked = check_made(s3, key, parts, count, true, !last, &seen);
        if (looked == MLO_OK)
            status = MLO_OK;
        if (looked == MLO_OK || last) {
            if (status == MLO_ENOTFOUND && looked != MLO_ENOTFOUND && looked != MLO_EDIGEST) {
                if (err)
                    *err = seen;
                status = looked; /* nobody knows */
                no = false;
            }
            goto out;
        }
    }
out:
    if (refused)
        *refused = no;
    mlo_s3_call_clear(&call);
    mlo_buf_clear(&body);
    return status;
}

/* --- the parts that are there -------------------------------------------------------------------- */

struct listing {
    struct mlo_s3_part *parts, now;
    size_t count, cap;
    bool truncated;
    char next[16];
    char newest[MLO_S3_MODIFIED_SIZE];
};

static enum mlo_status on_part(void *arg, const char *parent, const char *name, const char *text,
                               struct mlo_error *err)
{
    struct listing *l = arg;
    int64_t number;
    if (text && strcmp(parent, "Part") == 0) {
        if (strcmp(name, "PartNumber") == 0 && mlo_str_to_i64(text, &number) && number > 0 &&
            number <= MLO_S3_PARTS_MAX)
            l->now.number = (int)number;
        else if (strcmp(name, "Size") == 0 && mlo_str_to_i64(text, &number) && number >= 0)
            l->now.size_bytes = (uint64_t)number;
        else if (strcmp(name, "LastModified") == 0 && strcmp(text, l->newest) > 0)
            snprintf(l->newest, sizeof l->newest, "%s", text);
        else if (strcmp(name, "ETag") == 0)
            /* with quotes, as in headers: Ceph leaves them out here */
            snprintf(l->now.etag, sizeof l->now.etag, *text == '"' ? "%.78s" : "\"%.76s\"", text);
    } else if (text && strcmp(parent, "ListPartsResult") == 0) {
        if (strcmp(name, "IsTruncated") == 0)
            l->truncated = strcmp(text, "true") == 0;
        else if (strcmp(name, "NextPartNumberMarker") == 0)
            snprintf(l->next, sizeof l->next, "%s", text);
    }
    if (strcmp(name, "Part") != 0)
        return MLO_OK;
    int after = l->count ? l->parts[l->count - 1].number : 0;
    if (l->now.number <= after || !*l->now.etag)
        return mlo_error_set(err, MLO_EFORMAT,
                             "the S3 server lists parts out of order, or without their ETag");
    if (l->count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct mlo_s3_part *more = realloc(l->parts, cap * sizeof *more);
        if (!more)
            return mlo_error_nomem(err);
        l->parts = more;
        l->cap = cap;
    }
    l->parts[l->count++] = l->now;
    memset(&l->now, 0, sizeof l->now);
    return MLO_OK;
}

/* l->parts is the caller's (free), whatever comes back. */
static enum mlo_status list_parts(struct mlo_s3 *s3, const char *key, const char *upload, struct listing *l,
                                  struct mlo_error *err)
{
    for (int page = 0; page == 0 || (l->truncated && *l->next); page++) {
        struct mlo_s3_call call = {.method = "GET", .key = key};
        char marker[sizeof l->next];
        if (page == LIST_PAGES_MAX)
            return mlo_error_set(err, MLO_EFORMAT, "the S3 server's list of parts does not end");
        memcpy(marker, l->next, sizeof marker);
        mlo_s3_call_query(&call, "uploadId", upload);
        if (*marker)
            mlo_s3_call_query(&call, "part-number-marker", marker);
        l->truncated = false;
        *l->next = '\0';
        enum mlo_status status = mlo_s3_perform(s3, &call, err);
        if (status == MLO_OK)
            status = mlo_s3_xml(&call.answer, on_part, l, err);
        mlo_s3_call_clear(&call);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

enum mlo_status mlo_s3_multipart_parts(struct mlo_s3 *s3, const char *key, const char *upload,
                                       struct mlo_s3_part **parts, size_t *count, struct mlo_error *err)
{
    struct listing l = {0};
    enum mlo_status status = list_parts(s3, key, upload, &l, err);
    *parts = status == MLO_OK ? l.parts : NULL;
    *count = status == MLO_OK ? l.count : 0;
    if (status != MLO_OK)
        free(l.parts);
    return status;
}

enum mlo_status mlo_s3_multipart_look(struct mlo_s3 *s3, const char *key, const char *upload, bool *made,
                                      char newest[MLO_S3_MODIFIED_SIZE], struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "HEAD", .key = key, .crypt = MLO_S3_CRYPT_USE};
    struct listing l = {0};
    struct mlo_error seen = {0};
    enum mlo_status status;
    *made = false;
    *newest = '\0';
    MLO_TRY(list_parts(s3, key, upload, &l, err));
    memcpy(newest, l.newest, sizeof l.newest);
    enum mlo_status there = mlo_s3_perform(s3, &call, &seen);
    if (there == MLO_OK)
        there = compare_made(s3, &call, l.parts, l.count, true, &seen);
    /* Also where HEAD says nothing of it: what is not known is left. */
    *made = l.count && there != MLO_ENOTFOUND && (there != MLO_EDIGEST || !call.has_length);
out:
    mlo_s3_call_clear(&call);
    free(l.parts);
    return status;
}
