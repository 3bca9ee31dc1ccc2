/* The verbs that talk to a server: HTTP by libcurl, names of models, common output. docs/api.md is the
 * contract. */
#ifndef MLO_CLI_CLIENT_H
#define MLO_CLI_CLIENT_H

#include "api/cli/core/cli.h"

extern const struct mlo_cli_verb mlo_verb_push, mlo_verb_data_push, mlo_verb_data_pull, mlo_verb_submit,
    mlo_verb_runs, mlo_verb_cancel, mlo_verb_variants, mlo_verb_promote, mlo_verb_rollback, mlo_verb_history,
    mlo_verb_approve, mlo_verb_approvals, mlo_verb_quarantine_list, mlo_verb_quarantine_release,
    mlo_verb_policy_show, mlo_verb_policy_set, mlo_verb_policy_check, mlo_verb_lineage, mlo_verb_report,
    mlo_verb_audit, mlo_verb_keys, mlo_verb_attest_show, mlo_verb_attest_verify, mlo_verb_pull,
    mlo_verb_models, mlo_verb_datasets, mlo_verb_search, mlo_verb_status, mlo_verb_reproduce,
    mlo_verb_comment, mlo_verb_delete, mlo_verb_data_delete, mlo_verb_undelete, mlo_verb_deletions,
    mlo_verb_archive, mlo_verb_unarchive, mlo_verb_gc, mlo_verb_fsck, mlo_verb_requeue, mlo_verb_plan,
    mlo_verb_queue_show, mlo_verb_queue_set, mlo_verb_usage;
extern const struct mlo_cli_verb mlo_verb_runs_log, mlo_verb_runs_trace, mlo_verb_workers_list,
    mlo_verb_workers_pause, mlo_verb_workers_resume, mlo_verb_workers_drain;
extern const struct mlo_cli_verb mlo_verb_webhooks_list, mlo_verb_webhooks_add, mlo_verb_webhooks_set,
    mlo_verb_webhooks_remove, mlo_verb_webhooks_rotate, mlo_verb_webhooks_ping, mlo_verb_webhooks_deliveries,
    mlo_verb_webhooks_replay, mlo_verb_webhooks_events;
extern const struct mlo_cli_verb mlo_verb_schedule_add, mlo_verb_schedule_list, mlo_verb_schedule_show,
    mlo_verb_schedule_pause, mlo_verb_schedule_resume, mlo_verb_schedule_remove, mlo_verb_schedule_run;
extern const struct mlo_cli_verb mlo_verb_watch, mlo_verb_compare;
extern const struct mlo_cli_verb mlo_verb_members_list, mlo_verb_members_set, mlo_verb_members_remove,
    mlo_verb_members_token, mlo_verb_members_tokens, mlo_verb_members_revoke;

#define MLO_OPTION_URL                                                                                       \
    {"url", 0, "URL", "the server (MLOPT_URL; the token comes from MLOPT_TOKEN or the config file)"},        \
    {                                                                                                        \
        "ca-file", 0, "FILE", "trust this certificate too, or what it signed (MLOPT_CA_FILE)"                \
    }

/* What mlo_client_add_recipe reads, with those of a search. */
#define MLO_OPTIONS_RECIPE                                                                                   \
    {"recipe", 0, "FILE|NAME", "a recipe file, or one that is built in (int8-cpu)"},                         \
        {"goal", 0, "GOAL", "of a search: 'accuracy_drop<=0.5pt, min latency' (without --recipe: search)"},  \
        {"budget", 0, "TIME|JOBS", "of a search: 30m, or a number of jobs"},                                 \
    {                                                                                                        \
        "set", 0, "STEP.OPTION=VALUE", "changes an option of the recipe, or a dataset: data.ROLE=NAME",      \
            NULL, true                                                                                       \
    }

/* What mlo_client_facts reads. */
#define MLO_OPTIONS_FACTS                                                                                    \
    {"code", 0, "DIR", "the training code: remote, commit and dirtiness of this checkout"},                  \
        {"dataset", 0, "NAME[@V]", "a dataset of the project that it was trained on", NULL, true},           \
        {"param", 0, "KEY=VALUE", "a parameter of the training", NULL, true},                                \
        {"metric", 0, "KEY=NUMBER", "a metric of the training, as declared", NULL, true},                    \
        {"tag", 0, "KEY[=VALUE]", "a tag", NULL, true},                                                      \
        {"licence", 0, "TEXT", "an SPDX expression: Apache-2.0"},                                            \
    {                                                                                                        \
        "facts", 0, "FILE.json", "all of these as JSON (docs/facts.md); options go over it"                  \
    }

/* --- names ---------------------------------------------------------------------------------------------- */

/* PROJECT/MODEL[@AT][/VARIANT]; AT is a version's number, "latest" or a stage. */
struct mlo_client_ref {
    char project[104], name[104];
    char at[104];      /* "" when absent */
    char variant[104]; /* "" when absent */
};
/* MLO_EUSAGE shows the expected form. */
MLO_MUST_USE enum mlo_status mlo_client_ref_parse(const char *text, struct mlo_client_ref *out,
                                                  struct mlo_error *err);
/* Refuses a variant, or an @…, where the verb has no use for it. */
MLO_MUST_USE enum mlo_status mlo_client_ref_plain(const struct mlo_client_ref *ref, bool at_allowed,
                                                  bool variant_allowed, struct mlo_error *err);
/* The version part for a path: the number or "latest"; MLO_EUSAGE when it is a stage's name. */
MLO_MUST_USE enum mlo_status mlo_client_ref_version(const struct mlo_client_ref *ref, const char **out,
                                                    struct mlo_error *err);
bool mlo_client_ref_is_version(const struct mlo_client_ref *ref); /* a number or "latest", or nothing */

/* --- HTTP -------------------------------------------------------------------------------------------------
 */

struct mlo_client;

MLO_MUST_USE enum mlo_status mlo_client_open(struct mlo_cli *cli, struct mlo_client **out,
                                             struct mlo_error *err);
void mlo_client_close(struct mlo_client *client);
const char *mlo_client_url(const struct mlo_client *client);
struct mlo_cli *mlo_client_cli(const struct mlo_client *client); /* that it was opened for */
bool mlo_client_has_token(const struct mlo_client *client);

/* Appends a path: "%s" takes a text, percent-encoded, "%d" a long long. */
void mlo_client_path(struct mlo_buf *out, const char *fmt, ...);

struct mlo_response {
    long http;
    json_t *json;                      /* the body, when it was JSON; owned */
    char etag[96];                     /* without quotes */
    char digest[MLO_DIGEST_TEXT_SIZE]; /* X-Mlopt-Digest, or an ETag that is one */
    char variant[104], version[24];
    char filename[128]; /* of Content-Disposition, its last path component; "" when absent */
};
void mlo_response_clear(struct mlo_response *response);

#define MLO_CLIENT_KEY "Idempotency-Key: "
/* The header that --idempotency-key says, in *out; *header is NULL without it. MLO_EUSAGE: it breaks a line;
 * MLO_EINVAL: the server would refuse it. */
MLO_MUST_USE enum mlo_status mlo_client_key(const struct mlo_cli *cli, struct mlo_buf *out,
                                            const char **header, struct mlo_error *err);
/* One request with a JSON body (NULL: none) and a JSON answer. `header` ("If-Match: …") may be NULL. An
 * answer of 400 and above becomes an error with the server's words; cli->request_id is set from every answer.
 * A POST takes effect once, and is sent again where its answer was lost or the server says "later": `header`
 * may be the key, else it has one of its own. */
MLO_MUST_USE enum mlo_status mlo_client_call(struct mlo_client *client, const char *method, const char *path,
                                             const char *header, const json_t *body, struct mlo_response *out,
                                             struct mlo_error *err);
/* The same for a verb that makes one request: opens and closes the client. *out (NULL: not wanted) is yours.
 */
MLO_MUST_USE enum mlo_status mlo_client_ask(struct mlo_cli *cli, const char *method,
                                            const struct mlo_buf *path, const json_t *body, json_t **out,
                                            struct mlo_error *err);
/* GET. */
MLO_MUST_USE enum mlo_status mlo_client_get(struct mlo_client *client, const char *path, json_t **out,
                                            struct mlo_error *err);
/* GET of an answer that is no JSON: its bytes are appended to `out`. */
MLO_MUST_USE enum mlo_status mlo_client_get_bytes(struct mlo_client *client, const char *path,
                                                  struct mlo_buf *out, struct mlo_error *err);
/* All pages of a list as one array; at most `max` items (0: all). `path` may hold a query. */
MLO_MUST_USE enum mlo_status mlo_client_list(struct mlo_client *client, const char *path, size_t max,
                                             json_t **items, struct mlo_error *err);
/* The list `what` ("history?stage=staging") of the model that the verb's first argument names. With -o json
 * it is printed and *items is NULL; else *items is yours, to show as a table. */
MLO_MUST_USE enum mlo_status mlo_client_model_list(struct mlo_cli *cli, const char *what, size_t max,
                                                   json_t **items, struct mlo_error *err);
/* A part of an open file. */
struct mlo_client_part {
    int fd;
    uint64_t first, size, file_size;
};
/* PUT or PATCH (with Content-Range) of a part, streaming; `progress` counts the whole file. */
MLO_MUST_USE enum mlo_status mlo_client_send_part(struct mlo_client *client, const char *method,
                                                  const char *path, const struct mlo_client_part *part,
                                                  struct mlo_cli_progress *progress, struct mlo_response *out,
                                                  struct mlo_error *err);
/* Whether the project has the blob, undamaged: it need not be sent. */
MLO_MUST_USE enum mlo_status mlo_client_has_blob(struct mlo_client *client, const char *project,
                                                 const struct mlo_digest *digest, bool *there,
                                                 struct mlo_error *err);
/* The file's bytes become the blob `digest` of the project: in one request, or, when it is large, in pieces;
 * those that arrived before this or an earlier process of the same user was cut off are not sent again, and
 * nothing is when the upload was finished meanwhile (its answer was lost, or another process sent the file).
 */
MLO_MUST_USE enum mlo_status mlo_client_send_file(struct mlo_client *client, const char *project,
                                                  const char *file, const struct mlo_digest *digest,
                                                  struct mlo_error *err);
/* GET into a file "<dir>/<name>", atomically, digest checked: against `expected` where given, else against
 * what the server says. The bytes may come from where the server sends us (its S3 store), without our token;
 * when that does not work they come through the server. `name` NULL: the name that the server gives, else
 * `fallback`. *written is yours (free). */
MLO_MUST_USE enum mlo_status mlo_client_download(struct mlo_client *client, const char *path, const char *dir,
                                                 const char *name, const char *fallback, const char *expected,
                                                 char **written, struct mlo_response *out,
                                                 struct mlo_error *err);

/* --- shared pieces ----------------------------------------------------------------------------- */

/* Downloads a version of a dataset into `dir`, with its dataset.json. *row, what the server says of it, is
 * yours; {path, digest} of each file is appended to `paths`. */
MLO_MUST_USE enum mlo_status mlo_client_data(struct mlo_client *client, const char *project, const char *name,
                                             const char *version, const char *dir, json_t **row,
                                             json_t *paths, struct mlo_error *err);
/* `reproduce --local`: what the statements of a variant say, done again by this program. */
MLO_MUST_USE enum mlo_status mlo_client_reproduce_here(struct mlo_cli *cli, struct mlo_error *err);

/* Adds what --recipe (a file, or a built-in one's name) and --set say to the body of a request; `searches`:
 * the verb has --goal and --budget too. */
MLO_MUST_USE enum mlo_status mlo_client_add_recipe(const struct mlo_cli *cli, bool searches, json_t *body,
                                                   struct mlo_error *err);

/* Makes the project when it is not there and the token may. */
MLO_MUST_USE enum mlo_status mlo_client_ensure_project(struct mlo_client *client, const char *project,
                                                       struct mlo_error *err);
/* Names of the projects the token sees, as an array of strings. `only` (may be NULL) is the single answer. */
MLO_MUST_USE enum mlo_status mlo_client_projects(struct mlo_client *client, const char *only, json_t **out,
                                                 struct mlo_error *err);

/* A file of an upload, and what it is there. */
struct mlo_client_file {
    const char *path, *role, *media_type;
    struct mlo_digest digest; /* of mlo_client_upload */
    uint64_t size_bytes;
};
/* All files of an upload: their digests, one question which of them the project lacks, those, and their rows
 * for the manifest, appended to the array `rows`. */
MLO_MUST_USE enum mlo_status mlo_client_upload(struct mlo_client *client, const char *project,
                                               struct mlo_client_file *files, size_t count, json_t *rows,
                                               struct mlo_error *err);

/* `submit` of several models of a project: with what `body` says of how, in one request. */
MLO_MUST_USE enum mlo_status mlo_client_submit_many(struct mlo_cli *cli, json_t *body, struct mlo_error *err);
/* `plan` and `submit --dry-run`, of one model or of several of a project: each stands for itself. */
MLO_MUST_USE enum mlo_status mlo_client_plan(struct mlo_cli *cli, struct mlo_error *err);
/* The arguments, which are of one project, as "models": [{"model", "version" (absent: the latest)}] of the
 * object `body`. MLO_EUSAGE where they are of two, or more than one submission takes. */
MLO_MUST_USE enum mlo_status mlo_client_read_models(const struct mlo_cli *cli, char project[104],
                                                    json_t *body, struct mlo_error *err);
/* MLO_OK, or that of the first item with a "problem": {"code", "detail", "where", "hint"}; `verb`: what it
 * was not. */
MLO_MUST_USE enum mlo_status mlo_client_many_outcome(const json_t *items, const char *verb,
                                                     struct mlo_error *err);
/* `cancel` of several runs: one request a project. */
MLO_MUST_USE enum mlo_status mlo_client_cancel_many(struct mlo_cli *cli, struct mlo_error *err);

/* Follows a run to its end, showing progress; *run is what it came to, yours. MLO_ETIMEOUT after timeout_s
 * (0: never): the run goes on. */
MLO_MUST_USE enum mlo_status mlo_client_wait_run(struct mlo_client *client, struct mlo_cli *cli,
                                                 const char *project, int64_t id, int64_t timeout_s,
                                                 json_t **run, struct mlo_error *err);
/* Whether a request that failed is worth another try: that can help, and the server answered a minute ago or
 * later (mlo_clock_ns). */
bool mlo_client_may_ask_again(enum mlo_status status, uint64_t last_answer_ns);
/* The number of a run; MLO_EUSAGE when it is none. */
MLO_MUST_USE enum mlo_status mlo_client_run_id(const char *text, int64_t *id, struct mlo_error *err);
/* A run by its number, in the project `only` or (NULL) in those that the token sees; yours. */
MLO_MUST_USE enum mlo_status mlo_client_find_run(struct mlo_client *client, const char *only, int64_t id,
                                                 json_t **out, struct mlo_error *err);
/* What a run that has ended left behind: the variants of its version; with -o json the run, too. */
MLO_MUST_USE enum mlo_status mlo_client_print_end(struct mlo_client *client, struct mlo_cli *cli,
                                                  const json_t *run, struct mlo_error *err);
/* How a finished run ends the program: MLO_OK, or why it failed. */
MLO_MUST_USE enum mlo_status mlo_client_run_outcome(const json_t *run, struct mlo_error *err);
/* What is said of a version: --facts, and over it the other MLO_OPTIONS_FACTS. *out is yours, {} when nothing
 * is said. */
MLO_MUST_USE enum mlo_status mlo_client_facts(const struct mlo_cli *cli, const char *project, json_t **out,
                                              struct mlo_error *err);
/* {commit, dirty, remote} of the work tree that the folder is in; remote, without credentials, absent when
 * there is none. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_client_code(const char *dir, json_t **out, struct mlo_error *err);

/* What the search of a run found so far; nothing for another run. */
MLO_MUST_USE enum mlo_status mlo_client_print_front(const json_t *run, struct mlo_error *err);
/* The variants of a version as a table for people. */
MLO_MUST_USE enum mlo_status mlo_client_print_variants(const json_t *items, struct mlo_error *err);
/* --reason, which must say something. */
MLO_MUST_USE enum mlo_status mlo_client_reason(struct mlo_cli *cli, const char **reason,
                                               struct mlo_error *err);
/* POSTs {"reason": reason}. */
MLO_MUST_USE enum mlo_status mlo_client_post_reason(struct mlo_client *client, const char *path,
                                                    const char *reason, struct mlo_response *out,
                                                    struct mlo_error *err);
/* A stage as it is now, with its ETag. */
MLO_MUST_USE enum mlo_status mlo_client_read_stage(struct mlo_client *client,
                                                   const struct mlo_client_ref *ref, const char *stage,
                                                   struct mlo_response *out, struct mlo_error *err);
/* What `promote` and `approve` ask for: PROJECT/MODEL@V --variant … --to STAGE --reason TEXT. `body` is the
 * request to promotions; --variant without a target is for the variant's own. Close it also after a failure.
 */
struct mlo_client_promotion {
    struct mlo_client *client;
    struct mlo_client_ref ref;
    const char *to, *reason;
    char version[24];
    json_t *body;
};
MLO_MUST_USE enum mlo_status mlo_client_promotion_open(struct mlo_cli *cli, bool dry_run,
                                                       struct mlo_client_promotion *out,
                                                       struct mlo_error *err);
void mlo_client_promotion_close(struct mlo_client_promotion *p);
/* POSTs a move ("promotions", "rollbacks") with the generation that was read. */
MLO_MUST_USE enum mlo_status mlo_client_move(struct mlo_client *client, const struct mlo_client_ref *ref,
                                             const char *kind, const char *etag, const json_t *body,
                                             struct mlo_response *out, struct mlo_error *err);
/* What gates said of a promotion (registry/gates.h) as a table for people. */
MLO_MUST_USE enum mlo_status mlo_client_print_gates(const json_t *decision, struct mlo_error *err);
/* Appends the texts of a list: "a b c". */
void mlo_client_join(const json_t *list, struct mlo_buf *out);
/* A row of the table for one of the things it lists. */
typedef void mlo_client_row_fn(struct mlo_table *table, const json_t *item);
/* A list (an array) as a table of these columns, or, with -o json, as it is. */
MLO_MUST_USE enum mlo_status mlo_client_print_list(const struct mlo_cli *cli, const json_t *items,
                                                   const char *columns, mlo_client_row_fn *row,
                                                   struct mlo_error *err);
/* One thing as such a table of one row. */
MLO_MUST_USE enum mlo_status mlo_client_print_item(const json_t *item, const char *columns,
                                                   mlo_client_row_fn *row, struct mlo_error *err);
/* "2026-01-31 12:34:56" from an RFC 3339 time, into the caller's buffer; "-" for NULL. */
char *mlo_client_time(const json_t *object, const char *key, char out[32]);
/* "0123456789ab" from "sha256:0123456789ab…", into the caller's buffer. */
char *mlo_client_digest(const json_t *object, const char *key, char out[16]);

#endif
