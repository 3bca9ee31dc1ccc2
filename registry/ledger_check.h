/* Checking a ledger against its signatures and the audit log, from what anybody can get: the published keys,
 * the commits with their files, the audit entries. Nothing here asks a database: the server and who does not
 * trust it use the same code.
 *
 *     check = mlo_ledger_check_new(keys, remembered)
 *     mlo_ledger_check_commit(check, row) for each commit, in order
 *     mlo_ledger_check_entry(check, seq, hash, body) for each audit entry, in any order
 *     mlo_ledger_check_end(check, &result) */
#ifndef MLO_REGISTRY_LEDGER_CHECK_H
#define MLO_REGISTRY_LEDGER_CHECK_H

#include "base/base.h"

struct mlo_ledger_check;

/* A head that was seen before, by anybody; n 0: none. */
struct mlo_ledger_seen {
    int64_t n;
    struct mlo_git_id id;
};

struct mlo_ledger_result {
    bool intact;
    int64_t commits;             /* checked */
    struct mlo_ledger_seen head; /* of the last good one */
    int64_t bad_commit;          /* the lowest that is wrong; 0: none is, or it is no commit that is wrong */
    char problem[384];           /* "" when intact */
};

/* `keys` is as mlo_keys_list gives them. Keys that say who vouches for them are checked for it. NULL: out of
 * memory. */
struct mlo_ledger_check *mlo_ledger_check_new(const json_t *keys, const struct mlo_ledger_seen *remembered);
void mlo_ledger_check_free(struct mlo_ledger_check *check); /* NULL is allowed */

/* {n, id, audit_seq, commit (the object's text), files:[{path, text}]}. What is wrong is noted, the first of
 * it. */
MLO_MUST_USE enum mlo_status mlo_ledger_check_commit(struct mlo_ledger_check *check, const json_t *row,
                                                     struct mlo_error *err);
/* Whether an entry has to be shown to mlo_ledger_check_entry: it has a commit, or its bytes hold the name of
 * an action that has one. */
bool mlo_ledger_check_wants(const struct mlo_ledger_check *check, int64_t seq, const char *body, size_t size);
/* An entry of the audit log with the hash that was computed for it. Entries after `written_to` need no commit
 * yet. */
MLO_MUST_USE enum mlo_status mlo_ledger_check_entry(struct mlo_ledger_check *check, int64_t seq,
                                                    const struct mlo_digest *hash, const json_t *body,
                                                    int64_t written_to, struct mlo_error *err);
void mlo_ledger_check_end(struct mlo_ledger_check *check, struct mlo_ledger_result *out);

struct mlo_db_conn;
/* All of it, of one moment, as the server sees it. */
MLO_MUST_USE enum mlo_status mlo_ledger_verify(struct mlo_db_conn *conn, int64_t project_id,
                                               struct mlo_ledger_result *out, struct mlo_error *err);

#endif
