/* Private to registry/db*.c. */
#ifndef MLO_REGISTRY_DB_IMPL_H
#define MLO_REGISTRY_DB_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "registry/db.h"

enum { PREPARED_MAX = 1024, QUEUE_MAX = 64, AHEAD_MAX = 32 };

/* A statement that was sent, or lies in libpq's buffer, and whose answer was not taken yet. */
struct mlo_db_queued {
    const char *what;
    struct mlo_rows *rows; /* NULL: dropped */
};

/* A statement whose answer will be asked for. */
struct mlo_db_ahead {
    const struct mlo_sql *sql;
    struct mlo_buf params;
    struct mlo_rows rows;
};

/* A statement that waits for the COMMIT. */
struct mlo_db_last {
    struct mlo_db_last *next;
    const struct mlo_sql *sql;
    struct mlo_params params;
    char bytes[]; /* what they borrow */
};

struct mlo_db_conn {
    struct mlo_db *db;
    PGconn *pg;
    struct mlo_db_conn *next;
    const struct mlo_sql *prepared[PREPARED_MAX]; /* open addressing by address */
    size_t prepared_count;
    int depth;      /* of transactions */
    bool doomed;    /* an inner transaction failed */
    bool broken;    /* libpq lost it, whatever its status says */
    bool given_up;  /* it goes when it is released */
    bool early;     /* its locks go before it is on disk */
    bool silent;    /* no answer came in time: it is given up */
    bool unhurried; /* its statements may take as long as they do */
    char sqlstate[6];
    struct mlo_db_queued queue[QUEUE_MAX];
    size_t queued;                        /* above 0: the connection is in pipeline mode */
    struct mlo_db_last *last, **last_end; /* in order; `last_end` is where the next one goes */
    struct mlo_db_last **part_end;        /* of a part that may fail alone: where its own begin */
    int part_depth;
    struct mlo_db_ahead *ahead[AHEAD_MAX];
    size_t ahead_count;
};

struct mlo_db {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    struct mlo_db_conn *idle;
    unsigned total, max;
    uint32_t wait_ms, answer_ms;
    uint32_t connect_timeout_s;
    char *conninfo, *user, *application, *options;
    atomic_int may_settle; /* enum may: known from the first that asked */
    char place[256];       /* "/run/x (database mlopt)": for errors */
};

/* Fills err from a failed result (or from the connection when result is NULL). */
enum mlo_status mlo_db_fail(struct mlo_db_conn *conn, const PGresult *result, const char *what,
                            struct mlo_error *err);

/* Prepares it if it is not on this connection, and compares the number of parameters. */
enum mlo_status mlo_db_prepare(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                               const struct mlo_params *params, struct mlo_error *err);

/* Whether the server did what `what` says: the COMMIT of a transaction that has failed is a ROLLBACK. */
bool mlo_db_did(const PGresult *result, const char *what);
#define MLO_NOT_COMMITTED "a part of the transaction had failed, so nothing of it was kept"

/* db_wait.c */
/* PQgetResult, for an answer that comes in time; else the connection is given up, and the answer says that it
 * broke. */
PGresult *mlo_db_answer(struct mlo_db_conn *conn);
/* The last of what came to the one thing that was sent; NULL when it was not: the connection says why. */
PGresult *mlo_db_answers(struct mlo_db_conn *conn, bool sent);

/* db_durable.c */
/* In one round trip with what is queued. */
enum mlo_status mlo_db_commit(struct mlo_db_conn *conn, struct mlo_error *err);

/* db_batch.c */
/* Queues plain SQL: BEGIN, COMMIT. */
enum mlo_status mlo_db_queue_text(struct mlo_db_conn *conn, const char *text, struct mlo_rows *rows,
                                  struct mlo_error *err);
/* Queues what waits for the COMMIT. */
enum mlo_status mlo_db_queue_held(struct mlo_db_conn *conn, struct mlo_error *err);
void mlo_db_last_clear(struct mlo_db_conn *conn);
/* Forgets those from `from` on, a place in the list. */
void mlo_db_last_cut(struct mlo_db_conn *conn, struct mlo_db_last **from);
/* What is queued still runs, but nobody waits for its rows any more. */
void mlo_db_queue_forget(struct mlo_db_conn *conn);
/* Takes the answer that was read ahead; false: there is none. */
bool mlo_db_ahead_take(struct mlo_db_conn *conn, const struct mlo_sql *sql, const struct mlo_params *params,
                       struct mlo_rows *rows, enum mlo_status *status, struct mlo_error *err);

#endif
