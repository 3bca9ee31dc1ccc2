/* What a ledger's commits are made of, as bytes: the same for who writes them and who checks them. Nothing
 * here asks a database. */
#ifndef MLO_REGISTRY_LEDGER_COMMIT_H
#define MLO_REGISTRY_LEDGER_COMMIT_H

#include "base/base.h"
#include "base/git_object.h"

#define MLO_LEDGER_SIGNED_AS "git"          /* the signatures' name space */
#define MLO_LEDGER_PRINCIPAL "ledger@mlopt" /* in allowed_signers, and the committer's address */

/* The state of a ledger is an object {path: id of the blob as text}. Applies [{path, text}] (text null:
 * removed). `emit` (may be NULL) gets the blobs. */
MLO_MUST_USE enum mlo_status mlo_ledger_apply(json_t *state, const json_t *files, mlo_git_object_fn *emit,
                                              void *arg, struct mlo_error *err);
/* The tree of a state; `emit` (may be NULL) gets every tree. */
MLO_MUST_USE enum mlo_status mlo_ledger_tree(const json_t *state, mlo_git_object_fn *emit, void *arg,
                                             struct mlo_git_id *out, struct mlo_error *err);

struct mlo_ledger_commit {
    struct mlo_git_id tree;
    const struct mlo_git_id *parent; /* NULL: the first */
    int64_t audit_seq;
    struct mlo_digest audit_hash;
    const json_t *audit; /* the entry's body: who, via, at, action, object, reason */
    int64_t time_s;      /* of the committer: UTC seconds since 1970; the author's is the entry's */
};
/* Appends the commit without its signature: what is signed. MLO_EFORMAT when the entry has no time. */
MLO_MUST_USE enum mlo_status mlo_ledger_compose(const struct mlo_ledger_commit *commit, struct mlo_buf *out,
                                                struct mlo_error *err);
/* Appends the commit with its signature in git's header gpgsig. */
void mlo_ledger_join(const struct mlo_buf *unsigned_commit, const struct mlo_buf *armored,
                     struct mlo_buf *out);
/* The reverse; false when there is no signature. */
bool mlo_ledger_split(const char *commit, size_t size, struct mlo_buf *unsigned_commit,
                      struct mlo_buf *armored);
/* The committer's time; -1 when there is none. */
int64_t mlo_ledger_commit_time(const char *unsigned_commit);

/* "2026-01-31T12:34:56.789Z" as seconds since 1970; false when it is no such time. */
bool mlo_ledger_seconds(const char *text, int64_t *out);

#endif
