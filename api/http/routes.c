/* The API's routes. A row per method and path; docs/api.md is the contract in words. */
#include "api/http/handlers_impl.h"

#define P "/v1/projects/{p}"
#define M P "/models/{m}"
#define V M "/versions/{v}"
#define D P "/datasets/{d}"

#define W P "/webhooks"
#define S P "/schedules"

#define READ(path_, handler_, docs_)                                                                         \
    {                                                                                                        \
        .method = "GET", .path = path_, .handler = handler_, .role = MLO_VIEWER, .docs = docs_               \
    }
#define READ_OFTEN(path_, handler_, docs_)                                                                   \
    {                                                                                                        \
        .method = "GET", .path = path_, .handler = handler_, .role = MLO_VIEWER, .gathered = true,           \
        .docs = docs_                                                                                        \
    }
/* What creates or acts takes effect once under an Idempotency-Key… */
#define POST(path_, role_, handler_, docs_)                                                                  \
    {                                                                                                        \
        .method = "POST", .path = path_, .handler = handler_, .role = role_, .once = true,                   \
        .max_body = MLO_BODY_JSON_MAX, .docs = docs_                                                         \
    }
/* …and shows a secret this once. */
#define POST_SECRET(path_, role_, handler_, secret_, docs_)                                                  \
    {                                                                                                        \
        .method = "POST", .path = path_, .handler = handler_, .role = role_, .once = true,                   \
        .secret = secret_, .max_body = MLO_BODY_JSON_MAX, .docs = docs_                                      \
    }
/* The same, but that it may be asked for as a dry run. */
#define POST_OR_DRY(path_, role_, handler_, docs_)                                                           \
    {                                                                                                        \
        .method = "POST", .path = path_, .handler = handler_, .role = role_, .once = true, .dry = true,      \
        .max_body = MLO_BODY_JSON_MAX, .docs = docs_                                                         \
    }
/* What only answers, goes on where it stands, or makes what ends by itself: repeated it does no harm. */
#define ASK(path_, role_, handler_, docs_)                                                                   \
    {                                                                                                        \
        .method = "POST", .path = path_, .handler = handler_, .role = role_, .max_body = MLO_BODY_JSON_MAX,  \
        .docs = docs_                                                                                        \
    }

/* What moves or judges a stage. */
#define STAGE_POST(path_, role_, handler_, docs_)                                                            \
    {                                                                                                        \
        .method = "POST", .path = path_, .handler = handler_, .role = role_, .once = true, .by_stage = true, \
        .max_body = MLO_BODY_JSON_MAX, .docs = docs_                                                         \
    }

#define PUT(path_, role_, handler_, docs_)                                                                   \
    {                                                                                                        \
        .method = "PUT", .path = path_, .handler = handler_, .role = role_, .max_body = MLO_BODY_JSON_MAX,   \
        .docs = docs_                                                                                        \
    }

#define ADMIN(method_, path_, handler_, docs_)                                                               \
    {                                                                                                        \
        .method = method_, .path = path_, .handler = handler_, .role = MLO_ADMIN, .docs = docs_              \
    }

/* What git asks of a repository: its token comes as a password. */
#define GIT(path_, handler_, docs_)                                                                          \
    {                                                                                                        \
        .method = "GET", .path = P "/ledger.git/" path_, .handler = handler_, .basic = true,                 \
        .role = MLO_VIEWER, .docs = docs_                                                                    \
    }

/* MLflow's client may sign in with a user name and the token as the password. */
#define MLFLOW "/api/2.0/mlflow/"
#define MLFLOW_FILES "/api/2.0/mlflow-artifacts/artifacts"
#define MLFLOW_GET(path_, handler_, docs_)                                                                   \
    {                                                                                                        \
        .method = "GET", .path = path_, .handler = handler_, .basic = true, .role = MLO_VIEWER,              \
        .docs = docs_                                                                                        \
    }

static const struct mlo_route ROUTES[] = {
    {.method = "GET", .path = "/healthz", .handler = h_healthz, .open = true, .docs = "The process lives."},
    {.method = "GET",
     .path = "/readyz",
     .handler = h_readyz,
     .open = true,
     .docs =
         "Requests may come: PostgreSQL with this program's schema and the blob store answer, and it is not "
         "about to stop."},

    READ("/metrics", h_metrics,
         "What this server and the database count, for Prometheus; of all projects: for tokens of all."),

    {.method = "GET",
     .path = "/v1/openapi.json",
     .handler = h_openapi,
     .open = true,
     .docs = "This contract, for programs; /docs/api is the same for people."},
    READ("/v1/me", h_me, "Who the token stands for."),
    READ("/v1/queue", h_queue, "What is queued, and whether anybody can take it."),
    READ("/v1/workers", h_workers, "The workers of the last day."),
    POST("/v1/workers/{id}/pause", MLO_ADMIN, h_worker_pause,
         "A worker goes on with its jobs, and takes no more."),
    POST("/v1/workers/{id}/resume", MLO_ADMIN, h_worker_resume, "A paused worker takes jobs again."),
    POST("/v1/workers/{id}/drain", MLO_ADMIN, h_worker_drain, "A worker leaves when its jobs are done."),
    {.method = "GET",
     .path = "/v1/tokens",
     .handler = h_tokens,
     .role = MLO_ADMIN,
     .docs = "All tokens, without their texts."},
    POST_SECRET("/v1/tokens", MLO_ADMIN, h_token_create, "token",
                "Makes a token; its text is shown this once."),
    {.method = "DELETE",
     .path = "/v1/tokens/{id}",
     .handler = h_token_revoke,
     .role = MLO_ADMIN,
     .docs = "Revokes a token."},

    READ("/v1/projects", h_projects, "The projects that the token may see."),
    POST("/v1/projects", MLO_ADMIN, h_project_create, "Makes a project."),

    READ(P "/members", h_members, "The members of a project: people and service accounts, with their roles."),
    READ(P "/members/{name}", h_member, "A member of a project."),
    PUT(P "/members/{name}", MLO_ADMIN, h_member_set,
        "Adds a member, or changes all of it: its role in the project and, higher, in a stage."),
    ADMIN("DELETE", P "/members/{name}", h_member_remove, "Removes a member; its tokens end with it."),
    ADMIN("GET", P "/members/{name}/tokens", h_member_tokens, "A member's tokens, without their texts."),
    POST_SECRET(P "/members/{name}/tokens", MLO_ADMIN, h_member_token_create, "token",
                "Makes a token for a member, for all or less than it may; its text is shown this once."),
    ADMIN("DELETE", P "/members/{name}/tokens/{id}", h_member_token_revoke, "Revokes a member's token."),

    READ(P "/blobs/{digest}", h_blob_get,
         "The bytes of a blob of this project; HEAD tells whether it is there."),
    {.method = "PUT",
     .path = P "/blobs/{digest}",
     .handler = h_blob_put,
     .role = MLO_SUBMITTER,
     .max_body = MLO_BODY_BLOB_MAX,
     .upload = &mlo_blob_upload,
     .docs = "Uploads bytes by their digest, streaming."},
    ASK(P "/blobs/lookup", MLO_VIEWER, h_blob_lookup, "Which of many blobs this project has."),
    ASK(P "/uploads", MLO_SUBMITTER, h_upload_begin, "Begins an upload in pieces."),
    {.method = "GET",
     .path = P "/uploads/{id}",
     .handler = h_upload_get,
     .role = MLO_SUBMITTER,
     .docs = "Where an upload stands."},
    ASK(P "/uploads/{id}/parts", MLO_SUBMITTER, h_upload_parts,
        "Addresses of the bucket for parts of a direct upload."),
    {.method = "PATCH",
     .path = P "/uploads/{id}",
     .handler = h_upload_append,
     .role = MLO_SUBMITTER,
     .max_body = MLO_BODY_BLOB_MAX,
     .upload = &mlo_piece_upload,
     .docs = "Appends a piece to an upload."},
    {.method = "PUT",
     .path = P "/uploads/{id}",
     .handler = h_upload_finish,
     .role = MLO_SUBMITTER,
     .docs = "Ends an upload: its bytes become a blob, if they have the digest."},
    {.method = "DELETE",
     .path = P "/uploads/{id}",
     .handler = h_upload_drop,
     .role = MLO_SUBMITTER,
     .docs = "Forgets an upload and its bytes."},

    READ(P "/models", h_models, "The models of a project; q searches."),
    READ(P "/search", h_search,
         "The versions that fit a filter of their metrics, parameters, tags, code and data."),
    READ(M, h_model, "A model with its stages."),
    READ(M "/versions", h_versions, "The versions of a model, newest first."),
    POST(M "/versions", MLO_SUBMITTER, h_version_create,
         "Adds a version out of uploaded blobs; makes the model when absent."),
    READ_OFTEN(V, h_version, "A version with its files."),
    READ(V "/variants", h_variants, "The variants of a version with size, accuracy and latency as measured."),
    READ(V "/evidence", h_evidence, "What was measured."),
    READ(V "/lineage", h_lineage, "What an artifact came from, and what came from it."),
    READ(P "/artifacts/{digest}/names", h_artifact_names, "The variants whose bytes an artifact is now."),
    READ(V "/variants/{name}/artifact", h_variant_artifact, "The bytes of a variant."),

    READ(V "/variants/{name}/attestations", h_attestations,
         "The signed statements of how a variant, and what it came from, was made."),
    READ(V "/variants/{name}/signature", h_signature,
         "What a variant takes and gives, as declared and as a worker read it."),
    READ(V "/variants/{name}/reproductions", h_reproductions,
         "What came out when a variant, and what it came from, was made again."),
    POST(V "/variants/{name}/reproductions", MLO_SUBMITTER, h_reproduce,
         "Submits a run that makes a variant again and compares."),
    READ(V "/variants/{name}/report", h_variant_report, "What explains a variant, as JSON."),

    READ(V "/comments", h_comments, "What was said of a version and its releases, newest first."),
    POST(V "/comments", MLO_SUBMITTER, h_comment_add, "Says something of a version."),
    READ(M "/releases/{r}/comments", h_comments, "What was said of a release, newest first."),
    POST(M "/releases/{r}/comments", MLO_SUBMITTER, h_comment_add, "Says something of a release."),

    POST(V "/archive", MLO_PROMOTER, h_version_archive,
         "Archives a version: kept, but neither latest nor promoted; needs a reason."),
    POST(V "/unarchive", MLO_PROMOTER, h_version_unarchive, "Takes it back; needs a reason."),
    READ(P "/deletions", h_deletions, "What was deleted, and until when it can be brought back."),
    POST_OR_DRY(P "/deletions", MLO_ADMIN, h_deletion_make,
                "Deletes a model, a version, a variant, a dataset or a version of it, unless something "
                "refers to it."),
    POST(P "/deletions/{id}/undo", MLO_ADMIN, h_undelete, "Brings back what was deleted; needs a reason."),

    READ(P "/datasets", h_datasets, "The datasets of a project."),
    READ(D, h_dataset, "A dataset's latest version."),
    POST(D "/versions", MLO_SUBMITTER, h_dataset_create,
         "Adds a version of a dataset out of uploaded blobs."),
    READ(D "/versions/{v}", h_dataset_version, "A version of a dataset."),

    READ(P "/runs", h_runs, "The runs of a project, newest first."),
    POST(P "/runs", MLO_SUBMITTER, h_run_create, "Submits a recipe on a version."),
    ASK(P "/plans", MLO_SUBMITTER, h_plan,
        "What submitting would do: its jobs, what is cached, how long it takes."),
    READ(P "/runs/{id}", h_run, "A run with its jobs and their progress."),
    READ(P "/runs/{id}/events", h_run_events,
         "What happened in a run after a number, waiting for it if asked to."),
    READ(P "/runs/{id}/log", h_run_log, "What the steps of a run wrote on stderr."),
    READ(P "/runs/{id}/trace", h_run_trace,
         "Where a run's time went: waiting, attempts, their phases; as OpenTelemetry's JSON if asked for."),
    POST(P "/runs/{id}/cancel", MLO_SUBMITTER, h_run_cancel, "Cancels a run."),
    POST(P "/runs/cancel", MLO_SUBMITTER, h_runs_cancel, "Cancels many runs, each for itself."),
    POST(P "/runs/batch", MLO_SUBMITTER, h_run_batch, "Submits a recipe on many versions, each for itself."),
    POST(P "/runs/{id}/requeue", MLO_SUBMITTER, h_run_requeue, "Takes up a run again that failed."),

    READ(P "/queue", h_project_queue, "A project's share of the workers, its limits, what waits."),
    PUT(P "/queue", MLO_ADMIN, h_project_queue_change, "Changes what is given of it; pauses it."),
    READ(P "/usage", h_usage, "What a project's attempts used, by month; as CSV if asked for."),

    READ(S, h_schedules, "The schedules of a project, with their next and last times."),
    POST(S, MLO_SUBMITTER, h_schedule_create,
         "Adds a schedule: what a stage holds is measured again by the clock; for production by a promoter."),
    READ(S "/{name}", h_schedule, "A schedule with its recipe."),
    {.method = "DELETE",
     .path = S "/{name}",
     .handler = h_schedule_remove,
     .role = MLO_SUBMITTER,
     .docs = "Removes a schedule; its runs stay; of production by a promoter."},
    POST(S "/{name}/pause", MLO_SUBMITTER, h_schedule_pause,
         "Pauses a schedule; of production by a promoter."),
    POST(S "/{name}/resume", MLO_SUBMITTER, h_schedule_resume,
         "A paused schedule fires again from its next time on; of production by a promoter."),
    READ(S "/{name}/firings", h_schedule_firings,
         "When a schedule fired, and what came of it, newest first."),
    POST(S "/{name}/firings", MLO_SUBMITTER, h_schedule_fire, "Fires a schedule now."),

    READ(M "/stages", h_stages, "Staging and production of a model."),
    READ(M "/stages/{s}", h_stage, "A stage; its ETag is what a move must send as If-Match."),
    READ(M "/stages/{s}/artifact", h_stage_artifact, "The bytes of what the stage holds for a target."),
    {.method = "POST",
     .path = M "/promotions",
     .handler = h_promote,
     .role = MLO_PROMOTER,
     .once = true,
     .dry = true,
     .by_stage = true,
     .max_body = MLO_BODY_JSON_MAX,
     .docs = "Puts a release in a stage; needs If-Match and a reason."},
    POST_OR_DRY(M "/rollbacks", MLO_VIEWER, h_rollback,
                "Brings back the release before, or another; needs If-Match and a reason."),
    READ(M "/history", h_history, "The promotion log of a model; with at, what was in force at a time."),
    READ(P "/history", h_project_history, "The promotion log of a project."),

    READ(P "/policy", h_policy,
         "The gates of a project's stages; its ETag is what a change must send as If-Match."),
    PUT(P "/policy", MLO_ADMIN, h_policy_put, "Sets the policy of a project: a new revision."),
    READ(P "/policy/history", h_policy_history, "The revisions of a project's policy."),
    READ(M "/policy", h_policy, "The policy of a model: in place of the project's, or beside it."),
    PUT(M "/policy", MLO_ADMIN, h_policy_put, "Sets the policy of a model: a new revision."),
    READ(M "/policy/history", h_policy_history, "The revisions of a model's policy."),
    READ(M "/decisions", h_decisions, "What the gates said of promotions, refusals too, newest first."),
    READ(M "/decisions/{id}", h_decision, "One decision of the gates, with all numbers."),

    READ(M "/approvals", h_approvals, "Approvals of promotions, newest first."),
    STAGE_POST(M "/approvals", MLO_PROMOTER, h_approve, "Approves exactly what a dry run showed."),
    STAGE_POST(M "/approvals/{id}/withdraw", MLO_PROMOTER, h_approval_withdraw,
               "Withdraws an approval; needs a reason."),
    READ(M "/quarantine", h_quarantine,
         "What was rolled back and is not promoted again; with all, also what was let out."),
    STAGE_POST(M "/quarantine/{r}/release", MLO_APPROVER, h_quarantine_release,
               "Lets a release out of quarantine; needs a reason."),

    READ(P "/audit", h_audit, "The audit log with the exact bytes that were hashed, newest first."),
    READ(P "/audit/chain", h_audit_chain, "The bytes that were hashed, oldest first, for checking them."),
    READ(P "/audit/verify", h_audit_verify, "Checks the whole chain, and the ledger against it."),
    READ(P "/ledger", h_ledger, "The commits of the ledger with their files, oldest first."),
    GIT("HEAD", h_git_head, "The ledger as a repository for git clone: its branch."),
    GIT("info/refs", h_git_refs, "Where the branch is."),
    GIT("objects/info/packs", h_git_packs, "The packs of the repository."),
    GIT("objects/{dir}/{file}", h_git_object, "An object of the repository."),
    GIT("objects/pack/{file}", h_git_pack, "A pack of the repository, or its index."),

    ASK("/v1/gc", MLO_ADMIN, h_gc,
        "Removes the bytes that nothing refers to, past their grace; a dry run only says which."),
    ASK("/v1/fsck", MLO_ADMIN, h_fsck,
        "Compares the rows of blobs with the bytes in the store; repairs if asked to."),

    ADMIN("GET", W, h_webhooks, "The webhooks of a project."),
    POST_SECRET(W, MLO_ADMIN, h_webhook_create, "secret", "Makes a webhook; its secret is shown this once."),
    ADMIN("GET", W "/{id}", h_webhook, "A webhook, without its secrets."),
    PUT(W "/{id}", MLO_ADMIN, h_webhook_change, "Changes what is given of a webhook."),
    ADMIN("DELETE", W "/{id}", h_webhook_remove, "Removes a webhook; what it sent stays to be read."),
    POST_SECRET(W "/{id}/secrets", MLO_ADMIN, h_webhook_rotate, "secret",
                "Makes a new secret, shown this once; the one before signs for a while too."),
    POST(W "/{id}/pings", MLO_ADMIN, h_webhook_ping, "Sends a delivery that says nothing."),
    ADMIN("GET", W "/{id}/deliveries", h_webhook_deliveries, "What was sent, newest first."),
    ADMIN("GET", W "/{id}/deliveries/{n}", h_webhook_delivery,
          "One delivery, with its body and all attempts."),
    POST(W "/{id}/deliveries/{n}/replays", MLO_ADMIN, h_webhook_replay, "Sends a delivery again."),

    READ("/v1/keys", h_keys, "The keys that sign ledgers."),
    READ("/v1/keys/allowed_signers", h_allowed_signers, "The same as a file for git and ssh-keygen."),
    ASK("/v1/keys/rotations", MLO_ADMIN, h_key_rotate, "Makes a new key that the one before vouches for."),
    POST("/v1/keys/revocations", MLO_ADMIN, h_key_revoke,
         "Says from when on the signatures of a key count for nothing."),

    MLFLOW_GET(MLFLOW "registered-models/search", h_mlflow_models, "MLflow: models by name and tags."),
    MLFLOW_GET(MLFLOW "registered-models/get", h_mlflow_model,
               "MLflow: a model with its aliases and latest versions."),
    MLFLOW_GET(MLFLOW "registered-models/get-latest-versions", h_mlflow_latest,
               "MLflow: the newest version of a model, and those in its stages."),
    {.method = "POST",
     .path = MLFLOW "registered-models/get-latest-versions",
     .handler = h_mlflow_latest_post,
     .basic = true,
     .role = MLO_VIEWER,
     .max_body = MLO_BODY_JSON_MAX,
     .docs = "MLflow: the same, as its client asks first."},
    MLFLOW_GET(MLFLOW "registered-models/alias", h_mlflow_alias,
               "MLflow: the version that an alias, which is a stage, stands for."),
    MLFLOW_GET(MLFLOW "model-versions/search", h_mlflow_versions,
               "MLflow: versions by name, number and tags."),
    MLFLOW_GET(MLFLOW "model-versions/get", h_mlflow_version, "MLflow: a version with its tags and aliases."),
    MLFLOW_GET(MLFLOW "model-versions/get-download-uri", h_mlflow_download_uri,
               "MLflow: where the files of a version are."),
    MLFLOW_GET(MLFLOW_FILES, h_mlflow_artifacts, "MLflow: the files of a version, variant or stage."),
    MLFLOW_GET(MLFLOW_FILES "/{n}/{v}/{file}", h_mlflow_file, "MLflow: a file of a version."),
    MLFLOW_GET(MLFLOW_FILES "/{n}/{v}/variants/{name}/{file}", h_mlflow_variant_file,
               "MLflow: a file of a variant."),
    MLFLOW_GET(MLFLOW_FILES "/{n}/{v}/stages/{s}/{file}", h_mlflow_stage_file,
               "MLflow: a file of what a stage holds."),
    MLFLOW_GET("/api/3.0/mlflow/server-info", h_mlflow_server,
               "MLflow: which of its ways of downloading there are."),
};

const struct mlo_route *mlo_http_api_routes(size_t *count)
{
    *count = MLO_COUNT(ROUTES);
    return ROUTES;
}
