/* Gates on compatibility: whoever uses what a stage holds can use what is put there. */
#include <string.h>

#include "registry/gate_impl.h"
#include "registry/signature.h"
#include "registry/sql_impl.h"
#include "registry/target.h"

enum { PRESENT };

const struct mlo_sql mlo_sql_gate_compatible[] = {
    [PRESENT] = {"gate_present",
                 "SELECT rv.target, rv.variant, rv.artifact, r.version_id, v.number, r.seq FROM stage s "
                 "JOIN release r ON r.id = s.release_id JOIN version v ON v.id = r.version_id "
                 "JOIN release_variant rv ON rv.release_id = r.id WHERE s.model_id = $1 AND s.name = $2 "
                 "ORDER BY rv.target",
                 2},
};
const size_t mlo_sql_gate_compatible_count = MLO_COUNT(mlo_sql_gate_compatible);

enum { P_TARGET, P_VARIANT, P_ARTIFACT, P_VERSION, P_NUMBER, P_RELEASE };

static enum mlo_status parse(struct mlo_policy_reader *r, const struct mlo_yaml *item, struct mlo_gate *gate)
{
    static const char *const stages[] = {"staging", "production"};
    MLO_UNUSED(item);
    for (size_t i = 0; i < MLO_COUNT(stages); i++)
        if (gate->text && strcmp(gate->text, stages[i]) == 0)
            return MLO_OK;
    return mlo_policy_unknown(r, gate->line, "stage", gate->text ? gate->text : "", stages,
                              MLO_COUNT(stages));
}

/* What a consumer with this target gets from the stage now, and from the release: -1: nothing. */
static int present_for(const struct mlo_rows *present, const char *target)
{
    int best = -1;
    for (int i = 0; i < mlo_rows_count(present); i++) {
        const char *offered = mlo_rows_text(present, i, P_TARGET);
        if (mlo_target_satisfies(target, offered) &&
            (best < 0 || mlo_target_rank(offered) > mlo_target_rank(mlo_rows_text(present, best, P_TARGET))))
            best = i;
    }
    return best;
}

static const struct mlo_release_item *next_for(const struct mlo_release_content *content, const char *target)
{
    const struct mlo_release_item *best = NULL;
    for (size_t i = 0; i < content->count; i++) {
        const struct mlo_release_item *item = &content->items[i];
        if (mlo_target_satisfies(target, item->target) &&
            (!best || mlo_target_rank(item->target) > mlo_target_rank(best->target)))
            best = item;
    }
    return best;
}

/* What is to be said of one kind of consumer. */
struct verdict {
    bool holds;
    char why[480];
};

static void say(struct verdict *v, bool holds, const char *fmt, ...) MLO_PRINTF(3, 4);
static void say(struct verdict *v, bool holds, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    v->holds = holds;
    vsnprintf(v->why, sizeof v->why, fmt, args);
    va_end(args);
}

/* Compares the two signatures as workers read them. */
static enum mlo_status compare(struct mlo_gate_case *c, const struct mlo_rows *present, int row,
                               const struct mlo_release_item *next, struct verdict *v, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_digest artifact;
    char why[300] = "";
    json_t *was = NULL, *is = NULL;
    int64_t version = mlo_rows_i64(present, row, P_VERSION);
    long long number = (long long)mlo_rows_i64(present, row, P_NUMBER);
    const char *variant = mlo_rows_text(present, row, P_VARIANT);
    if (!mlo_rows_digest(present, row, P_ARTIFACT, &artifact))
        return mlo_error_set(err, MLO_EINTERNAL, "a release has no artifact");
    MLO_TRY(mlo_signature_get(c->conn, version, &artifact, &was, err));
    MLO_TRY(mlo_signature_get(c->conn, c->version->id, &next->variant.artifact, &is, err));
    const json_t *before = json_object_get(was, "read"), *after = json_object_get(is, "read");
    const char *difference = mlo_json_str(is, "difference", NULL);
    if (difference)
        say(v, false, "%s", difference);
    else if (mlo_json_bool(is, "too_large", false))
        say(v, false, "what %s of version %lld takes and gives is too large to be kept, and compared",
            next->variant.name, (long long)c->version->number);
    else if (mlo_json_bool(was, "too_large", false))
        say(v, false, "what %s of version %lld, which is there, takes and gives is too large to be compared",
            variant, number);
    else if (!json_is_object(after))
        say(v, false, "no worker has read %s of version %lld: any run on it does", next->variant.name,
            (long long)c->version->number);
    else if (!json_is_object(before))
        say(v, false, "no worker has read %s of version %lld, which is there: any run on it does", variant,
            number);
    else if (mlo_signature_compatible(before, after, why, sizeof why))
        say(v, true, "takes and gives what %s of version %lld does", variant, number);
    else
        say(v, false, "%s, with %s of version %lld", why, variant, number);
out:
    json_decref(was);
    json_decref(is);
    return status;
}

/* One row for the consumers with this target. */
static enum mlo_status judge_target(struct mlo_gate_case *c, const struct mlo_gate *gate,
                                    const struct mlo_rows *present, const char *target, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_release_item *next = next_for(c->content, target);
    int was = present_for(present, target);
    struct verdict v = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    struct mlo_digest artifact;
    if (was < 0)
        say(&v, true, "%s holds nothing for it now", gate->text);
    else if (!next)
        say(&v, false, "it would get nothing any more, and gets %s of version %lld now",
            mlo_rows_text(present, was, P_VARIANT), (long long)mlo_rows_i64(present, was, P_NUMBER));
    else
        MLO_TRY(compare(c, present, was, next, &v, err));
    json_t *row = mlo_gate_row(c, gate, next, v.holds, "%s", v.why);
    if (!row || json_object_set_new(row, "target", json_string(target)) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (was >= 0 && mlo_rows_digest(present, was, P_ARTIFACT, &artifact))
        json_object_set_new(row, "facts",
                            json_pack("{s:s, s:I, s:I, s:s, s:s}", "stage", gate->text, "release",
                                      (json_int_t)mlo_rows_i64(present, was, P_RELEASE), "version",
                                      (json_int_t)mlo_rows_i64(present, was, P_NUMBER), "variant",
                                      mlo_rows_text(present, was, P_VARIANT), "artifact",
                                      mlo_digest_text(&artifact, text)));
out:
    return status;
}

static enum mlo_status judge(struct mlo_gate_case *c, const struct mlo_gate *gate, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows present = {0};
    mlo_param_i64(&p, c->model_id);
    mlo_param_text(&p, gate->text);
    MLO_TRY(mlo_db_exec(c->conn, &mlo_sql_gate_compatible[PRESENT], &p, &present, err));
    for (size_t i = 0; i < c->content->count; i++)
        if (mlo_gate_concerns(gate, c->content->items[i].target))
            MLO_TRY(judge_target(c, gate, &present, c->content->items[i].target, err));
    for (int r = 0; r < mlo_rows_count(&present); r++) { /* and who is served now, by another target */
        const char *target = mlo_rows_text(&present, r, P_TARGET);
        bool judged = !mlo_gate_concerns(gate, target);
        for (size_t i = 0; i < c->content->count && !judged; i++)
            judged = strcmp(c->content->items[i].target, target) == 0;
        if (!judged)
            MLO_TRY(judge_target(c, gate, &present, target, err));
    }
out:
    mlo_rows_clear(&present);
    return status;
}

const struct mlo_gate_kind mlo_gate_compatible = {.name = "compatible", .parse = parse, .judge = judge};
