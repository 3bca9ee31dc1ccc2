/* Private to registry/ledger*.c. */
#ifndef MLO_REGISTRY_LEDGER_IMPL_H
#define MLO_REGISTRY_LEDGER_IMPL_H

#include <pthread.h>

#include "registry/ledger_commit.h"
#include "registry/ledger_service.h"

struct mlo_ledger {
    struct mlo_db *db;
    char *dir, *mirror;
    mlo_ledger_step_fn *on_step;
    void *step_arg;
    pthread_mutex_t lock; /* key, kicked, stopping */
    pthread_cond_t woken;
    struct mlo_sign_key *key;
    int64_t pack_grace_s;
    bool kicked, stopping, started;
    pthread_t thread;
};

void mlo_ledger_step(struct mlo_ledger *ledger, const char *step);

/* The number of a commit; 0 when there is none with this id. */
enum mlo_status mlo_ledger_find(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_git_id *id,
                                int64_t *n, struct mlo_error *err);

/* ledger_write.c: writes the next commit, if any. */
enum mlo_status mlo_ledger_write_next(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                      bool *written, struct mlo_error *err);

/* A commit as it is stored: n, id, audit_seq, commit (bytes), files (text). */
enum { LEDGER_ROW_N, LEDGER_ROW_ID, LEDGER_ROW_SEQ, LEDGER_ROW_BODY, LEDGER_ROW_FILES };
enum mlo_status mlo_ledger_rows_after(struct mlo_db_conn *conn, int64_t project_id, int64_t n, int64_t limit,
                                      struct mlo_rows *rows, struct mlo_error *err);

/* ledger_repo.c: brings the repository at `path` to the head in PostgreSQL; `packs`: and packs what can be.
 */
enum mlo_status mlo_ledger_repo_sync(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                     const char *path, bool packs, struct mlo_error *err);
/* ledger_pack.c: packs what fills a run of the first n commits, and takes away what packs have replaced for
 * long enough. Under the repository's lock. *again: a pack was damaged and is gone; with the repository
 * opened anew (libgit2 keeps what it has read of it), the next call makes it again. */
struct git_repository;
enum mlo_status mlo_ledger_pack(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                struct git_repository *repo, const char *path, int64_t n, bool *again,
                                struct mlo_error *err);
/* Whether all the packs that the list names are there: else objects are missing. */
bool mlo_ledger_packs_usable(const char *path);
/* Pushes it to another one: a folder, where a bare repository is made, or a URL. */
enum mlo_status mlo_ledger_repo_push(const char *path, const char *to, struct mlo_error *err);

#endif
