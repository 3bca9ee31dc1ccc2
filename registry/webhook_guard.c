/* Where a server may be sent by those who may make webhooks: not to itself, nor into the network around it.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <curl/curl.h>

#include "registry/webhook.h"

struct range {
    const char *net;
    unsigned bits;
};

/* IANA's special-purpose registries (RFC 6890 and what followed): what is not global unicast. */
static const struct range V4[] = {
    {"0.0.0.0", 8},      {"10.0.0.0", 8},    {"100.64.0.0", 10},   {"127.0.0.0", 8},
    {"169.254.0.0", 16}, /* link-local: also where clouds keep credentials */
    {"172.16.0.0", 12},  {"192.0.0.0", 24},  {"192.0.2.0", 24},    {"192.88.99.0", 24},
    {"192.168.0.0", 16}, {"198.18.0.0", 15}, {"198.51.100.0", 24}, {"203.0.113.0", 24},
    {"224.0.0.0", 4},    {"240.0.0.0", 4},
};
/* Of 2000::/3, which alone is global unicast. */
static const struct range V6[] = {
    {"2001::", 23}, /* IETF protocol assignments: Teredo, benchmarking, ORCHID */
    {"2001:db8::", 32},
    {"3fff::", 20},
};

static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;
    uint8_t mask = (uint8_t)(0xff00 >> rest);
    return memcmp(a, b, whole) == 0 && (!rest || (a[whole] & mask) == (b[whole] & mask));
}

static bool in_ranges(const uint8_t *bytes, int family, const struct range *ranges, size_t count)
{
    uint8_t net[16];
    for (size_t i = 0; i < count; i++)
        if (inet_pton(family, ranges[i].net, net) == 1 && same_bits(bytes, net, ranges[i].bits))
            return true;
    return false;
}

static bool allowed(const struct mlo_webhook_guard *guard, const uint8_t *bytes, bool v6)
{
    for (size_t i = 0; i < guard->net_count; i++)
        if (guard->nets[i].v6 == v6 && same_bits(bytes, guard->nets[i].bytes, guard->nets[i].bits))
            return true;
    return false;
}

static bool v4_may(const struct mlo_webhook_guard *guard, const uint8_t bytes[4])
{
    return allowed(guard, bytes, false) || !in_ranges(bytes, AF_INET, V4, MLO_COUNT(V4));
}

static bool v6_may(const struct mlo_webhook_guard *guard, const uint8_t bytes[16])
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    static const uint8_t translated[12] = {0, 0x64, 0xff, 0x9b}; /* 64:ff9b::/96 */
    if (memcmp(bytes, mapped, sizeof mapped) == 0 || memcmp(bytes, translated, sizeof translated) == 0)
        return v4_may(guard, bytes + 12);
    if (allowed(guard, bytes, true))
        return true;
    if (bytes[0] == 0x20 && bytes[1] == 0x02) /* 6to4 */
        return v4_may(guard, bytes + 2);
    return (bytes[0] & 0xe0) == 0x20 && !in_ranges(bytes, AF_INET6, V6, MLO_COUNT(V6));
}

bool mlo_webhook_guard_address(const struct mlo_webhook_guard *guard, const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        uint8_t bytes[4];
        memcpy(bytes, &((const struct sockaddr_in *)(const void *)address)->sin_addr, sizeof bytes);
        return v4_may(guard, bytes);
    }
    if (address->sa_family == AF_INET6) {
        uint8_t bytes[16];
        memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, sizeof bytes);
        return v6_may(guard, bytes);
    }
    return false;
}

enum mlo_status mlo_webhook_guard_allow(struct mlo_webhook_guard *guard, const char *net,
                                        struct mlo_error *err)
{
    char text[64];
    struct mlo_webhook_net *out = &guard->nets[guard->net_count];
    const char *slash = strchr(net, '/');
    size_t n = slash ? (size_t)(slash - net) : strlen(net);
    int64_t bits = -1;
    if (guard->net_count == MLO_WEBHOOK_NETS_MAX)
        return mlo_error_set(err, MLO_EINVAL, "at most %d networks can be allowed", MLO_WEBHOOK_NETS_MAX);
    snprintf(text, sizeof text, "%.*s", (int)MLO_MIN(n, sizeof text - 1), net);
    memset(out, 0, sizeof *out);
    out->v6 = strchr(text, ':') != NULL;
    int64_t most = out->v6 ? 128 : 32;
    if (n >= sizeof text || inet_pton(out->v6 ? AF_INET6 : AF_INET, text, out->bytes) != 1 ||
        (slash && (!mlo_str_to_i64(slash + 1, &bits) || bits < 0 || bits > most))) {
        mlo_error_set(err, MLO_EINVAL, "'%.80s' is no network", net);
        mlo_error_hint(err, "write 10.1.0.0/16, fd00::/8, or one address");
        return MLO_EINVAL;
    }
    out->bits = (unsigned)(slash ? bits : most);
    guard->net_count++;
    return MLO_OK;
}

/* An address as a host of a URL has it; names are not looked up. */
static bool literal_refused(const struct mlo_webhook_guard *guard, const char *host)
{
    char text[64];
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    size_t n = strlen(host);
    if (n > 2 && n < sizeof text && host[0] == '[') {
        snprintf(text, sizeof text, "%.*s", (int)n - 2, host + 1);
        return inet_pton(AF_INET6, text, &v6.sin6_addr) != 1 ||
               !mlo_webhook_guard_address(guard, (const struct sockaddr *)&v6);
    }
    /* inet_aton takes 127.1 and 0x7f000001 too, as the resolver does */
    return inet_aton(host, &v4.sin_addr) && !mlo_webhook_guard_address(guard, (const struct sockaddr *)&v4);
}

enum mlo_status mlo_webhook_guard_url(const struct mlo_webhook_guard *guard, const char *url,
                                      struct mlo_error *err)
{
    CURLU *parts = curl_url();
    char *scheme = NULL, *host = NULL, *user = NULL, *password = NULL;
    enum mlo_status status = MLO_OK;
    if (!parts)
        return mlo_error_nomem(err);
    if (curl_url_set(parts, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK ||
        curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
        curl_url_get(parts, CURLUPART_HOST, &host, 0) != CURLUE_OK || !*host || strlen(url) > 2000) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.200s' is no URL", url);
        mlo_error_hint(err, "write https://host/path");
    } else if (strcmp(scheme, "https") != 0 && !(strcmp(scheme, "http") == 0 && guard->allow_http)) {
        status = mlo_error_set(err, MLO_EINVAL, "a webhook goes to https://, not to %.20s://", scheme);
        if (strcmp(scheme, "http") == 0)
            mlo_error_hint(err, "an operator can allow it: --webhook-allow-http");
    } else if (curl_url_get(parts, CURLUPART_USER, &user, 0) == CURLUE_OK ||
               curl_url_get(parts, CURLUPART_PASSWORD, &password, 0) == CURLUE_OK) {
        status = mlo_error_set(err, MLO_EINVAL, "the URL of a webhook has no user or password in it");
        mlo_error_hint(err, "the receiver knows us by the signature");
    } else if (literal_refused(guard, host)) {
        status =
            mlo_error_set(err, MLO_EINVAL, "%.80s is an address inside: webhooks go to public ones", host);
        mlo_error_hint(err, "an operator can allow a network: --webhook-allow-net 10.1.0.0/16");
    }
    if (status != MLO_OK)
        mlo_error_where(err, "field 'url'");
    curl_free(scheme);
    curl_free(host);
    curl_free(user);
    curl_free(password);
    curl_url_cleanup(parts);
    return status;
}
