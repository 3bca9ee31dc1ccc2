/* The ledger: a git repository per project that anyone allowed can clone and check with stock git. One signed
 * commit per promotion, rollback, approval and policy change, holding the readable state.
 *
 * Recording a change, inside the transaction that makes it, after its audit entry and as late as that:
 *
 *     int64_t seq;
 *     MLO_TRY(mlo_audit_append(conn, project, actor, &event, &seq, err));
 *     … the change itself …
 *     struct mlo_buf text = MLO_BUF_INIT;
 *     mlo_ledger_json(value, &text);
 *     const struct mlo_ledger_file file = {.path = "policy/cnn.json", .text = mlo_buf_str(&text), .size =
 * text.len}; MLO_TRY(mlo_ledger_append(conn, project, seq, &file, 1, err));
 *
 * The commit is written after that transaction has ended, by any server (see mlo_ledger_write), in the order
 * of the audit chain. Its author, time and message come from the audit entry, so an action shows as it is
 * recorded there; its last line names the entry's number and hash. Actions that must have a commit stand in
 * mlo_ledger_actions. */
#ifndef MLO_REGISTRY_LEDGER_H
#define MLO_REGISTRY_LEDGER_H

#include "base/git_object.h"
#include "registry/audit.h"

/* A file as it is after the change. Paths are relative, of segments of letters, digits, '.', '_' and '-' that
 * do not begin with a '.': "production/cnn.json", "policy/project.yaml". What the ledger itself keeps there
 * cannot be named: README.md, allowed_signers, keys/. */
struct mlo_ledger_file {
    const char *path;
    const char *text; /* UTF-8; NULL: the file goes away */
    size_t size;      /* bytes of text */
};

/* Records what the entry `audit_seq` of the project's chain changed; one call for an entry. MLO_EINVAL for a
 * path or a text that cannot be; MLO_EEXISTS when the entry was recorded already. */
MLO_MUST_USE enum mlo_status mlo_ledger_append(struct mlo_db_conn *conn, int64_t project_id,
                                               int64_t audit_seq, const struct mlo_ledger_file *files,
                                               size_t count, struct mlo_error *err);
/* Records what the entry changed that was queued before it (mlo_audit_queue), queued as well. The files are
 * JSON of mlo_ledger_json, together with one member "audit_seq" of any depth: its value, MLO_LEDGER_SEQ,
 * becomes the number of the entry. */
#define MLO_LEDGER_SEQ 0
MLO_MUST_USE enum mlo_status mlo_ledger_queue(struct mlo_db_conn *conn, int64_t project_id,
                                              const struct mlo_ledger_file *files, size_t count,
                                              struct mlo_error *err);
/* Appends the value as text for people: indented, members sorted, a newline at the end. */
void mlo_ledger_json(const json_t *value, struct mlo_buf *out);

struct mlo_ledger_place {
    int64_t n, audit_seq; /* 0: nothing was written yet */
    struct mlo_git_id id;
};
/* The last commit that was written. */
MLO_MUST_USE enum mlo_status mlo_ledger_head(struct mlo_db_conn *conn, int64_t project_id,
                                             struct mlo_ledger_place *out, struct mlo_error *err);
/* Oldest first: {"items":[{n, id, audit_seq, commit (the object's text), files:[{path, text}]}], "next"}. */
MLO_MUST_USE enum mlo_status mlo_ledger_list(struct mlo_db_conn *conn, int64_t project_id,
                                             const struct mlo_page *page, json_t **out,
                                             struct mlo_error *err);

/* The audit actions that have a commit, ended by NULL. Verification misses the commit of an entry with one of
 * them. */
extern const char *const mlo_ledger_actions[];
bool mlo_ledger_action(const char *action);

#endif
