/* Gates: what a promotion must meet. Policies (YAML, versioned, immutable), decisions (each one recorded with
 * all its numbers, a refusal too), and approvals. docs/promotion.md has them in words.
 *
 *     stages:
 *       production:
 *         - evidence: top1 >= source - 0.5pt
 *           dataset: test
 *           younger_than: 30d
 *         - evidence: latency.p99[batch=1,threads=1] <= 0.8 * production
 *           machine_class: "*avx512*"
 *           targets: ["cpu:*"]
 *         - provenance: derived
 *         - approvals: 2
 *           role: approver */
#ifndef MLO_REGISTRY_GATES_H
#define MLO_REGISTRY_GATES_H

#include "registry/stages.h"

/* --- policies ---------------------------------------------------------------------------------- */

#define MLO_POLICY_TEXT_MAX ((size_t)64 << 10)

struct mlo_policy;

/* Reads a policy. An error names line and key and what is allowed there: "NAME:LINE: …". *out is yours. */
MLO_MUST_USE enum mlo_status mlo_policy_parse(const char *text, size_t size, const char *name,
                                              struct mlo_policy **out, struct mlo_error *err);
void mlo_policy_free(struct mlo_policy *policy);
/* {"inherit": bool, "stages": {"production": [{"gate": "evidence", "text", "line"}]}}. New reference; NULL:
 * out of memory. */
json_t *mlo_policy_json(const struct mlo_policy *policy);

/* A project's policy (model_id 0), or a model's own. A model's own replaces the project's, unless it says
 * `inherit: true`: then both apply. */
struct mlo_policy_scope {
    int64_t project_id, model_id;
};
/* Adds a revision; needs an admin. `if_match` is the revision that the caller saw (0: none yet); NULL:
 * MLO_EPRECONDITION_REQUIRED, stale: MLO_EPRECONDITION. A text with mistakes is refused, with their place.
 * Promotions that are under way end before it, or begin after it. */
MLO_MUST_USE enum mlo_status mlo_policy_set(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                            const struct mlo_policy_scope *scope, const char *text,
                                            const char *reason, const int64_t *if_match, int64_t *revision,
                                            struct mlo_error *err);
/* A revision (0: the latest): {project, model|null, revision, digest, text, reason, created_at, created_by,
 * audit_seq, policy: as mlo_policy_json}. Where there is none: revision 0, and the rest null. MLO_ENOTFOUND
 * for a revision that never was. */
MLO_MUST_USE enum mlo_status mlo_policy_get(struct mlo_db_conn *conn, const struct mlo_policy_scope *scope,
                                            int64_t revision, json_t **out, struct mlo_error *err);
/* All revisions, newest first, without text and policy. */
MLO_MUST_USE enum mlo_status mlo_policy_list(struct mlo_db_conn *conn, const struct mlo_policy_scope *scope,
                                             const struct mlo_page *page, json_t **out,
                                             struct mlo_error *err);

/* --- decisions --------------------------------------------------------------------------------- */

/* What the gates said of a promotion, as it was recorded (or, in a dry run, as it would be):
 * {project, model, stage, generation, version, release: {version, variants:[{target, variant, artifact}]},
 *  policy: [{scope, revision, digest}], conditions: [{gate, condition, scope, line, target, variant, holds,
 * why, and of evidence: what, value, low, high, bound, op, limit, compared, base, evidence:[ids], dataset,
 *  machine_class, engine, measured_at; of provenance: facts}], shown: digest, verdict: "accepted"|"refused"}.
 * `generation` is the stage's before the move. `shown` covers the release's content, the policies, the
 * evidence judged and the generation: what an approval is given for. */

/* Recorded decisions of a model, newest first: the above with id, actor, via, reason, request_id, at,
 * audit_seq. `stage` NULL: all. */
MLO_MUST_USE enum mlo_status mlo_decision_list(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                               const struct mlo_page *page, json_t **out,
                                               struct mlo_error *err);
/* One of them. */
MLO_MUST_USE enum mlo_status mlo_decision_get(struct mlo_db_conn *conn, int64_t model_id, int64_t id,
                                              json_t **out, struct mlo_error *err);

/* --- what a stage holds, looked at again --------------------------------------------------------- */

/* Judges what a stage holds by the stage's gates on evidence, as they and the evidence are now: {release,
 * version, generation, conditions: as above, holds}. A condition that compares with the stage itself compared
 * the release with the one before it when it was promoted, and is left out; so are gates of other kinds,
 * which are about moving. Changes and records nothing. MLO_ENOTFOUND when the stage is empty. */
MLO_MUST_USE enum mlo_status mlo_stage_recheck(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                               json_t **out, struct mlo_error *err);

/* --- approvals --------------------------------------------------------------------------------- */

/* Of putting exactly this into a stage. `shown` is from the decision of a dry run that the approver saw: it
 * covers the release's content, the evidence judged and the newest of every variant, the policies and the
 * stage's generation. When any of them is another by now, or becomes another later, the approval is void. */
struct mlo_approval {
    int64_t model_id;
    int64_t version; /* its number; 0: the latest */
    const struct mlo_release_choice *choices;
    size_t choice_count;
    const char *stage;
    struct mlo_digest shown;
    const char *note; /* NULL: none */
};
/* Needs a promoter; a policy says whose count. MLO_EPRECONDITION when something else would be promoted than
 * was shown, MLO_EEXISTS when the actor approved exactly this already. `decision` (yours; may be NULL) is
 * what the gates say with it. */
MLO_MUST_USE enum mlo_status mlo_approval_give(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                               const struct mlo_approval *approval, int64_t *id,
                                               json_t **decision, struct mlo_error *err);
/* By who gave it, or an admin; with a reason. MLO_ECONFLICT when it is withdrawn. */
MLO_MUST_USE enum mlo_status mlo_approval_withdraw(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                   int64_t model_id, int64_t id, const char *reason,
                                                   struct mlo_error *err);
/* Newest first: {id, stage, generation, content, shown, role, actor, via, note, at, audit_seq,
 * withdrawn: {actor, reason, at, audit_seq}|null}. `stage` NULL: all. */
MLO_MUST_USE enum mlo_status mlo_approval_list(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                               const struct mlo_page *page, json_t **out,
                                               struct mlo_error *err);

#endif
