/* Multipart uploads, and copies on the server. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

enum { LIST_PAGES_MAX = 64 };
#define COPY_PART_BYTES (1ull << 30)

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

/* A call whose good answer may still hold an error (S3 begins to answer before it is done). */
static enum mlo_status perform_slowly(struct mlo_s3 *s3, struct mlo_s3_call *call, struct wanted *w,
                                      struct mlo_error *err)
{
    call->stall_ms = MLO_S3_SLOW_STALL_MS;
    for (uint32_t n = 1;; n++) {
        bool retry;
        enum mlo_status status = mlo_s3_attempt(s3, call, n > 1, &retry, err);
        w->found = w->refused = false;
        if (status == MLO_OK) {
            status = mlo_s3_xml(&call->answer, on_wanted, w, err);
            if (status == MLO_OK && w->refused)
                status = mlo_s3_refused(s3, call, &retry, err);
            else if (status == MLO_OK && !w->found)
                status = mlo_error_set(err, MLO_EFORMAT, "the S3 server's answer has no %s", w->name);
        }
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

/* Is the object what the parts make? */
static enum mlo_status check_made(struct mlo_s3 *s3, const char *key, const struct mlo_s3_part *parts,
                                  size_t count, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "HEAD", .key = key, .crypt = MLO_S3_CRYPT_USE};
    char etag[MLO_S3_ETAG_SIZE];
    uint64_t size = 0;
    enum mlo_status status;
    for (size_t i = 0; i < count; i++)
        size += parts[i].size_bytes;
    MLO_TRY(mlo_s3_perform(s3, &call, err));
    bool plain = !call.encrypted && !s3->customer_key && joined_etag(parts, count, etag);
    if (!call.has_length || call.object.size_bytes != size)
        status = mlo_error_set(err, MLO_EDIGEST, "S3 made an object of %llu bytes of parts that have %llu",
                               (unsigned long long)call.object.size_bytes, (unsigned long long)size);
    else if (plain && strchr(call.object.etag, '-') && strcmp(call.object.etag, etag) != 0)
        status = mlo_error_set(err, MLO_EDIGEST, "S3 made the object %s of parts that make %s",
                               call.object.etag, etag);
    if (status != MLO_OK) {
        mlo_error_where(err, "s3://%s/%s", s3->bucket, key);
        mlo_error_hint(err, "another upload to the same key may have come between: try again");
    }
out:
    mlo_s3_call_clear(&call);
    return status;
}

enum mlo_status mlo_s3_multipart_complete(struct mlo_s3 *s3, const char *key, const char *upload,
                                          const struct mlo_s3_part *parts, size_t count,
                                          struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "POST", .key = key, .crypt = MLO_S3_CRYPT_USE};
    struct mlo_buf body = MLO_BUF_INIT;
    char etag[MLO_S3_ETAG_SIZE];
    struct wanted w = {"ETag", etag, sizeof etag};
    enum mlo_status status;
    mlo_buf_puts(&body, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (size_t i = 0; i < count; i++) {
        mlo_buf_printf(&body, "<Part><PartNumber>%d</PartNumber><ETag>", parts[i].number);
        mlo_s3_xml_escape(&body, parts[i].etag);
        mlo_buf_puts(&body, "</ETag></Part>");
    }
    mlo_buf_puts(&body, "</CompleteMultipartUpload>");
    if (!mlo_buf_ok(&body)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    call.body = mlo_buf_str(&body);
    call.body_size = body.len;
    mlo_s3_call_query(&call, "uploadId", upload);
    status = perform_slowly(s3, &call, &w, err);
    if (status == MLO_OK) {
        MLO_TRY(check_made(s3, key, parts, count, err));
    } else if (status == MLO_ENOTFOUND || mlo_status_info(status)->retry) {
        /* An earlier request, whose answer was lost, may have done it. Amazon says then that there is no such
         * upload, Ceph sometimes that it is being completed. */
        struct mlo_error ignored = {0};
        if (check_made(s3, key, parts, count, &ignored) == MLO_OK)
            status = MLO_OK;
    }
out:
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

enum mlo_status mlo_s3_multipart_parts(struct mlo_s3 *s3, const char *key, const char *upload,
                                       struct mlo_s3_part **parts, size_t *count, struct mlo_error *err)
{
    struct listing l = {0};
    enum mlo_status status = MLO_OK;
    *parts = NULL;
    *count = 0;
    for (int page = 0; page == 0 || (l.truncated && *l.next); page++) {
        struct mlo_s3_call call = {.method = "GET", .key = key};
        char marker[16];
        if (page == LIST_PAGES_MAX) {
            status = mlo_error_set(err, MLO_EFORMAT, "the S3 server's list of parts does not end");
            goto out;
        }
        memcpy(marker, l.next, sizeof marker);
        mlo_s3_call_query(&call, "uploadId", upload);
        if (*marker)
            mlo_s3_call_query(&call, "part-number-marker", marker);
        l.truncated = false;
        *l.next = '\0';
        status = mlo_s3_perform(s3, &call, err);
        if (status == MLO_OK)
            status = mlo_s3_xml(&call.answer, on_part, &l, err);
        mlo_s3_call_clear(&call);
        if (status != MLO_OK)
            goto out;
    }
    *parts = l.parts;
    *count = l.count;
    l.parts = NULL;
out:
    free(l.parts);
    return status;
}

/* --- copies on the server ------------------------------------------------------------------------ */

static enum mlo_status copy_parts(struct mlo_s3 *s3, const char *source, const struct mlo_s3_object *object,
                                  bool conditional, const char *to, struct mlo_error *err)
{
    size_t count = (size_t)((object->size_bytes + COPY_PART_BYTES - 1) / COPY_PART_BYTES);
    struct mlo_s3_part *parts = calloc(count, sizeof *parts);
    char *upload = NULL;
    enum mlo_status status = parts ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = mlo_s3_multipart_create(s3, to, &upload, err);
    for (size_t i = 0; status == MLO_OK && i < count; i++) {
        struct mlo_s3_call call = {.method = "PUT", .key = to, .crypt = MLO_S3_CRYPT_COPY};
        struct wanted w = {"ETag", parts[i].etag, sizeof parts[i].etag};
        uint64_t first = i * COPY_PART_BYTES, size = MLO_MIN(COPY_PART_BYTES, object->size_bytes - first);
        char digits[12], range[64];
        snprintf(digits, sizeof digits, "%zu", i + 1);
        snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)first,
                 (unsigned long long)(first + size - 1));
        mlo_s3_call_query(&call, "partNumber", digits);
        mlo_s3_call_query(&call, "uploadId", upload);
        mlo_s3_call_header(&call, "x-amz-copy-source", source);
        mlo_s3_call_header(&call, "x-amz-copy-source-range", range);
        if (conditional)
            mlo_s3_call_header(&call, "x-amz-copy-source-if-match", object->etag);
        parts[i].number = (int)i + 1;
        parts[i].size_bytes = size;
        status = perform_slowly(s3, &call, &w, err);
        mlo_s3_call_clear(&call);
    }
    if (status == MLO_OK)
        status = mlo_s3_multipart_complete(s3, to, upload, parts, count, err);
    if (status != MLO_OK && upload)
        (void)!mlo_s3_multipart_abort(s3, to, upload, NULL);
    free(upload);
    free(parts);
    return status;
}

static enum mlo_status copy(struct mlo_s3 *s3, const char *source, const struct mlo_s3_object *object,
                            bool conditional, const char *to, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "PUT", .key = to, .crypt = MLO_S3_CRYPT_COPY};
    struct mlo_s3_object made;
    char etag[MLO_S3_ETAG_SIZE];
    struct wanted w = {"ETag", etag, sizeof etag};
    enum mlo_status status;
    if (object->size_bytes > MLO_S3_OBJECT_MAX)
        return copy_parts(s3, source, object, conditional, to, err);
    mlo_s3_call_header(&call, "x-amz-copy-source", source);
    /* by none: who wrote the source may have sent some */
    mlo_s3_call_header(&call, "x-amz-metadata-directive", "REPLACE");
    if (conditional)
        mlo_s3_call_header(&call, "x-amz-copy-source-if-match", object->etag);
    MLO_TRY(perform_slowly(s3, &call, &w, err));
    MLO_TRY(mlo_s3_head(s3, to, &made, err));
    if (made.size_bytes != object->size_bytes)
        status = mlo_error_set(err, MLO_EDIGEST, "S3 made a copy of %llu bytes of an object of %llu",
                               (unsigned long long)made.size_bytes, (unsigned long long)object->size_bytes);
out:
    mlo_s3_call_clear(&call);
    return status;
}

static enum mlo_status check_same(struct mlo_s3 *s3, const char *key, const struct mlo_s3_object *object,
                                  struct mlo_error *err)
{
    struct mlo_s3_object now;
    enum mlo_status status = mlo_s3_head(s3, key, &now, err);
    if (status == MLO_OK && (now.size_bytes != object->size_bytes || strcmp(now.etag, object->etag) != 0)) {
        status = mlo_error_set(err, MLO_EPRECONDITION, "the object changed while it was copied");
        mlo_error_where(err, "s3://%s/%s", s3->bucket, key);
    }
    return status;
}

enum mlo_status mlo_s3_copy(struct mlo_s3 *s3, const char *from, const struct mlo_s3_object *object,
                            const char *to, struct mlo_error *err)
{
    struct mlo_buf source = MLO_BUF_INIT;
    struct mlo_error own = {0};
    enum mlo_status status;
    mlo_buf_printf(&source, "/%s/", s3->bucket);
    mlo_s3_encode(&source, from, true);
    if (!mlo_buf_ok(&source)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    status = copy(s3, mlo_buf_str(&source), object, true, to, &own);
    if (status == MLO_EPRECONDITION && strchr(object->etag, '-')) {
        /* Swift compares the condition with an ETag that it tells nobody when the object was made of parts:
         * it is asked before and after instead. */
        MLO_TRY(check_same(s3, from, object, err));
        MLO_TRY(copy(s3, mlo_buf_str(&source), object, false, to, err));
        MLO_TRY(check_same(s3, from, object, err));
    } else if (status != MLO_OK && err) {
        *err = own;
    }
out:
    mlo_buf_clear(&source);
    return status;
}
