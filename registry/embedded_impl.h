/* Private to registry/embedded*.c. */
#ifndef MLO_REGISTRY_EMBEDDED_IMPL_H
#define MLO_REGISTRY_EMBEDDED_IMPL_H

#include "registry/embedded.h"

#define MLO_EMBEDDED_ADMIN "mlopt_admin"

struct mlo_embedded {
    char *dir, *cluster, *socket_dir, *bindir, *database; /* absolute paths */
    bool short_socket_dir;                                /* outside dir: removed at the end */
    bool no_fsync;
    unsigned max_connections;
    uid_t uid; /* 0: run as ourselves */
    gid_t gid;
    pid_t pid;
    int lock_fd, log_fd;
};

/* Finds programs and user, makes the folders with the right owner, opens the log. */
enum mlo_status mlo_embedded_place(struct mlo_embedded *pg, const char *dir, struct mlo_error *err);

/* Adds the last line of PostgreSQL's log to the error, and where the log is. Returns `status`. */
enum mlo_status mlo_embedded_log_tail(const struct mlo_embedded *pg, enum mlo_status status,
                                      struct mlo_error *err);

#endif
