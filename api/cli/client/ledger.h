/* The part of `mlopt audit verify` that checks the ledger. */
#ifndef MLO_CLI_CLIENT_LEDGER_H
#define MLO_CLI_CLIENT_LEDGER_H

#include "api/cli/client/client.h"
#include "registry/ledger_check.h"

struct mlo_client_ledger {
    const char *project, *clone; /* borrowed */
    struct mlo_ledger_check *check;
    struct mlo_ledger_seen remembered;
    struct mlo_ledger_result result;
    struct mlo_git_id clone_tip;
    bool clone_found;
    int64_t
        written_to; /* the audit log's head before the commits were asked for: entries up to it have theirs */
};

/* Fetches keys and commits and checks them. `heads` is what is remembered here; `clone` (may be NULL) a
 * repository whose head must be in the ledger; `accepted_key` (may be NULL) a fingerprint that is trusted
 * from now on. */
MLO_MUST_USE enum mlo_status mlo_client_ledger_open(struct mlo_client *client, const char *project,
                                                    const char *clone, const char *accepted_key,
                                                    json_t *heads, struct mlo_client_ledger *out,
                                                    struct mlo_error *err);
/* After all audit entries were shown to out->check: fills result, and remembers the head when it is intact.
 */
void mlo_client_ledger_end(struct mlo_client *client, struct mlo_client_ledger *ledger, json_t *heads);
/* {ok, commits, head, bad_commit, problem, remembered}. New reference. */
json_t *mlo_client_ledger_json(const struct mlo_client_ledger *ledger);
void mlo_client_ledger_close(struct mlo_client_ledger *ledger);

#endif
