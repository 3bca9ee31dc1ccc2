/* Idempotency-Key: what a request was answered, kept with its effect, so that one which is repeated because
 * its answer was lost has no second effect and gets the same answer
 * (draft-ietf-httpapi-idempotency-key-header).
 *
 * The row is written in the transaction of the effect: who crashes before its COMMIT did nothing, who crashes
 * behind it has answered. */
#ifndef MLO_REGISTRY_IDEMPOTENCY_H
#define MLO_REGISTRY_IDEMPOTENCY_H

#include "registry/db.h"

#define MLO_IDEMPOTENCY_KEY_MAX 128
#define MLO_IDEMPOTENCY_S 86400      /* so long a key is remembered */
#define MLO_IDEMPOTENCY_WAIT_MS 2000 /* so long a second request waits for the first to end */

/* A request under a key; texts are borrowed. Keys are a token's own: two tokens may use the same. */
struct mlo_idempotent {
    int64_t token_id;
    const char *key;           /* 1 to MLO_IDEMPOTENCY_KEY_MAX characters */
    const char *method, *path; /* of the request, not of the route */
    struct mlo_digest body;
};

/* The key in the value of an Idempotency-Key header, which is a quoted string as the draft has it, or bare:
 * *key is in `text`, *length long. MLO_EINVAL: it is none. */
MLO_MUST_USE enum mlo_status mlo_idempotency_key(const char *text, const char **key, size_t *length,
                                                 struct mlo_error *err);

/* What it was answered. Zero-initialise; clear when done. */
struct mlo_idempotent_answer {
    int http_status;
    json_t *headers;     /* an object of texts; NULL: none */
    struct mlo_buf body; /* text */
};
void mlo_idempotent_answer_clear(struct mlo_idempotent_answer *answer);

enum mlo_idempotency {
    MLO_IDEMPOTENCY_NEW,   /* nobody used the key: do the work, then mlo_idempotency_finish */
    MLO_IDEMPOTENCY_DONE,  /* this very request was answered before: *answer is it */
    MLO_IDEMPOTENCY_OTHER, /* the key stands for another request; *answer has its status alone */
    MLO_IDEMPOTENCY_BUSY,  /* the request under this key has not ended in MLO_IDEMPOTENCY_WAIT_MS: the
                              transaction is good for nothing but its end */
};

/* In the transaction of the request, as its first statement. *how says which; a key whose time is over counts
 * as new. */
MLO_MUST_USE enum mlo_status
mlo_idempotency_begin(struct mlo_db_conn *conn, const struct mlo_idempotent *request,
                      enum mlo_idempotency *how, struct mlo_idempotent_answer *answer, struct mlo_error *err);
/* In the same transaction, behind the work: queued with its COMMIT. */
MLO_MUST_USE enum mlo_status mlo_idempotency_finish(struct mlo_db_conn *conn,
                                                    const struct mlo_idempotent *request,
                                                    const struct mlo_idempotent_answer *answer,
                                                    struct mlo_error *err);
#define MLO_IDEMPOTENCY_BATCH 10000
/* Forgets keys whose time is over, MLO_IDEMPOTENCY_BATCH at most: when *removed is fewer, all of them. It may
 * be NULL. */
MLO_MUST_USE enum mlo_status mlo_idempotency_expire(struct mlo_db_conn *conn, int64_t *removed,
                                                    struct mlo_error *err);

#endif
