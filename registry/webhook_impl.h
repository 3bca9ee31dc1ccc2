/* Private to registry/webhook*.c. */
#ifndef MLO_REGISTRY_WEBHOOK_IMPL_H
#define MLO_REGISTRY_WEBHOOK_IMPL_H

#include "registry/webhook.h"

/* Appends what is sent: {"data", "timestamp", "type"}, canonical, so the same bytes at every attempt. */
enum mlo_status mlo_webhook_payload(struct mlo_db_conn *conn, int64_t delivery, struct mlo_buf *out,
                                    struct mlo_error *err);

struct mlo_webhook_post {
    const char *url, *message, *body;
    size_t size;
    const json_t *secrets; /* array of texts: all of them sign */
    const struct mlo_webhook_guard *guard;
    uint32_t timeout_ms;
    bool (*cancelled)(void *arg);
    void *cancelled_arg;
    /* the answer */
    long http_status;      /* 0: none */
    int64_t retry_after_s; /* that the receiver asks for; 0: nothing */
    uint32_t ms;
    char address[64]; /* of the peer; "": there was no connection */
    char error[256];  /* "" when http_status tells all */
};
/* One attempt. Whether it worked is in http_status. */
void mlo_webhook_post(struct mlo_webhook_post *post);

#endif
