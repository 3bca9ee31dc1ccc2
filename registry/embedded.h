/* A private PostgreSQL for `mlopt up` and tests: initdb on first use, a unix socket in a folder of mode 0700,
 * no TCP. It stops when the thread that started it ends, also by SIGKILL. PostgreSQL refuses to run as root:
 * then it runs as `postgres`, or else `nobody`. */
#ifndef MLO_REGISTRY_EMBEDDED_H
#define MLO_REGISTRY_EMBEDDED_H

#include "registry/db.h"

struct mlo_embedded;

struct mlo_embedded_options {
    const char
        *dir; /* its own folder; made when absent. The cluster is dir/cluster, its log dir/postgres.log */
    const char *database;     /* NULL: "mlopt" */
    unsigned max_connections; /* 0: 100 */
    bool no_fsync;            /* tests only: a power cut may lose everything */
};

/* Starts it (0.1 s; 1 s the first time), with the roles and the database of mlo_db_bootstrap. The programs
 * are found in $MLOPT_PG_BINDIR, /usr/lib/postgresql/N/bin (newest first, or the version of the existing
 * cluster), or PATH. One that a killed process left behind is stopped first; MLO_ECONFLICT when a living
 * process uses the folder. *out is yours (mlo_embedded_stop). */
MLO_MUST_USE enum mlo_status mlo_embedded_start(const struct mlo_embedded_options *options,
                                                struct mlo_embedded **out, struct mlo_error *err);
/* Looks at one that another process keeps running: only mlo_embedded_conninfo and mlo_embedded_stop (which
 * then stops nothing) are of use. MLO_ENOTFOUND when the folder has no cluster, MLO_EUNAVAILABLE when nothing
 * answers. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_embedded_attach(const char *dir, struct mlo_embedded **out,
                                                 struct mlo_error *err);
/* A libpq conninfo for this role (MLO_ROLE_SERVER …; NULL: the superuser) and database (NULL: the default
 * one). Yours (free); NULL when out of memory. */
char *mlo_embedded_conninfo(const struct mlo_embedded *pg, const char *role, const char *database);
pid_t mlo_embedded_pid(const struct mlo_embedded *pg);
/* Starts the server again that ended by itself (killed, out of memory): same addresses, so that pools heal.
 * MLO_ECONFLICT while it still runs. */
MLO_MUST_USE enum mlo_status mlo_embedded_restart(struct mlo_embedded *pg, struct mlo_error *err);
/* Fast shutdown, waits for its end, frees. NULL is allowed. */
void mlo_embedded_stop(struct mlo_embedded *pg);

#endif
