/* Private to registry/db*.c. */
#ifndef MLO_REGISTRY_DB_IMPL_H
#define MLO_REGISTRY_DB_IMPL_H

#include <pthread.h>

#include "registry/db.h"

enum { PREPARED_MAX = 256 };

struct mlo_db_conn {
    struct mlo_db *db;
    PGconn *pg;
    struct mlo_db_conn *next;
    const struct mlo_sql *prepared[PREPARED_MAX]; /* open addressing by address */
    size_t prepared_count;
    int depth;   /* of transactions */
    bool doomed; /* an inner transaction failed */
    char sqlstate[6];
};

struct mlo_db {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    struct mlo_db_conn *idle;
    unsigned total, max;
    uint32_t wait_ms;
    char *conninfo, *user, *application, *options;
    char place[256]; /* "/run/x (database mlopt)": for errors */
};

/* Fills err from a failed result (or from the connection when result is NULL). */
enum mlo_status mlo_db_fail(struct mlo_db_conn *conn, const PGresult *result, const char *what,
                            struct mlo_error *err);

#endif
