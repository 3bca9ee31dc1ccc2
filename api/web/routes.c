/* The pages' routes. */
#include "api/web/web_impl.h"

#define ROLE(path_, role_, handler_, docs_)                                                                  \
    {                                                                                                        \
        .method = "GET", .path = path_, .handler = handler_, .role = role_, .kind = MLO_ROUTE_PAGE,          \
        .docs = docs_                                                                                        \
    }
#define PAGE(path_, handler_, docs_) ROLE(path_, MLO_VIEWER, handler_, docs_)
#define OPEN(path_, handler_, docs_)                                                                         \
    {                                                                                                        \
        .method = "GET", .path = path_, .handler = handler_, .open = true, .kind = MLO_ROUTE_PAGE,           \
        .docs = docs_                                                                                        \
    }
#define FORM(path_, role_, handler_, docs_)                                                                  \
    {                                                                                                        \
        .method = "POST", .path = path_, .handler = handler_, .role = role_, .max_body = MLO_BODY_FORM_MAX,  \
        .kind = MLO_ROUTE_PAGE, .docs = docs_                                                                \
    }
#define STAGE_FORM(path_, role_, handler_, docs_)                                                            \
    {                                                                                                        \
        .method = "POST", .path = path_, .handler = handler_, .role = role_, .by_stage = true,               \
        .max_body = MLO_BODY_FORM_MAX, .kind = MLO_ROUTE_PAGE, .docs = docs_                                 \
    }

static const struct mlo_route ROUTES[] = {
    OPEN("/assets/{name}", page_asset, "Style sheet, script, icon."),
    OPEN("/login", page_login, "The sign-in form; with token, a one-time link signs in."),
    OPEN("/docs/api", page_docs, "The contract of the API: what there is, by topic."),
    OPEN("/docs/api/{topic}", page_docs_topic, "A topic of the API, or its schemas."),
    {.method = "POST",
     .path = "/login",
     .handler = page_login_post,
     .open = true,
     .max_body = MLO_BODY_FORM_MAX,
     .kind = MLO_ROUTE_PAGE,
     .docs = "Signs in with a token."},
    FORM("/logout", MLO_VIEWER, page_logout, "Signs out."),
    PAGE("/", page_home, "Models, recent runs, last moves."),
    PAGE("/models/{p}/{m}", page_model, "A model: stages, variants, lineage, versions."),
    ROLE("/upload", MLO_SUBMITTER, page_upload, "A form to upload a model."),
    {.method = "POST",
     .path = "/upload",
     .handler = page_upload_post,
     .role = MLO_SUBMITTER,
     .max_body = MLO_BODY_BLOB_MAX,
     .upload = &mlo_page_upload_body,
     .kind = MLO_ROUTE_PAGE,
     .docs = "Uploads a model: a form with files."},
    ROLE("/submit/{p}/{m}", MLO_SUBMITTER, page_submit, "A form to submit a recipe for a model."),
    {.method = "POST",
     .path = "/submit/{p}/{m}",
     .handler = page_submit_post,
     .role = MLO_SUBMITTER,
     .once = true,
     .max_body = MLO_BODY_FORM_MAX,
     .kind = MLO_ROUTE_PAGE,
     .docs = "Submits a recipe, by the rules of the API."},
    PAGE("/search/{p}", page_search, "Versions of a project by metrics, parameters, tags, code and data."),
    PAGE("/variant/{p}/{m}/{v}/{name}", page_variant, "A variant with all that was measured of it."),
    PAGE("/names/{p}/{digest}", page_names, "The variants whose bytes an artifact is now."),
    PAGE("/compare/{p}/{m}", page_compare, "Up to five variants of a model side by side."),
    PAGE("/projects", page_projects, "The projects, and what belongs to each."),
    PAGE("/datasets", page_datasets, "The datasets, each with its latest version."),
    ROLE("/tokens", MLO_ADMIN, page_tokens,
         "The tokens there are, all or those that work in a project, and a form to make one."),
    FORM("/tokens", MLO_ADMIN, page_token_make, "Makes a token and shows it once."),
    FORM("/tokens/{id}/revoke", MLO_ADMIN, page_token_revoke, "Revokes a token."),
    PAGE("/members/{p}", page_members, "The members of a project, and a form to add one."),
    FORM("/members/{p}", MLO_ADMIN, page_member_set, "Adds a member, or changes what one may."),
    PAGE("/members/{p}/{name}", page_member, "A member: what it may, and its tokens."),
    FORM("/members/{p}/{name}/token", MLO_ADMIN, page_member_token,
         "Makes a token of a member and shows it once."),
    FORM("/members/{p}/{name}/revoke", MLO_ADMIN, page_member_revoke, "Revokes a token of a member."),
    FORM("/members/{p}/{name}/remove", MLO_ADMIN, page_member_remove,
         "Removes a member; its tokens end with it."),
    PAGE("/artifact/{p}/{m}/{v}/{name}", page_artifact, "Downloads a variant."),
    PAGE("/report/{p}/{m}/{v}/{name}", page_report, "What explains a variant."),
    PAGE("/report/{p}/{m}/{v}/{name}/json", page_report_json, "The same as JSON."),
    STAGE_FORM("/models/{p}/{m}/promote", MLO_PROMOTER, page_promote, "Promotes, by the rules of the API."),
    STAGE_FORM("/models/{p}/{m}/check", MLO_PROMOTER, page_check, "What the gates say of a promotion."),
    STAGE_FORM("/models/{p}/{m}/approve", MLO_PROMOTER, page_approve, "Approves what was shown."),
    STAGE_FORM("/models/{p}/{m}/quarantine", MLO_APPROVER, page_quarantine_release,
               "Lets a release out of quarantine."),
    PAGE("/profile/{p}/{m}/{v}/{name}", page_profile_json,
         "Which node of a variant runs how, and how long it takes, as JSON."),
    FORM("/models/{p}/{m}/rollback", MLO_VIEWER, page_rollback, "Rolls back, by the rules of the API."),
    FORM("/models/{p}/{m}/comment", MLO_SUBMITTER, page_comment, "Says something of a version or a release."),
    PAGE("/release/{p}/{m}/{n}", page_release,
         "A release: its variants' numbers, what the gates said, its moves."),
    PAGE("/promotions/{p}/{m}", page_promotions, "The promotion log of a model."),
    PAGE("/runs", page_runs, "Runs of all projects."),
    PAGE("/runs/{p}/{id}", page_run, "A run with its jobs."),
    PAGE("/runs/{p}/{id}/events", page_run_events, "What happens in a run, as a stream for its page."),
    PAGE("/runs/{p}/{id}/log", page_run_log, "What the steps of a run wrote, as a text."),
    FORM("/runs/{p}/{id}/cancel", MLO_SUBMITTER, page_run_cancel, "Cancels a run."),
    FORM("/runs/{p}/{id}/requeue", MLO_SUBMITTER, page_run_requeue, "Takes up a run again that failed."),
    PAGE("/usage/{p}", page_usage, "A project's share of the workers, and what it used by month."),
    PAGE("/schedules/{p}", page_schedules, "The schedules of a project, with their next and last times."),
    FORM("/schedules/{p}/{name}/{what}", MLO_SUBMITTER, page_schedule_change,
         "Runs, pauses or resumes a schedule, by the rules of the API."),
    PAGE("/workers", page_workers, "The workers of the last day."),
    FORM("/workers/{id}/{what}", MLO_ADMIN, page_worker_wish, "Pauses, resumes or drains a worker."),
    PAGE("/audit", page_audit_index, "The audit logs there are."),
    PAGE("/audit/{p}", page_audit, "The audit log of a project."),
    PAGE("/audit/{p}/export", page_audit_export, "The same as a file: format=csv, json or jsonl."),
};

const struct mlo_http_module *mlo_web_module(void)
{
    static const struct mlo_http_module module = {
        .routes = ROUTES, .count = MLO_COUNT(ROUTES), .failed = mlo_page_failed};
    return &module;
}
