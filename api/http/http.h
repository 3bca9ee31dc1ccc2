/* The public header of api/http: the server of the REST API and of whatever pages it is given. Threads: one
 * per connection, each handler may block; start and stop from one thread.
 *
 * The contract is docs/api.md; routes are rows (routes.c); adding one is described in README.md here. */
#ifndef MLO_HTTP_H
#define MLO_HTTP_H

#include "api/http/route.h"
#include "pipeline/service/service.h"

struct mlo_http_options {
    const char *address;          /* to listen on: "127.0.0.1" (default), "::1", "0.0.0.0"… */
    uint16_t port;                /* 0: any free one */
    struct mlo_db *db;            /* pool; borrowed, outlives the server */
    struct mlo_blob_store *blobs; /* borrowed */
    struct mlo_ledger *ledger; /* borrowed; NULL: this server writes no ledgers and serves no repositories */
    struct mlo_webhooks
        *webhooks;       /* borrowed; NULL: this server sends none, and takes public https URLs only */
    const char *tmp_dir; /* where a downloaded blob may lie for a moment; NULL: $TMPDIR or /tmp */
    const struct mlo_http_module *modules; /* more routes: the pages; borrowed */
    size_t module_count;
    unsigned max_connections;   /* 0: 1,024 */
    uint32_t header_timeout_ms; /* for the whole of a request's headers; 0: 5,000 */
    uint32_t idle_timeout_s;    /* 0: 30 */
    uint32_t min_body_rate;     /* bytes per second below which an upload is cut; 0: 1,024 */
    uint64_t max_blob_bytes;    /* 0: 8 GiB */
    uint32_t keys_every_ms;     /* how often Idempotency-Keys whose time is over are removed; 0: 600,000 */
    int64_t grace_s;            /* of what is deleted, and of blobs that nothing refers to; 0: 7 days */
    const char
        *metrics_address; /* where /metrics, /healthz and /readyz are served without a token; NULL: nowhere */
    uint16_t metrics_port; /* 0: any free one */
    unsigned rate_limit;   /* of a token, requests of the API a second; ten times as many at once. 0: none */
    size_t metrics_projects;        /* so many projects have series of their own */
    bool quiet;                     /* no access log */
    bool secure_cookie;             /* pages are reached over TLS (a proxy in front) */
    const char *tls_cert, *tls_key; /* PEM files: all but metrics_address speaks TLS; NULL: plain HTTP. Read
                                     * again when they change */
};

/* Checks the tables, binds and serves. *out is yours: mlo_http_stop. MLO_EUNAVAILABLE when the address cannot
 * be bound. */
MLO_MUST_USE enum mlo_status mlo_http_start(const struct mlo_http_options *options, struct mlo_http **out,
                                            struct mlo_error *err);
/* The port it listens on. */
uint16_t mlo_http_port(const struct mlo_http *http);
/* Whether it speaks TLS there. */
bool mlo_http_tls(const struct mlo_http *http);
/* That of metrics_address; 0 without one. */
uint16_t mlo_http_metrics_port(const struct mlo_http *http);
/* Makes a one-time code that signs a browser in as the bearer of `token`: GET /login?token=CODE. Codes live
 * in this process until used (16 at most: the oldest goes first). */
MLO_MUST_USE enum mlo_status mlo_http_login_code(struct mlo_http *http, const char *token, char code[48],
                                                 struct mlo_error *err);
/* First half of an end that loses nothing: from now on /readyz says 503 and each answer ends its connection,
 * while the listener stays and all is served. Who shares requests out notices and sends them elsewhere. */
void mlo_http_drain(struct mlo_http *http);
/* No new connections; requests in flight get up to `drain_ms` to end; then all is freed. NULL is allowed. */
void mlo_http_stop(struct mlo_http *http, uint32_t drain_ms);

/* The API's own rows, for tests and documentation. */
const struct mlo_route *mlo_http_api_routes(size_t *count);

/* An operation of the contract (api/openapi.yaml); a row of the API's routes is the same but for HEAD, which
 * every GET serves. */
struct mlo_operation {
    const char *method, *path, *id;
    mlo_handler_fn *handler;
    bool open;
    enum mlo_role role;
};
const struct mlo_operation *mlo_http_operations(size_t *count);
/* The contract as JSON text, as served at /v1/openapi.json. */
const char *mlo_http_contract(size_t *size);

#endif
