/* Webhooks, as Standard Webhooks says (https://www.standardwebhooks.com): who is told of what happens in a
 * project, signed by HMAC-SHA256 with secrets "whsec_…". A delivery is a row that the change's own
 * transaction writes (migrations/0016_webhooks.sql); mlo_webhooks_start sends them, at least once each. All
 * of it needs an admin of the project, and is in its audit log. */
#ifndef MLO_REGISTRY_WEBHOOK_H
#define MLO_REGISTRY_WEBHOOK_H

#include "registry/actor.h"
#include "registry/page.h"

/* What there is to be told of: {"stage.promote", "A release was put in a stage."}…, ended by a NULL name. */
struct mlo_webhook_event {
    const char *name, *help;
};
extern const struct mlo_webhook_event mlo_webhook_events[];

/* --- where they may go --------------------------------------------------------------------------- */

#define MLO_WEBHOOK_NETS_MAX 16
/* What an operator allows beyond https to public addresses. Zero: nothing. */
struct mlo_webhook_guard {
    bool allow_http;
    size_t net_count;
    struct mlo_webhook_net {
        bool v6;
        uint8_t bytes[16];
        unsigned bits;
    } nets[MLO_WEBHOOK_NETS_MAX];
};
/* Adds "10.1.0.0/16", "fd00::/8" or an address. */
MLO_MUST_USE enum mlo_status mlo_webhook_guard_allow(struct mlo_webhook_guard *guard, const char *net,
                                                     struct mlo_error *err);
struct sockaddr;
/* Whether a connection to this address (IPv4 or IPv6, whatever it is embedded in) may be made: it is public,
 * or of an allowed network. */
bool mlo_webhook_guard_address(const struct mlo_webhook_guard *guard, const struct sockaddr *address);
/* MLO_EINVAL for what is no such URL: another scheme, a user in it, an address that is refused. Names are
 * looked up, and their addresses checked, each time a connection is made. */
MLO_MUST_USE enum mlo_status mlo_webhook_guard_url(const struct mlo_webhook_guard *guard, const char *url,
                                                   struct mlo_error *err);

/* --- signing ------------------------------------------------------------------------------------- */

#define MLO_WEBHOOK_SECRET_SIZE 64 /* "whsec_" + base64 of 32 bytes + NUL, with room */
/* Appends "v1,<base64>" of message.timestamp.body. MLO_EINVAL when the secret is none. */
MLO_MUST_USE enum mlo_status mlo_webhook_sign(const char *secret, const char *message, int64_t timestamp_s,
                                              const char *body, size_t size, struct mlo_buf *out,
                                              struct mlo_error *err);

/* --- managing ------------------------------------------------------------------------------------ */

struct mlo_webhook_settings {
    const char *url;           /* NULL: as it is */
    const char *description;   /* NULL: as it is */
    const char *const *events; /* names of the table above; NULL: as it is, and all at first */
    size_t event_count;
    const char *state; /* "enabled" or "paused"; NULL: as it is */
};
/* `secret` is shown this once. *out is as from mlo_webhook_get. */
MLO_MUST_USE enum mlo_status mlo_webhook_create(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const struct mlo_webhook_guard *guard, int64_t project_id,
                                                const struct mlo_webhook_settings *settings,
                                                char secret[MLO_WEBHOOK_SECRET_SIZE], json_t **out,
                                                struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_webhook_change(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const struct mlo_webhook_guard *guard, int64_t project_id,
                                                int64_t id, const struct mlo_webhook_settings *settings,
                                                json_t **out, struct mlo_error *err);
/* It sends nothing any more; what it sent stays to be read. */
MLO_MUST_USE enum mlo_status mlo_webhook_remove(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                int64_t project_id, int64_t id, struct mlo_error *err);
/* A new secret, shown this once; those before sign too for overlap_s more seconds. */
MLO_MUST_USE enum mlo_status mlo_webhook_rotate(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                int64_t project_id, int64_t id, int64_t overlap_s,
                                                char secret[MLO_WEBHOOK_SECRET_SIZE], struct mlo_error *err);
/* {id, url, description, events, state, state_reason, failing_since, created_at, created_by, secrets (that
 * are valid), pending (deliveries)}; and all of a project, as an array. */
MLO_MUST_USE enum mlo_status mlo_webhook_get(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                             int64_t project_id, int64_t id, json_t **out,
                                             struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_webhook_list(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project_id, json_t **out, struct mlo_error *err);

/* --- deliveries ---------------------------------------------------------------------------------- */

/* A delivery of type "webhook.ping", sent like any other. */
MLO_MUST_USE enum mlo_status mlo_webhook_ping(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project_id, int64_t id, int64_t *delivery,
                                              struct mlo_error *err);
/* Sends it again, with the same webhook-id. MLO_ECONFLICT while it is still tried. */
MLO_MUST_USE enum mlo_status mlo_webhook_replay(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                int64_t project_id, int64_t id, int64_t delivery,
                                                struct mlo_error *err);
/* Newest first: {id, message, type, audit_seq, run_id, state, attempts, next_at, created_at, delivered_at,
 * http_status, error (of the last attempt)}. */
MLO_MUST_USE enum mlo_status mlo_webhook_deliveries(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                    int64_t project_id, int64_t id,
                                                    const struct mlo_page *page, json_t **out,
                                                    struct mlo_error *err);
/* One, with `body` (what is sent) and `attempts_made`: [{number, at, ms, http_status, address, error}]. */
MLO_MUST_USE enum mlo_status mlo_webhook_delivery(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                  int64_t project_id, int64_t id, int64_t delivery,
                                                  json_t **out, struct mlo_error *err);

/* --- sending ------------------------------------------------------------------------------------- */

struct mlo_webhooks;
struct mlo_webhooks_options {
    struct mlo_db *db;              /* the server's role; borrowed */
    struct mlo_webhook_guard guard; /* copied */
    unsigned threads;               /* 0: 3 */
    uint32_t timeout_ms;            /* of an attempt; 0: 15,000 */
    uint32_t poll_ms;               /* how often it looks for work; 0: 1,000 */
    uint32_t give_up_s;             /* a webhook that fails for so long is disabled; 0: 5 days */
};
/* Sends what is due, from threads of its own, until it is stopped. Several servers share the work: each
 * delivery is leased by one at a time. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_webhooks_start(const struct mlo_webhooks_options *options,
                                                struct mlo_webhooks **out, struct mlo_error *err);
/* Attempts under way are ended. NULL is allowed. */
void mlo_webhooks_stop(struct mlo_webhooks *webhooks);
const struct mlo_webhook_guard *
mlo_webhooks_guard(const struct mlo_webhooks *webhooks); /* NULL gives a strict one */

#endif
