/* One attempt: signed, over libcurl, to an address that was checked when the connection was made. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/base64.h"
#include "registry/webhook_impl.h"

enum { ANSWER_MAX = 64 << 10, CONNECT_MS = 5000 };

/* --- the signature ------------------------------------------------------------------------------- */

enum mlo_status mlo_webhook_sign(const char *secret, const char *message, int64_t timestamp_s,
                                 const char *body, size_t size, struct mlo_buf *out, struct mlo_error *err)
{
    struct mlo_buf key = MLO_BUF_INIT, text = MLO_BUF_INIT;
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned mac_size = 0;
    enum mlo_status status = MLO_OK;
    if (!mlo_str_starts(secret, "whsec_") || !mlo_base64_decode(secret + 6, strlen(secret + 6), &key) ||
        key.len < 16) {
        status =
            mlo_error_set(err, MLO_EINVAL, "a webhook's secret is 'whsec_' and base64 of 24 to 64 bytes");
        goto out;
    }
    mlo_buf_printf(&text, "%s.%lld.", message, (long long)timestamp_s);
    mlo_buf_append(&text, body, size);
    if (!mlo_buf_ok(&text) || !HMAC(EVP_sha256(), key.data, (int)key.len, (const unsigned char *)text.data,
                                    text.len, mac, &mac_size)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_buf_puts(out, "v1,");
    mlo_base64_encode(mac, mac_size, out);
out:
    if (key.data)
        explicit_bzero(key.data, key.len);
    mlo_buf_clear(&key);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status add_headers(const struct mlo_webhook_post *post, struct curl_slist **headers,
                                   struct mlo_error *err)
{
    struct mlo_buf signature = MLO_BUF_INIT, line = MLO_BUF_INIT;
    int64_t now_s = mlo_clock_utc_us() / 1000000;
    json_t *secret;
    size_t i;
    enum mlo_status status = MLO_OK;
    mlo_buf_puts(&signature, "webhook-signature: ");
    json_array_foreach(post->secrets, i, secret)
    {
        if (i)
            mlo_buf_putc(&signature, ' ');
        MLO_TRY(mlo_webhook_sign(json_string_value(secret), post->message, now_s, post->body, post->size,
                                 &signature, err));
    }
    for (int n = 0; n < 4; n++) {
        struct curl_slist *more;
        mlo_buf_reset(&line);
        if (n == 0)
            mlo_buf_printf(&line, "webhook-id: %s", post->message);
        else if (n == 1)
            mlo_buf_printf(&line, "webhook-timestamp: %lld", (long long)now_s);
        else if (n == 2)
            mlo_buf_puts(&line, mlo_buf_str(&signature));
        else
            mlo_buf_puts(&line, "content-type: application/json");
        more = mlo_buf_ok(&line) && mlo_buf_ok(&signature) ? curl_slist_append(*headers, mlo_buf_str(&line))
                                                           : NULL;
        if (!more) {
            status = mlo_error_nomem(err);
            goto out;
        }
        *headers = more;
    }
out:
    mlo_buf_clear(&signature);
    mlo_buf_clear(&line);
    return status;
}

/* --- the connection ------------------------------------------------------------------------------ */

struct attempt {
    struct mlo_webhook_post *post;
    size_t received;
    bool refused;
};

static void peer_text(const struct sockaddr *address, char *out, size_t size)
{
    const void *bytes = address->sa_family == AF_INET6
                            ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    if (!inet_ntop(address->sa_family, bytes, out, (socklen_t)size))
        *out = '\0';
}

/* Called with the very address that will be connected to: what a name means may change between two look-ups.
 */
static curl_socket_t open_checked(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct attempt *a = arg;
    char text[64];
    MLO_UNUSED(purpose);
    peer_text(&address->addr, text, sizeof text);
    if (!mlo_webhook_guard_address(a->post->guard, &address->addr)) {
        a->refused = true;
        snprintf(a->post->error, sizeof a->post->error,
                 "the host is at %s, an address inside: no connection was made", text);
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static size_t drop(char *bytes, size_t size, size_t count, void *arg)
{
    struct attempt *a = arg;
    MLO_UNUSED(bytes);
    a->received += size * count;
    return a->received > ANSWER_MAX ? 0 : size * count; /* the status is all we want */
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct attempt *attempt = arg;
    MLO_UNUSED(a), MLO_UNUSED(b), MLO_UNUSED(c), MLO_UNUSED(d);
    return attempt->post->cancelled && attempt->post->cancelled(attempt->post->cancelled_arg);
}

static void perform(CURL *curl, struct attempt *a)
{
    struct mlo_webhook_post *post = a->post;
    char why[CURL_ERROR_SIZE] = "";
    const char *peer = NULL;
    curl_off_t wait_s = 0;
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &post->http_status);
    if (curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait_s) == CURLE_OK)
        post->retry_after_s = wait_s;
    if (curl_easy_getinfo(curl, CURLINFO_PRIMARY_IP, &peer) == CURLE_OK && peer)
        snprintf(post->address, sizeof post->address, "%s", peer);
    if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && a->received > ANSWER_MAX)) {
        *post->error = '\0'; /* of an address before this one, that was refused */
        return;
    }
    post->http_status = 0; /* an answer that did not end is none */
    if (!a->refused || !*post->error)
        snprintf(post->error, sizeof post->error, "%s", *why ? why : curl_easy_strerror(code));
}

void mlo_webhook_post(struct mlo_webhook_post *post)
{
    struct attempt a = {.post = post};
    struct mlo_error err = {0};
    struct curl_slist *headers = curl_slist_append(NULL, "expect:"); /* one round trip, not two */
    uint64_t begin_ns = mlo_clock_ns();
    CURL *curl = curl_easy_init();
    post->http_status = 0;
    post->retry_after_s = 0;
    *post->address = *post->error = '\0';
    enum mlo_status status = curl && headers ? MLO_OK : mlo_error_nomem(&err);
    if (status == MLO_OK && json_array_size(post->secrets) == 0)
        status = mlo_error_set(&err, MLO_ECONFLICT, "the webhook has no secret: rotate it");
    if (status == MLO_OK) /* the operator may have changed what is allowed */
        status = mlo_webhook_guard_url(post->guard, post->url, &err);
    if (status == MLO_OK)
        status = add_headers(post, &headers, &err);
    if (status == MLO_OK) {
        curl_easy_setopt(curl, CURLOPT_URL, post->url);
        curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
        curl_easy_setopt(curl, CURLOPT_PROXY,
                         ""); /* one from the environment would connect for us, unchecked */
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_FORBID_REUSE, 1L);
        curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                         (long)MLO_MIN(post->timeout_ms, (uint32_t)CONNECT_MS));
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)post->timeout_ms);
        curl_easy_setopt(curl, CURLOPT_USERAGENT, "mlopt-webhook/1");
        curl_easy_setopt(curl, CURLOPT_POST, 1L);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)post->size);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, post->body);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_checked);
        curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, &a);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, &a);
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &a);
        perform(curl, &a);
    } else {
        snprintf(post->error, sizeof post->error, "%.250s", err.message);
    }
    post->ms = (uint32_t)((mlo_clock_ns() - begin_ns) / 1000000);
    curl_slist_free_all(headers);
    if (curl)
        curl_easy_cleanup(curl);
}
