/* What somebody does with a presigned address: PUT, without keys or a token. */
#ifndef MLO_TESTS_S3_PUT_H
#define MLO_TESTS_S3_PUT_H

#include <curl/curl.h>
#include <string.h>

#include "base/base.h"
#include "tests/reply.h"

struct source {
    const char *bytes;
    size_t left;
};

static inline size_t from_source(char *to, size_t one, size_t count, void *arg)
{
    struct source *s = arg;
    size_t n = MLO_MIN(one * count, s->left);
    memcpy(to, s->bytes, n);
    s->bytes += n;
    s->left -= n;
    return n;
}

/* `headers` end with NULL. The status, 0: there was no answer. */
static inline long put(const char *url, const char *bytes, size_t size, const char *const *headers)
{
    struct source source = {bytes, size};
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    struct mlo_buf ignored = MLO_BUF_INIT;
    CURL *curl = curl_easy_init();
    long http = 0;
    while (*headers)
        list = curl_slist_append(list, *headers++);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)REPLY_PATIENCE_S);
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)size);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, from_source);
    curl_easy_setopt(curl, CURLOPT_READDATA, &source);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &ignored);
    (void)!curl_easy_perform(curl); /* a refusal may come while it is sent */
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    curl_slist_free_all(list);
    curl_easy_cleanup(curl);
    mlo_buf_clear(&ignored);
    return http;
}

#endif
