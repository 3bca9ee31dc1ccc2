/* Walks over the bucket: objects (ListObjectsV2) and uploads that go on (ListMultipartUploads), page by page.
 */
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

enum { TEXT_MAX = 1100 }; /* a key has at most 1,024 bytes */

struct walk {
    const char *element; /* "Contents" or "Upload" */
    char key[TEXT_MAX], upload[TEXT_MAX], modified[MLO_S3_MODIFIED_SIZE];
    uint64_t size_bytes;
    bool truncated;
    char *next_key, *next_upload; /* where the next page begins */
    mlo_s3_entry_fn *fn;
    void *arg;
};

static enum mlo_status keep(char **to, const char *text, struct mlo_error *err)
{
    free(*to);
    *to = strdup(text);
    return *to ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status on_entry(void *arg, const char *parent, const char *name, const char *text,
                                struct mlo_error *err)
{
    struct walk *w = arg;
    int64_t number;
    if (!text || strcmp(parent, w->element) != 0) {
        if (strcmp(name, w->element) == 0) {
            const struct mlo_s3_entry entry = {w->key, *w->upload ? w->upload : NULL, w->modified,
                                               w->size_bytes};
            enum mlo_status status = *w->key ? w->fn(w->arg, &entry, err) : MLO_OK;
            *w->key = *w->upload = *w->modified = '\0';
            w->size_bytes = 0;
            return status;
        }
        if (text && strcmp(name, "IsTruncated") == 0)
            w->truncated = strcmp(text, "true") == 0;
        else if (text && (strcmp(name, "NextContinuationToken") == 0 || strcmp(name, "NextKeyMarker") == 0))
            return keep(&w->next_key, text, err);
        else if (text && strcmp(name, "NextUploadIdMarker") == 0)
            return keep(&w->next_upload, text, err);
        return MLO_OK;
    }
    if (strlen(text) >= TEXT_MAX)
        return mlo_error_set(err, MLO_EFORMAT, "the S3 server lists a key of more than 1,024 bytes");
    if (strcmp(name, "Key") == 0)
        snprintf(w->key, sizeof w->key, "%s", text);
    else if (strcmp(name, "UploadId") == 0)
        snprintf(w->upload, sizeof w->upload, "%s", text);
    else if (strcmp(name, "LastModified") == 0 || strcmp(name, "Initiated") == 0)
        snprintf(w->modified, sizeof w->modified, "%.*s", (int)sizeof w->modified - 1, text);
    else if (strcmp(name, "Size") == 0 && mlo_str_to_i64(text, &number) && number >= 0)
        w->size_bytes = (uint64_t)number;
    return MLO_OK;
}

static enum mlo_status walk(struct mlo_s3 *s3, struct walk *w, bool uploads, const char *prefix,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *key = NULL, *upload = NULL;
    do {
        struct mlo_s3_call call = {.method = "GET"};
        free(key);
        free(upload);
        key = w->next_key;
        upload = w->next_upload;
        w->next_key = w->next_upload = NULL;
        w->truncated = false;
        if (uploads)
            mlo_s3_call_query(&call, "uploads", "");
        else
            mlo_s3_call_query(&call, "list-type", "2");
        mlo_s3_call_query(&call, "prefix", prefix);
        if (key)
            mlo_s3_call_query(&call, uploads ? "key-marker" : "continuation-token", key);
        if (upload)
            mlo_s3_call_query(&call, "upload-id-marker", upload);
        status = mlo_s3_perform(s3, &call, err);
        if (status == MLO_OK)
            status = mlo_s3_xml(&call.answer, on_entry, w, err);
        mlo_s3_call_clear(&call);
        if (status == MLO_OK && w->truncated &&
            (!w->next_key || (key && strcmp(key, w->next_key) == 0 && mlo_str_eq(upload, w->next_upload))))
            status = mlo_error_set(err, MLO_EFORMAT, "the S3 server's list does not go on where it says");
    } while (status == MLO_OK && w->truncated);
    free(key);
    free(upload);
    free(w->next_key);
    free(w->next_upload);
    return status;
}

enum mlo_status mlo_s3_list(struct mlo_s3 *s3, const char *prefix, mlo_s3_entry_fn *fn, void *arg,
                            struct mlo_error *err)
{
    struct walk w = {.element = "Contents", .fn = fn, .arg = arg};
    return walk(s3, &w, false, prefix, err);
}

enum mlo_status mlo_s3_list_uploads(struct mlo_s3 *s3, const char *prefix, mlo_s3_entry_fn *fn, void *arg,
                                    struct mlo_error *err)
{
    struct walk w = {.element = "Upload", .fn = fn, .arg = arg};
    return walk(s3, &w, true, prefix, err);
}

enum mlo_status mlo_s3_ping(struct mlo_s3 *s3, const char *prefix, uint32_t budget_ms, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "GET", .budget_ms = budget_ms};
    bool retry;
    mlo_s3_call_query(&call, "list-type", "2");
    mlo_s3_call_query(&call, "max-keys", "1");
    mlo_s3_call_query(&call, "prefix", prefix);
    enum mlo_status status = mlo_s3_attempt(s3, &call, false, &retry, err);
    mlo_s3_call_clear(&call);
    return status;
}
