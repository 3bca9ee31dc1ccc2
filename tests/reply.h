/* An answer of a server, and one request by libcurl that gets one. */
#ifndef MLO_TESTS_REPLY_H
#define MLO_TESTS_REPLY_H

#include <curl/curl.h>
#include <string.h>

#include "base/base.h"

enum { REPLY_PATIENCE_S = 120 }; /* for what comes at once where the machine has nothing else to do */

struct reply {
    long status; /* 0: no answer */
    bool closes; /* it says that its connection ends (wire_fixture.h) */
    int lost;    /* times that nothing, or "try again", came before, where a client tries again */
    struct mlo_buf headers, body;
    json_t *json; /* NULL when the body is none */
};

static inline void reply_clear(struct reply *reply)
{
    mlo_buf_clear(&reply->headers);
    mlo_buf_clear(&reply->body);
    json_decref(reply->json);
    *reply = (struct reply){0};
}

/* Of a body that is whole: `json`. */
static inline void reply_parse(struct reply *reply)
{
    if (mlo_buf_str(&reply->body)[0] == '{')
        reply->json = json_loads(mlo_buf_str(&reply->body), JSON_REJECT_DUPLICATES, NULL);
}

static inline size_t reply_take(char *bytes, size_t size, size_t count, void *arg)
{
    mlo_buf_append(arg, bytes, size * count);
    return size * count;
}

/* `token` (becomes Authorization), `body`, `headers` (NULL-terminated) and `ca`, the server's certificate,
 * may be NULL. Fills `reply` afresh. */
static inline CURLcode reply_fetch(struct reply *reply, const char *method, const char *url, const char *ca,
                                   const char *token, const char *body, const char *const *headers)
{
    char auth[128];
    struct curl_slist *list = NULL;
    CURL *curl = curl_easy_init();
    reply_clear(reply);
    curl_easy_setopt(curl, CURLOPT_CAINFO, ca);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)REPLY_PATIENCE_S);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &reply->body);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &reply->headers);
    if (strcmp(method, "HEAD") == 0)
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    else
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    if (token) {
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", token);
        list = curl_slist_append(list, auth);
    }
    for (; headers && *headers; headers++)
        list = curl_slist_append(list, *headers);
    if (body) {
        if (body[0] == '{')
            list = curl_slist_append(list, "Content-Type: application/json");
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
        curl_easy_setopt(curl, CURLOPT_COPYPOSTFIELDS, body);
        list = curl_slist_append(list, "Expect:");
    }
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    CURLcode code = curl_easy_perform(curl);
    if (code == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply->status);
    curl_slist_free_all(list);
    curl_easy_cleanup(curl);
    reply_parse(reply);
    return code;
}

#endif
