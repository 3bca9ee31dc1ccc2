/* Facts as rows: (name, text, number), by which versions are found. */
#include <string.h>

#include "registry/evidence.h"
#include "registry/facts_impl.h"
#include "registry/sql_impl.h"

enum { FACTS_NAMES, FACTS_ROWS, FACTS_HOLD, FACTS_ANCESTOR };

#define GIVEN(json) "jsonb_to_recordset(" json "::jsonb) AS f (k text, n text, t text, v double precision)"

const struct mlo_sql mlo_sql_facts_rows[] = {
    /* in one order, so that two versions that bring the same new names do not wait for each other */
    [FACTS_NAMES] =
        {"facts_names",
         "INSERT INTO fact_name (project_id, kind, name) SELECT DISTINCT $1::bigint, f.k, f.n FROM " GIVEN(
             "$2") " WHERE NOT EXISTS (SELECT 1 FROM fact_name x WHERE x.project_id = $1 AND x.kind = f.k "
                   "AND x.name = f.n) ORDER BY f.k, f.n ON CONFLICT DO NOTHING",
         2},
    [FACTS_ROWS] =
        {"facts_rows",
         "INSERT INTO version_fact (version_id, name_id, text, number) SELECT DISTINCT $3::bigint, x.id, "
         "f.t, f.v FROM " GIVEN(
             "$2") " JOIN fact_name x ON x.project_id = $1 AND x.kind = f.k AND x.name = f.n",
         3},
    /* of two pushes that close a circle between them, each would see half: those of a project take turns */
    [FACTS_HOLD] = {"facts_hold",
                    "SELECT pg_advisory_xact_lock(hashtextextended('mlopt fine-tuned-from', $1))", 1},
    /* whether $3 is what $2 is, or what that came from */
    [FACTS_ANCESTOR] =
        {"facts_ancestor",
         "WITH RECURSIVE up(digest) AS (SELECT $2::bytea UNION SELECT e.parent FROM lineage_edge e JOIN up u "
         "ON e.child = u.digest WHERE e.project_id = $1) SELECT 1 FROM up WHERE digest = $3::bytea LIMIT 1",
         3},
};
const size_t mlo_sql_facts_rows_count = MLO_COUNT(mlo_sql_facts_rows);

/* A row more; `number` NULL: it is none. Takes `number` over. */
static bool add(json_t *rows, const char *kind, const char *name, const char *text, json_t *number)
{
    json_t *row = json_pack("{s:s, s:s, s:s, s:o*}", "k", kind, "n", name, "t", text, "v", number);
    return row && json_array_append_new(rows, row) == 0;
}

static bool add_param(json_t *rows, const char *name, const json_t *value)
{
    struct mlo_buf text = MLO_BUF_INIT;
    if (json_is_string(value))
        mlo_buf_puts(&text, json_string_value(value));
    else
        mlo_json_canonical(value, &text); /* 0.01, true */
    bool ok =
        mlo_buf_ok(&text) && add(rows, "param", name, mlo_buf_str(&text),
                                 json_is_number(value) ? json_real(json_number_value(value) + 0.0) : NULL);
    mlo_buf_clear(&text);
    return ok;
}

static bool add_facts(json_t *rows, const json_t *facts)
{
    const json_t *code = json_object_get(facts, "code");
    const char *name, *remote = mlo_json_str(code, "remote", NULL);
    json_t *value;
    size_t i;
    bool ok = true;
    json_object_foreach(json_object_get(facts, "params"), name, value) ok =
        ok && add_param(rows, name, value);
    json_object_foreach(json_object_get(facts, "metrics"), name, value) ok =
        ok && add(rows, "metric", name, "", json_incref(value));
    json_object_foreach(json_object_get(facts, "tags"), name, value) ok =
        ok && add(rows, "tag", name, json_string_value(value), NULL);
    json_array_foreach(json_object_get(facts, "datasets"), i, value) ok =
        ok && add(rows, "dataset", "", mlo_json_str(value, "digest", ""), NULL) &&
        add(rows, "dataset", "name", mlo_json_str(value, "name", ""), NULL);
    if (code) {
        ok = ok && add(rows, "code", "commit", mlo_json_str(code, "commit", ""), NULL) &&
             add(rows, "code", "dirty", mlo_json_bool(code, "dirty", true) ? "true" : "false", NULL);
        ok = ok && (!remote || add(rows, "code", "remote", remote, NULL));
    }
    const char *licence = mlo_json_str(facts, "licence", NULL);
    return ok && (!licence || add(rows, "licence", "", licence, NULL));
}

/* The edge to what it was made of. What is an ancestor of that, or the very same file, cannot be: nothing
 * comes from what came from it. */
static enum mlo_status add_origin(struct mlo_db_conn *conn, const struct mlo_version_info *version,
                                  const json_t *origin, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_digest digest;
    struct mlo_params hold = MLO_PARAMS_INIT, p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    if (!mlo_digest_parse(mlo_json_str(origin, "digest", ""), &digest))
        return MLO_OK;
    bool same = mlo_digest_eq(&digest, &version->artifact);
    mlo_param_i64(&hold, version->project_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_facts_rows[FACTS_HOLD], &hold, NULL, err));
    mlo_param_i64(&p, version->project_id);
    mlo_param_digest(&p, &digest);
    mlo_param_digest(&p, &version->artifact);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_facts_rows[FACTS_ANCESTOR], &p, &rows, err));
    if (mlo_rows_count(&rows) > 0) {
        mlo_error_set(err, MLO_EINVAL, "the model %s %s@%lld/%s, so it cannot be derived from that",
                      same ? "is the same file as" : "is an ancestor of", mlo_json_str(origin, "name", ""),
                      (long long)mlo_json_i64(origin, "version", 0), mlo_json_str(origin, "variant", ""));
        mlo_error_where(err, "facts.derived_from");
        mlo_error_hint(err,
                       same ? "push the file that training wrote"
                            : "push the file that training wrote, or name the version that it began with");
        status = MLO_EINVAL;
        goto out;
    }
    MLO_TRY(mlo_lineage_add(conn, version->project_id, &version->artifact, &digest,
                            MLO_LINEAGE_FINE_TUNED_FROM, NULL, 0, err));
out:
    mlo_rows_clear(&rows);
    return status;
}

/* What it was trained on, and by whom it was taught, in the lineage. */
static enum mlo_status add_lineage(struct mlo_db_conn *conn, const struct mlo_version_info *version,
                                   const json_t *facts, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_digest digest;
    json_t *item;
    size_t i;
    json_array_foreach(json_object_get(facts, "datasets"), i,
                       item) if (mlo_digest_parse(mlo_json_str(item, "digest", ""), &digest))
        MLO_TRY(mlo_lineage_add(conn, version->project_id, &version->artifact, &digest, "trained-on", NULL, 0,
                                err));
    if (mlo_digest_parse(mlo_json_str(json_object_get(facts, "teacher"), "digest", ""), &digest) &&
        !mlo_digest_eq(&digest, &version->artifact)) /* a model is not its own teacher */
        MLO_TRY(mlo_lineage_add(conn, version->project_id, &version->artifact, &digest,
                                MLO_LINEAGE_DISTILLED_FROM, NULL, 0, err));
    if (json_object_get(facts, "derived_from"))
        MLO_TRY(add_origin(conn, version, json_object_get(facts, "derived_from"), err));
out:
    return status;
}

enum mlo_status mlo_facts_insert(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                 const struct mlo_version_info *version, const char *model,
                                 const json_t *facts, struct mlo_error *err)
{
    struct mlo_params names = MLO_PARAMS_INIT, given = MLO_PARAMS_INIT;
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    json_t *rows = json_array();
    if (!rows || !add(rows, "model", "", model, NULL) || !add(rows, "author", "", actor->name, NULL) ||
        !add(rows, "version", "", "", json_integer(version->number)) || !add_facts(rows, facts)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_json_canonical(rows, &text);
    if (!mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_param_i64(&names, version->project_id);
    mlo_param_text(&names, mlo_buf_str(&text));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_facts_rows[FACTS_NAMES], &names, NULL, err));
    mlo_param_i64(&given, version->project_id);
    mlo_param_text(&given, mlo_buf_str(&text));
    mlo_param_i64(&given, version->id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_facts_rows[FACTS_ROWS], &given, NULL, err));
    MLO_TRY(add_lineage(conn, version, facts, err));
out:
    json_decref(rows);
    mlo_buf_clear(&text);
    return status;
}
