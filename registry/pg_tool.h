/* PostgreSQL's own programs: where they are, and running one on the database of a connection. */
#ifndef MLO_REGISTRY_PG_TOOL_H
#define MLO_REGISTRY_PG_TOOL_H

#include "registry/db.h"

/* The folder that has all of `programs` (ended by NULL): $MLOPT_PG_BINDIR, /usr/lib/postgresql/N/bin, PATH.
 * `major` 0: the newest; else that version alone, where folders tell versions. MLO_ENOTFOUND; *out is yours.
 */
MLO_MUST_USE enum mlo_status mlo_pg_bindir(int major, const char *const *programs, char **out,
                                           struct mlo_error *err);

struct mlo_pg_tool {
    const char *program;     /* "pg_dump" */
    const char *const *args; /* behind the program's name, ended by NULL; never with a password in them */
    const char *input;       /* a file as its stdin; NULL: none */
    const char *output;      /* a new file (0600) for its stdout, synced at the end; NULL: none */
    const char *log; /* a file for its stderr: its last line is in the error; removed when it worked */
};
/* Runs it on the database that `conn` is connected to, with the same user: what it needs is handed over in
 * the environment. The program is of the server's version, or of the newest where that is not here. MLO_EIO
 * when it fails, MLO_EUNAVAILABLE when it is not installed. It ends with us. */
MLO_MUST_USE enum mlo_status mlo_pg_tool_run(struct mlo_db_conn *conn, const struct mlo_pg_tool *tool,
                                             struct mlo_error *err);

#endif
