/* Inside api/web. */
#ifndef MLO_WEB_IMPL_H
#define MLO_WEB_IMPL_H

#include "api/html/html.h"
#include "api/http/views.h"
#include "api/web/web.h"
#include "base/embed.h"

extern const struct mlo_embedded_file mlo_web_assets[];
extern const size_t mlo_web_assets_count;

/* --- the frame of a page (layout.c) ------------------------------------------------------------ */

/* Everything up to <main>; `section` is the entry of the navigation that is lit ("models", "runs", "audit",
 * ""). */
void mlo_page_begin(struct mlo_request *req, const char *title, const char *section);
/* The rest, and the answer. */
MLO_MUST_USE enum mlo_status mlo_page_end(struct mlo_request *req, int http_status, struct mlo_error *err);
/* The same of a page that says one thing to everybody, with an ETag (mlo_reply_tagged). */
MLO_MUST_USE enum mlo_status mlo_page_end_tagged(struct mlo_request *req, struct mlo_error *err);
/* The module's `failed`: a page that says what went wrong and what to do. */
void mlo_page_failed(struct mlo_request *req, const struct mlo_error *err, int http_status);

/* The hidden field that a form of this session must carry, and its check (MLO_EFORBIDDEN). */
void mlo_page_csrf_field(struct mlo_request *req);
MLO_MUST_USE enum mlo_status mlo_page_csrf_check(struct mlo_request *req, struct mlo_error *err);
/* The same of a field that was read another way; NULL: there was none. */
MLO_MUST_USE enum mlo_status mlo_page_csrf_matches(const struct mlo_request *req, const char *sent,
                                                   struct mlo_error *err);

/* --- pieces (pieces.c); all append to req->out ------------------------------------------------- */

/* "2026-01-31 12:34:56" in a <time>; "–" for NULL. Times on pages are UTC. */
void mlo_piece_time(struct mlo_buf *out, const char *time);
/* The first digits of a digest, whole in its title. */
void mlo_piece_digest(struct mlo_buf *out, const char *digest);
/* A coloured word for a state or a stage. */
void mlo_piece_state(struct mlo_buf *out, const char *state);
void mlo_piece_size(struct mlo_buf *out, const json_t *bytes);
/* Microseconds as "812 µs" or "1.23 ms". */
void mlo_piece_us(struct mlo_buf *out, double us);
/* Seconds as "812 ms", "3.41 s", "2 min 5 s" (trace.c). */
void mlo_piece_duration(struct mlo_buf *out, double seconds);
/* "91.30 %" and its interval below. */
void mlo_piece_accuracy(struct mlo_buf *out, const json_t *accuracy);
/* "fashion/cnn" linked. */
void mlo_piece_model(struct mlo_buf *out, const char *project, const char *model);
/* target and variant, one a line, of a release's or move's "variants" (array of {target, variant, artifact}).
 */
void mlo_piece_variants(struct mlo_buf *out, const json_t *variants, bool digests);
/* The bar and number of a progress from 0 to 1. */
void mlo_piece_progress(struct mlo_buf *out, double fraction);
/* A JSON value, readable: at most so many bytes of it. */
void mlo_piece_json(struct mlo_buf *out, const json_t *value, size_t most);
/* What a number was measured under besides machine and data, in words: "batch 1, 1 thread"; of evidence's
 * "params".
 */
void mlo_piece_params(struct mlo_buf *out, const json_t *params);
/* What a page shows of a list that is there as a whole, from ?cursor= on: {"items", "next"}, for
 * mlo_piece_next. New reference; NULL: no memory. */
json_t *mlo_page_part(const struct mlo_request *req, const json_t *items, size_t most);
/* The same from the item `from` on; and the item that ?cursor= names (the first: without one, or for one
 * that names none). */
json_t *mlo_page_part_of(const json_t *items, size_t from, size_t most);
size_t mlo_page_from(const struct mlo_request *req, const json_t *items);
/* "More" when the list has more: a link to the same page with the cursor. */
void mlo_piece_next(struct mlo_request *req, const json_t *list);
/* The same on a page that answers a form: `path` is the page's, and `project`, or NULL, its ?project=. */
void mlo_piece_next_of(struct mlo_request *req, const json_t *list, const char *path, const char *project);
/* Accuracy against latency of the variants of mlo_view_variants, with the Pareto front; nothing where fewer
 * than two have both (charts.c). */
void mlo_piece_variant_plot(struct mlo_buf *out, const json_t *variants);
/* A run's jobs and what they need of each other as an SVG; nothing for one job alone or for very many
 * (dag.c). */
void mlo_piece_dag(struct mlo_buf *out, const json_t *jobs);
/* The lineage graph as an SVG, as much of it as a page has room for; its root is `name`,
 * PROJECT/MODEL@V/VARIANT (lineage.c). */
void mlo_piece_lineage(struct mlo_buf *out, const char *project, const char *name, const json_t *lineage);
/* Rows of the promotion log (promotions.c); with `models`, a column that names the model. */
void mlo_piece_moves(struct mlo_buf *out, const json_t *items, bool models);
/* What a version takes and gives; nothing where nobody said or read it (signature.c). */
MLO_MUST_USE enum mlo_status
mlo_piece_signature(struct mlo_request *req, const struct mlo_version_info *version, struct mlo_error *err);
/* What was said of a version and its releases, with the form to say more (comments.c). */
MLO_MUST_USE enum mlo_status
mlo_piece_comments(struct mlo_request *req, const struct mlo_version_info *version, struct mlo_error *err);
/* What a version says about itself, as a table (search.c). */
void mlo_piece_facts(struct mlo_buf *out, const json_t *facts);
/* Rows of a list of runs (runs.c). */
void mlo_piece_runs(struct mlo_buf *out, const json_t *items);

/* The number of the run that {id} names (runs.c). */
MLO_MUST_USE enum mlo_status mlo_page_run_id(const struct mlo_request *req, int64_t *out,
                                             struct mlo_error *err);
/* What the steps of a run wrote, as much of it as its page shows, for mlo_piece_log (run_log.c). */
MLO_MUST_USE enum mlo_status mlo_page_log(struct mlo_db_conn *conn, int64_t run, json_t **out,
                                          struct mlo_error *err);
/* The end of each attempt's text; `open`: the run goes on, and live.js appends to it. */
void mlo_piece_log(struct mlo_buf *out, const json_t *run, const json_t *log, bool open);

/* What a search found so far, of a run that is one: as a picture, and as a table (front.c). */
void mlo_piece_front(struct mlo_buf *out, const json_t *run);
/* How a variant runs, and where its time goes, by its newest benchmark (profile.c). */
struct mlo_profile_view {
    const json_t *measured;                  /* the evidence, of the variant's; NULL: there is none */
    json_t *profile;                         /* pipeline/steps/profile.c */
    json_t *reasons;                         /* {"node": why it is not in integers} */
    struct mlo_error no_profile, no_reasons; /* why one is not there that should be; no message: none is */
};
/* What cannot be read is told in the view, for the page to say. MLO_ENOMEM. */
MLO_MUST_USE enum mlo_status mlo_page_profile(struct mlo_request *req, const json_t *variant,
                                              struct mlo_profile_view *out, struct mlo_error *err);
void mlo_profile_view_clear(struct mlo_profile_view *view);
/* Its section; nothing where there is none. */
void mlo_piece_profile(struct mlo_request *req, const struct mlo_profile_view *view, long long version,
                       const char *name);
/* The row of a name among a version's variants; NULL when it is not there (variant.c). */
const json_t *mlo_page_variant_named(const json_t *variants, const char *name);

/* Where a run's time went, of mlo_run_trace: as a picture, and as a table (trace.c). */
void mlo_piece_trace(struct mlo_buf *out, const json_t *trace);
void mlo_piece_trace_table(struct mlo_buf *out, const json_t *trace);

/* The rows of a decision of the gates (gates.c). */
void mlo_piece_gates(struct mlo_buf *out, const json_t *decision);
/* What is in quarantine, and what the gates decided last, of a model (gates.c). */
MLO_MUST_USE enum mlo_status mlo_piece_governance(struct mlo_request *req, int64_t model,
                                                  struct mlo_error *err);

/* When a token ends that a form asks for so many days for; 0: never (tokens.c). MLO_EINVAL. */
MLO_MUST_USE enum mlo_status mlo_page_token_life(struct mlo_request *req, int64_t *expires_at_us,
                                                 struct mlo_error *err);
/* A form that says what to promote; checks its CSRF field (promotions.c). Stays where it is: it points into
 * itself. */
#define MLO_FORM_CHOICES 16
struct mlo_promotion_form {
    struct mlo_move_request move;
    struct mlo_release_choice choices[MLO_FORM_CHOICES];
    int64_t generation;
};
MLO_MUST_USE enum mlo_status mlo_page_promotion_form(struct mlo_request *req, struct mlo_promotion_form *out,
                                                     struct mlo_error *err);
/* The page of a decision, with the forms that follow from it (gates.c). */
MLO_MUST_USE enum mlo_status mlo_page_gates(struct mlo_request *req, const json_t *decision, int http_status,
                                            struct mlo_error *err);

/* --- pages ------------------------------------------------------------------------------------- */

mlo_handler_fn page_home, page_login, page_login_post, page_logout, page_asset, page_artifact, page_report,
    page_report_json, page_profile_json;
mlo_handler_fn page_docs, page_docs_topic;
mlo_handler_fn page_check, page_approve, page_quarantine_release;
mlo_handler_fn page_comment;
mlo_handler_fn page_upload, page_upload_post, page_submit, page_submit_post;
extern const struct mlo_upload_body mlo_page_upload_body; /* upload.c */
mlo_handler_fn page_model, page_search, page_promote, page_rollback, page_promotions;
mlo_handler_fn page_release, page_variant, page_names, page_compare, page_projects, page_datasets,
    page_tokens, page_token_make, page_token_revoke;
mlo_handler_fn page_members, page_member, page_member_set, page_member_token, page_member_revoke,
    page_member_remove;
mlo_handler_fn page_workers, page_worker_wish;
mlo_handler_fn page_schedules, page_schedule_change;
mlo_handler_fn page_usage, page_run_requeue, page_runs, page_run, page_run_events, page_run_log,
    page_run_cancel, page_audit_index, page_audit, page_audit_export;
/* The filters of the audit page, of the query (audit_export.c). */
void mlo_page_audit_filter(const struct mlo_request *req, struct mlo_audit_filter *out);

/* A text of a JSON object for a page: "" when absent. */
static inline const char *mlo_text(const json_t *object, const char *key)
{
    return mlo_json_str(object, key, "");
}

#endif
