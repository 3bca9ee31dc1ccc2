/* Writing ledgers: a server turns the recorded events into signed commits in PostgreSQL, and keeps a bare git
 * repository per project as a cache of them, which any server makes again to the same ids. Several servers
 * may do it at once, with the same key (ledger.key in each one's folder): a lock per project orders them, and
 * each event has one commit. What a killed server left is finished by the next call.
 *
 *     DIR/ledger.key        the private key (0600); made when the installation has none
 *     DIR/PROJECT.git       the repository: removed at any time, it is made again. Full runs of commits are
 *                           in packs; the file `packs` lists them */
#ifndef MLO_REGISTRY_LEDGER_SERVICE_H
#define MLO_REGISTRY_LEDGER_SERVICE_H

#include "base/git_object.h"
#include "registry/keys.h"
#include "registry/ledger.h"

struct mlo_ledger;

/* Called at each step of writing, with its name; for tests of what a kill there leaves. */
typedef void mlo_ledger_step_fn(void *arg, const char *step);

struct mlo_ledger_options {
    struct mlo_db *db;  /* the server's role; borrowed */
    const char *dir;    /* made when it is not there, mode 0700; copied */
    const char *mirror; /* repositories MIRROR/PROJECT.git are pushed to: a folder (bare repositories are made
                           in it), or a URL that libgit2 can push to; NULL: none; copied */
    unsigned pack_grace_s; /* how long what a pack replaces is served beside it, for clones under way; 0: an
                              hour; MLO_LEDGER_NO_GRACE: tests */
    mlo_ledger_step_fn *on_step;
    void *step_arg;
};
#define MLO_LEDGER_NO_GRACE UINT32_MAX

/* Opens or makes the key and registers it. MLO_ECONFLICT when the installation signs with a key that is not
 * here. */
MLO_MUST_USE enum mlo_status mlo_ledger_open(const struct mlo_ledger_options *options,
                                             struct mlo_ledger **out, struct mlo_error *err);
/* Stops the thread, if there is one. NULL is allowed. */
void mlo_ledger_close(struct mlo_ledger *ledger);

/* Writes what is recorded and not written, brings the repository to the last commit, and packs what can be.
 * `conn` is not in a transaction. */
MLO_MUST_USE enum mlo_status mlo_ledger_sync(struct mlo_ledger *ledger, struct mlo_db_conn *conn,
                                             int64_t project_id, struct mlo_error *err);
/* The same without packing: for who reads, and waits. */
MLO_MUST_USE enum mlo_status mlo_ledger_freshen(struct mlo_ledger *ledger, struct mlo_db_conn *conn,
                                                int64_t project_id, struct mlo_error *err);
/* mlo_ledger_sync for every project whenever there is something to write, on a thread of its own, and the
 * push to the mirror; failures are logged and tried again. */
MLO_MUST_USE enum mlo_status mlo_ledger_start(struct mlo_ledger *ledger, struct mlo_error *err);
/* Tells the thread that there is something to write now. NULL is allowed. */
void mlo_ledger_kick(struct mlo_ledger *ledger);

/* Pushes the repository to the mirror as it is. MLO_ECONFLICT when the mirror has a history that this one
 * does not continue: one of them was rewritten. MLO_OK without a mirror. */
MLO_MUST_USE enum mlo_status mlo_ledger_push(struct mlo_ledger *ledger, const char *project,
                                             struct mlo_error *err);

/* Appends objects/info/packs of the repository at `path`: "P pack-ID.pack", a line each, and an empty one. */
void mlo_ledger_packs_list(const char *path, struct mlo_buf *out);

/* The commit that a repository (a clone, a mirror) is at: its HEAD, or main. MLO_ENOTFOUND when it has none.
 */
MLO_MUST_USE enum mlo_status mlo_ledger_tip(const char *path, struct mlo_git_id *out, struct mlo_error *err);

/* A new key signs from now on; the one before vouches for it and is retired. Needs an admin. */
MLO_MUST_USE enum mlo_status mlo_ledger_rotate(struct mlo_ledger *ledger, struct mlo_db_conn *conn,
                                               const struct mlo_actor *actor, struct mlo_error *err);

/* "DIR/PROJECT.git"; yours (free); NULL: out of memory. */
char *mlo_ledger_repository(const struct mlo_ledger *ledger, const char *project);

#endif
