/* What the registry and the queue tell, as the API shows it; the pages read the same. Times end in _at, lists
 * have items and next. All results are new references. */
#ifndef MLO_HTTP_VIEWS_H
#define MLO_HTTP_VIEWS_H

#include "api/http/route.h"
#include "pipeline/service/service.h"

/* The variants of a version, each with accuracy, latency, size_ratio summed up from its evidence
 * (docs/api.md). */
MLO_MUST_USE enum mlo_status mlo_view_variants(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                               struct mlo_error *err);
/* Gives rows of mlo_variant_choice their evidence, accuracy and latency likewise, in one statement. */
MLO_MUST_USE enum mlo_status mlo_view_measured(struct mlo_db_conn *conn, int64_t project_id,
                                               json_t *const *variants, size_t count, struct mlo_error *err);
/* A run with its jobs; a list of runs. */
MLO_MUST_USE enum mlo_status mlo_view_run(struct mlo_db_conn *conn, int64_t project, int64_t run,
                                          json_t **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_view_runs(struct mlo_db_conn *conn, const struct mlo_run_filter *filter,
                                           json_t **out, struct mlo_error *err);
/* The result of checking an audit chain. */
MLO_MUST_USE enum mlo_status mlo_view_audit_verify(struct mlo_db_conn *conn, int64_t project,
                                                   const struct mlo_audit_head *remembered, json_t **out,
                                                   struct mlo_error *err);

/* Answers with the events of the run that {p} and {id} name as a stream, with ?after= and Last-Event-ID as
 * the API has them; besides them `log`, without a number, when its steps wrote something. Who asks for no
 * stream, a person, is sent to the page of the run (h_runs.c). */
MLO_MUST_USE enum mlo_status mlo_view_run_stream(struct mlo_request *req, struct mlo_error *err);

/* Adds a version to the model of that name, which is made where there is none, in one transaction: a refused
 * version leaves no empty model (h_models.c). */
MLO_MUST_USE enum mlo_status mlo_view_version_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                  int64_t project, const char *model,
                                                  const struct mlo_version_content *content,
                                                  struct mlo_version_info *out, struct mlo_error *err);
/* Submits the run that a body of POST …/runs (docs/api.md) asks for, to the project that {p} names
 * (h_runs.c). */
MLO_MUST_USE enum mlo_status mlo_view_submit(struct mlo_request *req, const json_t *body, int64_t *project,
                                             int64_t *run, struct mlo_error *err);

/* A promotion or rollback as it is asked for, by the API or by a form. */
struct mlo_move_request {
    bool rollback;
    struct mlo_promotion promotion; /* when not rollback */
    struct mlo_rollback back;       /* when rollback */
    bool dry_run;
};
/* Does it (dry_run: undoes it again) and gives the move, as in the history; of a promotion with `decision`,
 * as in registry/gates.h. A reason must be there. What gates refuse is MLO_EGATE, and the problem gets the
 * decision as a member; in a dry run it is an answer: {stage, kind, generation: null, decision}. */
MLO_MUST_USE enum mlo_status mlo_view_move(struct mlo_request *req, const struct mlo_move_request *move,
                                           json_t **out, struct mlo_error *err);

/* Revokes the token that {id} names, for an admin of the installation (h_projects.c). */
MLO_MUST_USE enum mlo_status mlo_view_token_revoke(struct mlo_request *req, struct mlo_error *err);
/* Revokes the token of this number, a text, of the member that {p} and {name} name; MLO_ENOTFOUND when it is
 * not that member's (h_members.c). */
MLO_MUST_USE enum mlo_status mlo_view_member_token_revoke(struct mlo_request *req, const char *id,
                                                          struct mlo_error *err);

/* The newest report of the variant that {p}, {m}, {v} and {name} name (of one run: ?run=ID). */
struct mlo_report_blob {
    int64_t version; /* its number */
    struct mlo_digest blob;
    uint64_t size_bytes;
};
MLO_MUST_USE enum mlo_status mlo_view_report(struct mlo_request *req, struct mlo_report_blob *out,
                                             struct mlo_error *err);
/* Answers with its JSON. */
MLO_MUST_USE enum mlo_status mlo_view_report_json(struct mlo_request *req, struct mlo_error *err);

/* Answers with the bytes of the variant that {p}, {m}, {v} and {name} name. */
MLO_MUST_USE enum mlo_status mlo_view_artifact(struct mlo_request *req, struct mlo_error *err);

#endif
