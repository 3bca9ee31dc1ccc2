/* Gates on evidence: a condition judged by the bound of the 95% interval that is against the claim. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "registry/evidence.h"
#include "registry/gate_impl.h"
#include "registry/sql_impl.h"
#include "registry/target.h"

enum { KNOWN, BASES, CONSUMED };
enum { METRICS_MAX = 64 };

const struct mlo_sql mlo_sql_gate_evidence[] = {
    /* of evidence that no filter tells apart, the newest; names are looked up for those alone */
    [KNOWN] =
        {"gate_known",
         "SELECT e.id, e.artifact, e.metric, e.params, e.value, e.low, e.high, e.baseline, e.comparison, "
         "e.comparison_value, e.comparison_low, e.comparison_high, e.dataset, "
         "(SELECT d.name || '@' || dv.number FROM dataset_version dv JOIN dataset d ON d.id = "
         "dv.dataset_id WHERE dv.manifest_digest = e.dataset AND d.project_id = $1 "
         "ORDER BY dv.id DESC LIMIT 1), e.data_role, e.engine, e.machine_class, e.protocol, "
         "extract(epoch FROM clock_timestamp() - e.at)::double precision, "
         "to_char(e.at, 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM evidence e WHERE e.id = ANY(ARRAY(SELECT "
         "max(id) "
         "FROM evidence WHERE project_id = $1 AND artifact = ANY($2::bytea[]) AND metric = ANY($3::text[]) "
         "GROUP BY artifact, metric, params, dataset, data_role, engine, machine_class, protocol, baseline, "
         "comparison)) ORDER BY e.id DESC LIMIT 5000",
         3},
    [BASES] = {"gate_bases",
               "SELECT s.name, rv.target, rv.variant, rv.artifact, rv.size, r.seq FROM stage s "
               "JOIN release r ON r.id = s.release_id JOIN release_variant rv ON rv.release_id = r.id "
               "WHERE s.model_id = $1 ORDER BY s.name, rv.target",
               1},
    /* what any step on the way to an artifact read: data to be judged on must not be among it */
    [CONSUMED] =
        {"gate_consumed",
         "WITH RECURSIVE up(root, digest) AS (SELECT a, a FROM unnest($2::bytea[]) a UNION "
         "SELECT u.root, e.parent FROM lineage_edge e JOIN up u ON e.child = u.digest "
         "WHERE e.project_id = $1 AND e.kind IN ('derived-from', 'distilled-from', 'fine-tuned-from')) "
         "SELECT DISTINCT u.root, e.parent, e.kind, (SELECT d.name || '@' || dv.number FROM "
         "dataset_version dv JOIN dataset d ON d.id = dv.dataset_id WHERE dv.manifest_digest = e.parent "
         "AND d.project_id = $1 ORDER BY dv.id DESC LIMIT 1) FROM up u JOIN lineage_edge e ON "
         "e.project_id = $1 AND e.child = u.digest AND e.kind NOT IN ('derived-from', "
         "'distilled-from', 'fine-tuned-from', 'evaluated-on')",
         2},
};
const size_t mlo_sql_gate_evidence_count = MLO_COUNT(mlo_sql_gate_evidence);

enum {
    K_ID,
    K_ARTIFACT,
    K_METRIC,
    K_PARAMS,
    K_VALUE,
    K_LOW,
    K_HIGH,
    K_BASELINE,
    K_COMPARISON,
    K_CVALUE,
    K_CLOW,
    K_CHIGH,
    K_DATASET,
    K_DATASET_NAME,
    K_ROLE,
    K_ENGINE,
    K_MACHINE,
    K_PROTOCOL,
    K_AGE,
    K_AT
};

/* --- reading the policy ------------------------------------------------------------------------ */

static enum mlo_status read_age(struct mlo_policy_reader *r, const struct mlo_yaml *item, double *out)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}};
    const char *text;
    char number[24];
    enum mlo_status status = mlo_policy_text(r, item, "younger_than", &text);
    if (status != MLO_OK || !text)
        return status;
    size_t n = strspn(text, "0123456789.");
    for (size_t u = 0; n > 0 && n < sizeof number && u < MLO_COUNT(units); u++) {
        if (strcmp(text + n, units[u].unit) == 0) {
            snprintf(number, sizeof number, "%.*s", (int)n, text);
            if (mlo_str_to_f64(number, out) && *out > 0) {
                *out *= units[u].seconds;
                return MLO_OK;
            }
        }
    }
    mlo_policy_bad(r, mlo_yaml_get(item, "younger_than")->line, "'%.40s' is no age", text);
    mlo_error_hint(r->err, "write a number of days, hours, minutes or seconds: 30d, 12h, 90m, 45s");
    return MLO_EINVAL;
}

static enum mlo_status parse(struct mlo_policy_reader *r, const struct mlo_yaml *item, struct mlo_gate *gate)
{
    enum mlo_status status = MLO_OK;
    if (!gate->text) {
        status = mlo_policy_bad(r, gate->line, "an evidence gate needs a condition");
        mlo_error_hint(r->err, "write for example: - evidence: top1 >= source - 0.5pt");
        return status;
    }
    status = mlo_condition_parse(gate->text, &gate->condition, r->err);
    if (status != MLO_OK) {
        mlo_error_prefix(r->err, "%.80s:%d", r->name, gate->line);
        if (r->err)
            snprintf(r->err->where, sizeof r->err->where, "%.200s:%d", r->name, gate->line);
        return status;
    }
    MLO_TRY(mlo_policy_text(r, item, "dataset", &gate->dataset));
    MLO_TRY(mlo_policy_text(r, item, "machine_class", &gate->machine_class));
    MLO_TRY(mlo_policy_text(r, item, "engine", &gate->engine));
    MLO_TRY(read_age(r, item, &gate->younger_than_s));
out:
    return status;
}

/* --- what is known ----------------------------------------------------------------------------- */

static void add_digest(struct mlo_buf *array, const struct mlo_digest *digest)
{
    char hex[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_hex(digest, hex);
    mlo_buf_printf(array, "%s\"\\\\x%s\"", array->len > 1 ? "," : "", hex);
}

static enum mlo_status load_known(struct mlo_gate_case *c, const struct mlo_buf *metrics,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf artifacts = MLO_BUF_INIT;
    struct mlo_digest base;
    mlo_buf_putc(&artifacts, '{');
    add_digest(&artifacts, &c->version->artifact);
    for (size_t i = 0; i < c->content->count; i++)
        add_digest(&artifacts, &c->content->items[i].variant.artifact);
    for (int b = 0; b < mlo_rows_count(&c->bases); b++)
        if (mlo_rows_digest(&c->bases, b, 3, &base))
            add_digest(&artifacts, &base);
    mlo_buf_putc(&artifacts, '}');
    mlo_param_i64(&p, c->project_id);
    mlo_param_text(&p, mlo_buf_str(&artifacts));
    mlo_param_text(&p, mlo_buf_str(metrics));
    enum mlo_status status = mlo_buf_ok(&artifacts) && mlo_buf_ok(metrics)
                                 ? mlo_db_exec(c->conn, &mlo_sql_gate_evidence[KNOWN], &p, &c->known, err)
                                 : mlo_error_nomem(err);
    mlo_buf_clear(&artifacts);
    return status;
}

enum mlo_status mlo_gate_bases_ahead(struct mlo_db_conn *conn, int64_t model_id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, model_id);
    return mlo_db_ahead(conn, &mlo_sql_gate_evidence[BASES], &p, err);
}

/* Asks, now or ahead, what the artifacts were made with. */
static enum mlo_status ask_consumed(struct mlo_gate_case *c, bool ahead, struct mlo_error *err)
{
    const struct mlo_sql *sql = &mlo_sql_gate_evidence[CONSUMED];
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf artifacts = MLO_BUF_INIT;
    mlo_buf_putc(&artifacts, '{');
    for (size_t i = 0; i < c->content->count; i++)
        add_digest(&artifacts, &c->content->items[i].variant.artifact);
    mlo_buf_putc(&artifacts, '}');
    mlo_param_i64(&p, c->project_id);
    mlo_param_text(&p, mlo_buf_str(&artifacts));
    enum mlo_status status = !mlo_buf_ok(&artifacts) ? mlo_error_nomem(err)
                             : ahead                 ? mlo_db_ahead(c->conn, sql, &p, err)
                                                     : mlo_db_exec(c->conn, sql, &p, &c->consumed, err);
    mlo_buf_clear(&artifacts);
    return status;
}

enum mlo_status mlo_gate_evidence_load(struct mlo_gate_case *c, const struct mlo_policy_row *policies,
                                       size_t count, struct mlo_error *err)
{
    struct mlo_buf metrics = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = MLO_OK;
    bool based = false;
    mlo_buf_putc(&metrics, '{');
    for (size_t i = 0; i < count; i++) {
        const struct mlo_policy_stage *stage = mlo_policy_stage(policies[i].policy, c->stage);
        for (size_t g = 0; stage && g < stage->count; g++) {
            const struct mlo_gate *gate = &stage->gates[g];
            if (gate->kind != &mlo_gate_evidence)
                continue;
            /* a metric's name is letters, digits, '.', '_' and '-': nothing to quote */
            mlo_buf_printf(&metrics, "%s\"%s\"", metrics.len > 1 ? "," : "", gate->condition.metric);
            based = based || (gate->condition.base[0] && strcmp(gate->condition.base, "source") != 0);
        }
    }
    mlo_buf_putc(&metrics, '}');
    mlo_param_i64(&p, c->model_id);
    if (based)
        MLO_TRY(mlo_db_exec(c->conn, &mlo_sql_gate_evidence[BASES], &p, &c->bases, err));
    if (metrics.len > 2) {
        MLO_TRY(ask_consumed(c, true, err)); /* evidence on samples will want it */
        MLO_TRY(load_known(c, &metrics, err));
    }
out:
    mlo_buf_clear(&metrics);
    return status;
}

static enum mlo_status load_consumed(struct mlo_gate_case *c, struct mlo_error *err)
{
    if (c->consumed_loaded)
        return MLO_OK;
    enum mlo_status status = ask_consumed(c, false, err);
    c->consumed_loaded = status == MLO_OK;
    return status;
}

static bool param_matches(const json_t *params, const struct mlo_condition_param *want)
{
    const json_t *have = json_object_get(params, want->key);
    char text[64];
    if (json_is_integer(have))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(have));
    else if (json_is_string(have))
        snprintf(text, sizeof text, "%s", json_string_value(have));
    else
        return false;
    return strcmp(text, want->value) == 0;
}

/* A number that a recipe's postprocessing model stands behind is another metric: it is read where the gate
 * names the model, by the beginning of its digest. */
static bool postprocess_matches(const json_t *params, const struct mlo_condition *condition)
{
    const char *have = mlo_json_str(params, "postprocess", NULL), *want = NULL;
    for (size_t i = 0; i < condition->param_count; i++)
        if (strcmp(condition->params[i].key, "postprocess") == 0)
            want = condition->params[i].value;
    return have && want ? mlo_str_starts(have, want) : !have && !want;
}

static bool params_match(const char *params, const struct mlo_condition *condition)
{
    json_t *have = json_loads(params, 0, NULL);
    bool match = have && postprocess_matches(have, condition);
    for (size_t i = 0; match && i < condition->param_count; i++)
        match = strcmp(condition->params[i].key, "postprocess") == 0 ||
                (strcmp(condition->params[i].key, "teacher") == 0 && /* a digest, by its beginning */
                 mlo_str_starts(mlo_json_str(have, "teacher", ""), condition->params[i].value)) ||
                param_matches(have, &condition->params[i]);
    json_decref(have);
    return match;
}

static bool fits(const char *pattern, const char *text)
{
    return !pattern || (text && fnmatch(pattern, text, 0) == 0);
}

/* "cpu" fits "cpu 1 (oneDNN 2.6.3)": the name that it begins with, or all of it. */
static bool engine_fits(const char *pattern, const char *text)
{
    char head[64];
    snprintf(head, sizeof head, "%.*s", text ? (int)strcspn(text, " ") : 0, text ? text : "");
    return fits(pattern, text) || fits(pattern, head);
}

/* "test" fits every version of it, "test@3" that one. */
static bool dataset_fits(const char *pattern, const char *name)
{
    char head[104];
    if (!pattern)
        return true;
    if (!name)
        return false;
    snprintf(head, sizeof head, "%.*s", (int)strcspn(name, "@"), name);
    return fnmatch(pattern, name, 0) == 0 || fnmatch(pattern, head, 0) == 0;
}

static bool same_text(const struct mlo_rows *rows, int a, int b, int column)
{
    return mlo_str_eq(mlo_rows_text(rows, a, column), mlo_rows_text(rows, b, column));
}

/* The newest evidence on this artifact that the gate speaks of; with `baseline`, compared with that; with
 * `like` >= 0, measured in the same way as that row. -1: none. */
static int find(const struct mlo_gate_case *c, const struct mlo_gate *gate, const struct mlo_digest *artifact,
                const struct mlo_digest *baseline, int like)
{
    static const int ways[] = {K_PARAMS, K_DATASET, K_ENGINE, K_MACHINE, K_PROTOCOL, K_ROLE};
    const struct mlo_rows *k = &c->known;
    for (int r = 0; r < mlo_rows_count(k); r++) {
        struct mlo_digest of, against;
        if (strcmp(mlo_rows_text(k, r, K_METRIC), gate->condition.metric) != 0 ||
            !mlo_rows_digest(k, r, K_ARTIFACT, &of) || !mlo_digest_eq(&of, artifact) ||
            !params_match(mlo_rows_text(k, r, K_PARAMS), &gate->condition) ||
            !fits(gate->machine_class, mlo_rows_text(k, r, K_MACHINE)) ||
            !engine_fits(gate->engine, mlo_rows_text(k, r, K_ENGINE)) ||
            !dataset_fits(gate->dataset, mlo_rows_text(k, r, K_DATASET_NAME)))
            continue;
        if (baseline && !(mlo_rows_digest(k, r, K_BASELINE, &against) && mlo_digest_eq(&against, baseline)))
            continue;
        bool alike = true;
        for (size_t w = 0; like >= 0 && alike && w < MLO_COUNT(ways); w++)
            alike = same_text(k, r, like, ways[w]);
        if (alike)
            return r;
    }
    return -1;
}

/* --- judging ----------------------------------------------------------------------------------- */

/* What the condition compares with. */
struct base {
    bool empty; /* the stage holds nothing for this target */
    struct mlo_digest artifact;
    uint64_t size;
    int64_t release; /* 0: the source */
    const char *variant;
};

/* A judgement of one variant. */
struct look {
    struct mlo_gate_case *c;
    const struct mlo_gate *gate;
    const struct mlo_release_item *item;
    struct base base;
    int row, base_row;    /* of the evidence; -1: none */
    const char *compared; /* "paired", "two intervals", "exact" or NULL */
    struct mlo_condition_facts facts;
};

static void find_base(struct look *l)
{
    const struct mlo_rows *b = &l->c->bases;
    const char *name = l->gate->condition.base;
    int best = -1;
    if (strcmp(name, "source") == 0) {
        l->base = (struct base){.artifact = l->c->version->artifact,
                                .size = l->c->version->artifact_size,
                                .variant = MLO_VARIANT_SOURCE};
        return;
    }
    for (int r = 0; r < mlo_rows_count(b); r++) {
        const char *target = mlo_rows_text(b, r, 1);
        if (strcmp(mlo_rows_text(b, r, 0), name) == 0 && mlo_target_satisfies(l->item->target, target) &&
            (best < 0 || mlo_target_rank(target) > mlo_target_rank(mlo_rows_text(b, best, 1))))
            best = r;
    }
    l->base.empty = best < 0 || !mlo_rows_digest(b, best, 3, &l->base.artifact);
    if (l->base.empty)
        return;
    l->base.variant = mlo_rows_text(b, best, 2);
    l->base.size = (uint64_t)mlo_rows_i64(b, best, 4);
    l->base.release = mlo_rows_i64(b, best, 5);
}

/* Two intervals that know nothing of each other: the worst of the one against the best of the other. */
static void from_two(struct look *l, double value, double low, double high, double base, double base_low,
                     double base_high)
{
    struct mlo_condition_facts *f = &l->facts;
    f->have_difference = true;
    f->difference = value - base;
    f->difference_low = low - base_high;
    f->difference_high = high - base_low;
    if (base_low > 0 && low >= 0) {
        f->have_ratio = l->gate->condition.factor != 1; /* a plain comparison is one of differences */
        f->ratio = value / base;
        f->ratio_low = low / base_high;
        f->ratio_high = high / base_low;
    }
}

/* The comparison that was measured on the same samples, when it is of the kind that the condition asks for.
 */
static bool paired(struct look *l, int row)
{
    const struct mlo_rows *k = &l->c->known;
    const struct mlo_condition *c = &l->gate->condition;
    struct mlo_condition_facts *f = &l->facts;
    double value = mlo_rows_f64(k, row, K_CVALUE), low = mlo_rows_f64(k, row, K_CLOW),
           high = mlo_rows_f64(k, row, K_CHIGH);
    bool ratio = mlo_str_eq(mlo_rows_text(k, row, K_COMPARISON), "ratio");
    if (!isfinite(value) || !isfinite(low) || !isfinite(high) || (ratio ? c->offset != 0 : c->factor != 1))
        return false;
    if (ratio) {
        f->have_ratio = true;
        f->ratio = value;
        f->ratio_low = low;
        f->ratio_high = high;
    } else {
        f->have_difference = true;
        f->difference = value;
        f->difference_low = low;
        f->difference_high = high;
    }
    return true;
}

/* Size needs nobody to measure it. */
static void exact_size(struct look *l)
{
    double size = (double)l->item->variant.size_bytes, base = (double)l->base.size;
    l->facts.have_value = true;
    l->facts.value = l->facts.low = l->facts.high = size;
    l->compared = "exact";
    if (l->gate->condition.base[0])
        from_two(l, size, size, size, base, base, base);
}

static void gather(struct look *l)
{
    const struct mlo_rows *k = &l->c->known;
    const struct mlo_condition *condition = &l->gate->condition;
    const struct mlo_digest *artifact = &l->item->variant.artifact;
    struct mlo_condition_facts *f = &l->facts;
    if (strcmp(condition->metric, "size") == 0) {
        exact_size(l);
        return;
    }
    if (condition->base[0]) {
        l->row = find(l->c, l->gate, artifact, &l->base.artifact, -1);
        if (l->row >= 0 && paired(l, l->row)) {
            l->compared = "paired";
            return;
        }
    }
    if (l->row < 0)
        l->row = find(l->c, l->gate, artifact, NULL, -1);
    if (l->row < 0)
        return;
    f->value = mlo_rows_f64(k, l->row, K_VALUE);
    f->low = mlo_rows_f64(k, l->row, K_LOW);
    f->high = mlo_rows_f64(k, l->row, K_HIGH);
    f->have_value = isfinite(f->low) && isfinite(f->high);
    if (!condition->base[0] || !f->have_value)
        return;
    l->base_row = find(l->c, l->gate, &l->base.artifact, NULL, l->row);
    double low = l->base_row < 0 ? NAN : mlo_rows_f64(k, l->base_row, K_LOW),
           high = l->base_row < 0 ? NAN : mlo_rows_f64(k, l->base_row, K_HIGH);
    if (isfinite(low) && isfinite(high)) {
        l->compared = "two intervals";
        from_two(l, f->value, f->low, f->high, mlo_rows_f64(k, l->base_row, K_VALUE), low, high);
    }
}

/* Why this evidence may not be used, into `why`; "" when it may. */
static enum mlo_status objection(struct look *l, char *why, size_t size, struct mlo_error *err)
{
    struct mlo_gate_case *c = l->c;
    const struct mlo_rows *k = &c->known;
    struct mlo_digest dataset, root, parent;
    const char *role = mlo_rows_text(k, l->row, K_ROLE);
    why[0] = '\0';
    double age = mlo_rows_f64(k, l->row, K_AGE);
    if (l->base_row >= 0)
        age = fmax(age, mlo_rows_f64(k, l->base_row, K_AGE));
    if (l->gate->younger_than_s > 0 && age > l->gate->younger_than_s) {
        snprintf(why, size, "the evidence is %.1f days old, and must be younger than %.1f", age / 86400,
                 l->gate->younger_than_s / 86400);
        return MLO_OK;
    }
    bool has_data = mlo_rows_digest(k, l->row, K_DATASET, &dataset);
    if (!has_data && !role)
        return MLO_OK; /* a load: no samples */
    if (!mlo_str_eq(role, "evaluate") || !has_data) {
        snprintf(why, size, "it was measured on data of the role %s: a gate believes only the role evaluate",
                 role ? role : "unknown");
        return MLO_OK;
    }
    enum mlo_status status = load_consumed(c, err);
    for (int r = 0; status == MLO_OK && !why[0] && r < mlo_rows_count(&c->consumed); r++) {
        if (!mlo_rows_digest(&c->consumed, r, 0, &root) || !mlo_rows_digest(&c->consumed, r, 1, &parent) ||
            !mlo_digest_eq(&root, &l->item->variant.artifact))
            continue;
        const char *name = mlo_rows_text(&c->consumed, r, 3), *way = mlo_rows_text(&c->consumed, r, 2);
        int64_t shared = 0;
        bool same = mlo_digest_eq(&parent, &dataset), known = true;
        if (!same)
            status = mlo_samples_shared(c->conn, &parent, &dataset, &shared, &known, err);
        if (same)
            snprintf(why, size,
                     "it was judged on %s, which the variant was made with (%s): data that chose "
                     "something cannot judge it",
                     name ? name : "data", way);
        else if (!known)
            snprintf(why, size,
                     "the samples of %s (%s) or of %s are not known: no run has read them here since gates "
                     "compare samples",
                     name ? name : "a dataset", way, mlo_rows_text(k, l->row, K_DATASET_NAME));
        else if (shared)
            snprintf(why, size,
                     "%lld samples that judged it are in %s, which the variant was made with (%s): data "
                     "that chose something cannot judge it",
                     (long long)shared, name ? name : "data", way);
    }
    return status;
}

static void add_evidence(struct look *l, json_t *row)
{
    const struct mlo_rows *k = &l->c->known;
    const int rows[] = {l->row, l->base_row};
    json_t *ids = json_array();
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        if (rows[i] < 0)
            continue;
        const char *id = mlo_rows_text(k, rows[i], K_ID);
        json_array_append_new(ids, json_integer(mlo_rows_i64(k, rows[i], K_ID)));
        json_object_set_new(l->c->evidence_ids, id, json_true());
    }
    json_object_set_new(row, "evidence", ids);
    if (l->row < 0)
        return;
    const char *dataset = mlo_rows_text(k, l->row, K_DATASET_NAME);
    json_object_set_new(row, "dataset", dataset ? json_string(dataset) : json_null());
    json_object_set_new(row, "machine_class", json_string(mlo_rows_text(k, l->row, K_MACHINE)));
    json_object_set_new(row, "engine", json_string(mlo_rows_text(k, l->row, K_ENGINE)));
    json_object_set_new(row, "measured_at", json_string(mlo_rows_text(k, l->row, K_AT)));
}

static void add_numbers(const struct look *l, const struct mlo_condition_verdict *v, json_t *row)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    json_object_set_new(row, "compared", l->compared ? json_string(l->compared) : json_null());
    if (v->judged) {
        json_object_set_new(row, "what", json_string(v->what));
        json_object_set_new(row, "value", json_real(v->value));
        json_object_set_new(row, "low", json_real(v->low));
        json_object_set_new(row, "high", json_real(v->high));
        json_object_set_new(row, "bound", json_real(v->bound));
        json_object_set_new(row, "op", json_string(v->op));
        json_object_set_new(row, "limit", json_real(v->limit));
    }
    if (l->gate->condition.base[0])
        json_object_set_new(row, "base",
                            json_pack("{s:s, s:o, s:s, s:s}", "name", l->gate->condition.base, "release",
                                      l->base.release ? json_integer(l->base.release) : json_null(),
                                      "variant", l->base.variant, "artifact",
                                      mlo_digest_text(&l->base.artifact, text)));
}

/* In a sentence, with the numbers. */
static json_t *judged_row(struct look *l, const struct mlo_condition_verdict *v, const char *why)
{
    const struct mlo_condition *c = &l->gate->condition;
    bool upper = c->op == MLO_LE || c->op == MLO_LT;
    const char *how = !l->compared ? ""
                      : strcmp(l->compared, "two intervals") == 0
                          ? "; not measured together, so by two intervals, "
                            "the worst of one against the best of the other"
                      : strcmp(l->compared, "paired") == 0 ? "; measured together"
                                                           : "";
    if (why[0])
        return mlo_gate_row(l->c, l->gate, l->item, false, "%s", why);
    if (v->judged && v->low == v->high)
        return mlo_gate_row(l->c, l->gate, l->item, v->holds, "%s is %.6g, which is %s%s %.6g%s", v->what,
                            v->value, v->holds ? "" : "not ", v->op, v->limit, how);
    if (v->judged)
        return mlo_gate_row(l->c, l->gate, l->item, v->holds,
                            "%s is %.6g (95%% interval %.6g to %.6g): its %s bound %.6g is %s%s %.6g%s",
                            v->what, v->value, v->low, v->high, upper ? "upper" : "lower", v->bound,
                            v->holds ? "" : "not ", v->op, v->limit, how);
    if (l->row < 0)
        return mlo_gate_row(l->c, l->gate, l->item, false, "%s of %s was not measured%s%s%s", c->metric,
                            l->item->variant.name, l->gate->machine_class ? " on machine class " : "",
                            l->gate->machine_class ? l->gate->machine_class : "",
                            l->gate->dataset ? " with that dataset" : "");
    if (!l->facts.have_value)
        return mlo_gate_row(l->c, l->gate, l->item, false,
                            "the evidence has no interval: no bound to judge by");
    return mlo_gate_row(l->c, l->gate, l->item, false,
                        "%s of %s was not compared with %s, nor was that measured in the same way", c->metric,
                        l->item->variant.name, c->base);
}

static enum mlo_status judge_item(struct mlo_gate_case *c, const struct mlo_gate *gate,
                                  const struct mlo_release_item *item, struct mlo_error *err)
{
    struct look l = {.c = c, .gate = gate, .item = item, .row = -1, .base_row = -1};
    struct mlo_condition_verdict v;
    char why[256] = "";
    const char *base = gate->condition.base;
    if (base[0]) {
        find_base(&l);
        if (l.base.empty)
            return mlo_gate_row(c, gate, item, true, "%s holds nothing for %s yet: nothing to compare with",
                                base, item->target)
                       ? MLO_OK
                       : mlo_error_nomem(err);
        if (mlo_digest_eq(&l.base.artifact, &item->variant.artifact)) {
            l.compared = "exact";
            l.facts = (struct mlo_condition_facts){.have_difference = true, /* 0 */
                                                   .have_ratio = gate->condition.factor != 1,
                                                   .ratio = 1,
                                                   .ratio_low = 1,
                                                   .ratio_high = 1};
        }
    }
    if (!l.compared)
        gather(&l);
    mlo_condition_judge(&gate->condition, &l.facts, &v);
    if (l.row >= 0) {
        enum mlo_status status = objection(&l, why, sizeof why, err);
        if (status != MLO_OK)
            return status;
    }
    json_t *row = judged_row(&l, &v, why);
    if (!row)
        return mlo_error_nomem(err);
    add_numbers(&l, &v, row);
    add_evidence(&l, row);
    return MLO_OK;
}

static enum mlo_status judge(struct mlo_gate_case *c, const struct mlo_gate *gate, struct mlo_error *err)
{
    bool any = false;
    for (size_t i = 0; i < c->content->count; i++) {
        const struct mlo_release_item *item = &c->content->items[i];
        if (!mlo_gate_concerns(gate, item->target))
            continue;
        any = true;
        enum mlo_status status = judge_item(c, gate, item, err);
        if (status != MLO_OK)
            return status;
    }
    if (!any && !mlo_gate_row(c, gate, NULL, true, "the release has no variant for the targets of this gate"))
        return mlo_error_nomem(err);
    return MLO_OK;
}

const struct mlo_gate_kind mlo_gate_evidence = {
    .name = "evidence",
    .keys = {"dataset", "machine_class", "engine", "younger_than"},
    .parse = parse,
    .judge = judge,
};
