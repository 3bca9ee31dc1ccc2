/* The audit log: one hash chain per project (project 0: the installation's own), appended to in the
 * transaction of the change it records. hash = SHA-256(prev_hash || seq as 8 bytes big-endian || body); the
 * body is the exact bytes of canonical JSON {action, address, after, at, before, object, reason, request_id,
 * via, who}. */
#ifndef MLO_REGISTRY_AUDIT_H
#define MLO_REGISTRY_AUDIT_H

#include "registry/actor.h"
#include "registry/page.h"

struct mlo_audit_event {
    const char *action;   /* "model.create", "stage.promote"… */
    const char *object;   /* "fashion/cnn@3", "token 7"… */
    const json_t *before; /* NULL: null; borrowed */
    const json_t *after;
    const char *reason; /* NULL: none */
};

/* Appends an entry, and waits for other transactions that appended to this chain. Where nobody asks for its
 * number (seq NULL) and in a transaction, only when that commits (mlo_db_queue_last): the chain is locked
 * last. */
MLO_MUST_USE enum mlo_status mlo_audit_append(struct mlo_db_conn *conn, int64_t project_id,
                                              const struct mlo_actor *actor,
                                              const struct mlo_audit_event *event, int64_t *seq,
                                              struct mlo_error *err);

/* The same, queued (mlo_db_queue): the chain is locked when the queue is sent, which is best with the COMMIT.
 * `rows` holds the number then. What the entry's number belongs to is queued behind it, and names it as
 * MLO_AUDIT_LAST. */
MLO_MUST_USE enum mlo_status mlo_audit_queue(struct mlo_db_conn *conn, int64_t project_id,
                                             const struct mlo_actor *actor,
                                             const struct mlo_audit_event *event, struct mlo_rows *rows,
                                             struct mlo_error *err);
/* SQL for the number of the entry that this transaction appended last to the chain of a project (its head is
 * locked until the end). */
#define MLO_AUDIT_LAST(project) "(SELECT h.seq FROM audit_head h WHERE h.project_id = " project ")"

/* A day (2026-01-31) or a time in UTC (2026-01-31T12:00, 2026-01-31T12:00:00.5; a Z may follow) as an entry's
 * `at` is written; what is not said becomes its first instant, or its last. False: it is none. */
#define MLO_AUDIT_MOMENT_SIZE 25
bool mlo_audit_moment(const char *text, bool last, char out[MLO_AUDIT_MOMENT_SIZE]);

struct mlo_audit_filter {
    const char *action;        /* exact, or a prefix when it ends in '.'; NULL: all */
    const char *who;           /* exact; NULL: all */
    const char *object;        /* prefix; NULL: all */
    const char *since, *until; /* moments, both included, else MLO_EINVAL; NULL: all */
};
/* Newest first: {"items":[{seq, hash, prev_hash, body, action, who, via, …the members of body}], "next"};
 * `body` is the exact text that was hashed. `filter` may be NULL; with one, an answer may hold fewer items
 * than the limit although "next" goes on. */
MLO_MUST_USE enum mlo_status mlo_audit_list(struct mlo_db_conn *conn, int64_t project_id,
                                            const struct mlo_audit_filter *filter,
                                            const struct mlo_page *page, json_t **out, struct mlo_error *err);

/* The chain as it is hashed, oldest first: appends the entries behind `after` (INT64_MIN: all), at most
 * `limit`, fewer when they come to MLO_AUDIT_CHAIN_BYTES. Of each the line "SEQ PREV_HASH HASH SIZE" (digests
 * in hex, SIZE in bytes), the SIZE bytes of its body, and a line feed. Nothing: there are no more. */
#define MLO_AUDIT_CHAIN_BYTES (4 << 20)
MLO_MUST_USE enum mlo_status mlo_audit_chain(struct mlo_db_conn *conn, int64_t project_id, int64_t after,
                                             int64_t limit, struct mlo_buf *out, struct mlo_error *err);

struct mlo_audit_head {
    int64_t seq;
    struct mlo_digest hash;
};
MLO_MUST_USE enum mlo_status mlo_audit_head(struct mlo_db_conn *conn, int64_t project_id,
                                            struct mlo_audit_head *out, struct mlo_error *err);

struct mlo_audit_result {
    bool intact;
    int64_t entries;            /* checked */
    struct mlo_audit_head head; /* of the last good entry */
    int64_t bad_seq;            /* the first bad entry; 0 when intact */
    char problem[256];          /* what is wrong with it: "" when intact */
};
/* Reads the whole chain in order, in bounded memory, within one snapshot, and names the first bad entry: a
 * changed body, a broken link, a gap, a cut tail. `remembered` (may be NULL) is a head seen earlier, by
 * anybody: a history that was rewritten as a whole since then is found too. MLO_OK when the check could be
 * made; look at `intact`. */
MLO_MUST_USE enum mlo_status mlo_audit_verify(struct mlo_db_conn *conn, int64_t project_id,
                                              const struct mlo_audit_head *remembered,
                                              struct mlo_audit_result *out, struct mlo_error *err);

#endif
