/* The API's handlers, one file a topic (h_*.c), and what they share. */
#ifndef MLO_HTTP_HANDLERS_IMPL_H
#define MLO_HTTP_HANDLERS_IMPL_H

#include "api/http/http_impl.h"
#include "api/http/views.h"

#define MLO_VERSION_TEXT "0.1.0"

extern const struct mlo_upload_body mlo_blob_upload;  /* h_blobs.c */
extern const struct mlo_upload_body mlo_piece_upload; /* h_uploads.c */

mlo_handler_fn h_metrics; /* metrics.c */
mlo_handler_fn h_openapi; /* openapi.c */
mlo_handler_fn h_healthz, h_readyz, h_me, h_queue, h_workers, h_worker_pause, h_worker_resume,
    h_worker_drain;                                                                    /* h_service.c */
mlo_handler_fn h_projects, h_project_create, h_tokens, h_token_create, h_token_revoke; /* h_projects.c */
mlo_handler_fn h_blob_get, h_blob_put, h_blob_lookup;                                  /* h_blobs.c */
mlo_handler_fn h_upload_parts;                                                         /* h_direct.c */
mlo_handler_fn h_members, h_member, h_member_set, h_member_remove, h_member_tokens, h_member_token_create,
    h_member_token_revoke; /* h_members.c */
/* Of a body that asks for a token: when it expires (0: never), and the stage that it is for (NULL: any). */
MLO_MUST_USE enum mlo_status mlo_request_token_life(const json_t *body, int64_t *expires_at_us,
                                                    struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_request_token_stage(const json_t *body, const char **stage,
                                                     struct mlo_error *err);
mlo_handler_fn h_upload_begin, h_upload_get, h_upload_append, h_upload_finish,
    h_upload_drop;                                                                     /* h_uploads.c */
mlo_handler_fn h_models, h_model, h_version_create, h_versions, h_version, h_variants; /* h_models.c */
mlo_handler_fn h_evidence, h_lineage, h_artifact_names, h_variant_artifact,
    h_variant_report;                                                      /* h_evidence.c */
mlo_handler_fn h_dataset_create, h_datasets, h_dataset, h_dataset_version; /* h_datasets.c */
mlo_handler_fn h_run_create, h_run_batch, h_runs_cancel, h_runs, h_run, h_run_events, h_run_log, h_run_trace,
    h_run_cancel, h_run_requeue, h_plan;                                              /* h_runs.c */
mlo_handler_fn h_project_queue, h_project_queue_change, h_usage;                      /* h_queue.c */
mlo_handler_fn h_stages, h_stage, h_promote, h_rollback, h_history, h_stage_artifact; /* h_stages.c */
mlo_handler_fn h_project_history;
mlo_handler_fn h_search;                                                                /* h_search.c */
mlo_handler_fn h_policy, h_policy_put, h_policy_history, h_decisions, h_decision;       /* h_gates.c */
mlo_handler_fn h_approvals, h_approve, h_approval_withdraw;                             /* h_approvals.c */
mlo_handler_fn h_quarantine, h_quarantine_release;                                      /* h_approvals.c */
mlo_handler_fn h_audit, h_audit_chain, h_audit_verify;                                  /* h_audit.c */
mlo_handler_fn h_ledger, h_git_head, h_git_refs, h_git_packs, h_git_object, h_git_pack; /* h_ledger.c */
mlo_handler_fn h_attestations, h_signature, h_reproductions, h_reproduce;               /* h_evidence.c */
mlo_handler_fn h_comments, h_comment_add;                                               /* h_comments.c */
mlo_handler_fn h_keys, h_allowed_signers, h_key_rotate, h_key_revoke;
mlo_handler_fn h_deletion_make, h_deletions, h_undelete, h_version_archive, h_version_unarchive, h_gc,
    h_fsck; /* h_upkeep.c */
mlo_handler_fn h_webhooks, h_webhook_create, h_webhook, h_webhook_change, h_webhook_remove, h_webhook_rotate,
    h_webhook_ping, h_webhook_deliveries, h_webhook_delivery, h_webhook_replay;
mlo_handler_fn h_schedules, h_schedule_create, h_schedule, h_schedule_pause, h_schedule_resume,
    h_schedule_remove, h_schedule_fire, h_schedule_firings; /* h_schedules.c */
mlo_handler_fn h_mlflow_model, h_mlflow_models, h_mlflow_latest, h_mlflow_latest_post, h_mlflow_alias,
    h_mlflow_version, h_mlflow_versions, h_mlflow_download_uri, h_mlflow_server; /* h_mlflow.c */
mlo_handler_fn h_mlflow_artifacts, h_mlflow_file, h_mlflow_variant_file,
    h_mlflow_stage_file; /* mlflow_files.c */

/* The recipe that a body names ("recipe_name") or holds ("recipe", "recipe_file"), with "set" applied. *out
 * is yours, also after a failure (h_runs.c). */
MLO_MUST_USE enum mlo_status mlo_request_recipe(const json_t *body, struct mlo_recipe **out,
                                                struct mlo_error *err);

/* run_stream.c: whether the client rather has a stream of events, and such an answer: what happened in the
 * run after the event `after`, and what happens, until it ends; with `logs`, that its steps wrote something.
 */
bool mlo_wants_stream(const struct mlo_request *req);
MLO_MUST_USE enum mlo_status mlo_reply_run_stream(struct mlo_request *req, int64_t run, int64_t after,
                                                  bool logs, struct mlo_error *err);

/* MLO_OK for a stage's name, else `wrong` with the place and the names there are. */
MLO_MUST_USE enum mlo_status mlo_request_stage(const char *stage, const char *where, enum mlo_status wrong,
                                               struct mlo_error *err);

/* A list of the model's that may be asked for one stage alone (?stage=), as a page. */
typedef enum mlo_status mlo_stage_list_fn(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                          const struct mlo_page *page, json_t **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_reply_stage_list(struct mlo_request *req, mlo_stage_list_fn *list,
                                                  struct mlo_error *err);

/* "variants" of a body, target to variant; *count of at most MLO_CHOICES_MAX. Borrowed from the body. */
#define MLO_CHOICES_MAX 16
MLO_MUST_USE enum mlo_status mlo_request_choices(const json_t *body, struct mlo_release_choice *choices,
                                                 size_t *count, struct mlo_error *err);

/* The body's array `name`, of 1 to `most`; borrowed. */
MLO_MUST_USE enum mlo_status mlo_request_items(const json_t *body, const char *name, size_t most,
                                               const json_t **out, struct mlo_error *err);

/* {"items": array, "next": null}; takes over the array. */
json_t *mlo_list_of(json_t *items);

/* The blobs of a manifest, read from "files"; texts are borrowed from the body. */
#define MLO_FILES_MAX 64
struct mlo_files {
    struct mlo_manifest_blob blobs[MLO_FILES_MAX];
    size_t count;
};
/* What uploads of models and of datasets say alike; borrowed from the request. */
struct mlo_upload_request {
    json_t *json, *metadata; /* an object, or NULL */
    const char *description; /* "" when it is not said */
    struct mlo_files *files;
};
MLO_MUST_USE enum mlo_status mlo_upload_request_read(struct mlo_request *req, struct mlo_upload_request *out,
                                                     struct mlo_error *err);
/* Renames the member `from` of an object to `to`, when it is there. */
void mlo_json_rename(json_t *object, const char *from, const char *to);

/* Whether the bytes may come from the store's own address: the query argument "redirect", and what hinders
 * it. */
MLO_MUST_USE enum mlo_status mlo_request_may_redirect(const struct mlo_request *req, bool *may,
                                                      struct mlo_error *err);
/* The bytes with their headers, or 307 to where the store has them, when it may be so; `file_name` (or NULL)
 * is what they are saved as. Whether the request may have them was asked before. */
MLO_MUST_USE enum mlo_status mlo_reply_artifact(struct mlo_request *req, const struct mlo_digest *digest,
                                                const char *file_name, struct mlo_error *err);

#endif
