/* The catalog: pages by key sets, conditions as a parameter. See catalog.h. */
#include "registry/catalog.h"

#include <string.h>

#include "registry/sql_impl.h"

enum {
    CATALOG_MODELS,
    CATALOG_MODELS_FALLING, /* by name */
    CATALOG_VERSIONS,
    CATALOG_VERSIONS_FALLING,
    CATALOG_VERSIONS_TAGGED,
    CATALOG_VERSIONS_TAGGED_FALLING,
    CATALOG_VERSIONS_OF
};

/* clang-format off */
#define NAME "replace(p.name, '.', '..') || '.' || m.name"
#define MICROSECONDS(time) "(extract(epoch FROM " time ") * 1000000)::bigint"

/* The conditions ($3), each with the value that it is about. */
#define CONDITIONS(value)                                                                                    \
    "jsonb_to_recordset($3::jsonb) AS q (field text, key text, op text, text text, number bigint, list "     \
    "jsonb) CROSS JOIN LATERAL (SELECT " value " AS value) l"
#define TEXT_HOLDS                                                                                           \
    "CASE q.op WHEN '=' THEN l.value = q.text WHEN '!=' THEN l.value <> q.text "                             \
    "WHEN 'LIKE' THEN l.value LIKE q.text ESCAPE '' WHEN 'ILIKE' THEN l.value ILIKE q.text ESCAPE '' "       \
    "WHEN 'IN' THEN jsonb_exists(q.list, l.value) WHEN 'NOT IN' THEN NOT jsonb_exists(q.list, l.value) END"
#define NUMBER_HOLDS(value)                                                                                  \
    "CASE q.op WHEN '=' THEN " value " = q.number WHEN '!=' THEN " value " <> q.number "                     \
    "WHEN '<' THEN " value " < q.number WHEN '<=' THEN " value " <= q.number "                               \
    "WHEN '>' THEN " value " > q.number WHEN '>=' THEN " value " >= q.number END"

/* What stands in the stage, of the version v; of a version that is not in it: NULL. */
#define HELD(what, stage)                                                                                    \
    "(SELECT " what " FROM stage s JOIN release r ON r.id = s.release_id WHERE s.model_id = v.model_id "     \
    "AND s.name = '" stage "' AND r.version_id = v.id)"
#define EACH(what)                                                                                           \
    "(SELECT string_agg(rv.target || '=' || " what ", ',' ORDER BY rv.target) FROM release_variant rv "      \
    "WHERE rv.release_id = r.id)"
/* What the server says of a version v beside its uploader's tags: `_` is told the name behind "mlopt." and the
 * value. */
#define STAGE_TAGS(_, stage)                                                                                 \
    _(stage ".release", HELD("r.seq::text", stage))                                                          \
    _(stage ".variants", HELD(EACH("rv.variant"), stage))                                                    \
    _(stage ".digests", HELD(EACH("'sha256:' || encode(rv.artifact, 'hex')"), stage))
#define SERVER_TAGS(_)                                                                                       \
    _("model", "m.name")                                                                                     \
    _("manifest", "'sha256:' || encode(v.manifest_digest, 'hex')")                                           \
    _("digest", "(SELECT 'sha256:' || encode(b.digest, 'hex') FROM version_blob b "                          \
      "WHERE b.version_id = v.id AND b.role = 'model')")                                                     \
    _("variants", "(SELECT string_agg(DISTINCT va.name::text, ',') FROM variant va "                         \
      "WHERE va.version_id = v.id AND va.deletion_id IS NULL)")                                              \
    STAGE_TAGS(_, "staging")                                                                                 \
    STAGE_TAGS(_, "production")
#define BUILT(name, value) ", 'mlopt." name "', " value
#define CHOSEN(name, value) " WHEN 'mlopt." name "' THEN " value

#define MODEL_TAGS "jsonb_build_object('mlopt.project', p.name, 'mlopt.model', m.name)"
#define VERSION_TAGS                                                                                         \
    "jsonb_strip_nulls(jsonb_build_object('mlopt.project', p.name" SERVER_TAGS(BUILT) "))"
/* The one that a condition names: the others are not computed. */
#define SERVER_TAG "CASE q.key WHEN 'mlopt.project' THEN p.name" SERVER_TAGS(CHOSEN) " END"
/* Its uploader's: names that begin with "mlopt." are the server's alone, whatever was pushed. */
#define SERVERS(key) "starts_with(" key ", 'mlopt.')"
#define OWN_TAGS                                                                                             \
    "coalesce((SELECT jsonb_object_agg(o.key, o.value) FROM jsonb_each(v.manifest::jsonb #> "                \
    "'{facts,tags}') o WHERE NOT " SERVERS("o.key") "), '{}')"
/* The tag that a condition names, of its uploader. */
#define OWN_TAG                                                                                              \
    "(SELECT x.text FROM fact_name n JOIN version_fact x ON x.name_id = n.id WHERE n.project_id = "          \
    "m.project_id AND n.kind = 'tag' AND n.name = q.key AND x.version_id = v.id LIMIT 1)"

#define MODEL_VALUE "CASE q.field WHEN 'name' THEN " NAME " WHEN 'tag' THEN " MODEL_TAGS " ->> q.key END"
#define MODEL_FITS                                                                                           \
    "NOT EXISTS (SELECT 1 FROM " CONDITIONS(MODEL_VALUE) " WHERE NOT coalesce(" TEXT_HOLDS ", false))"
#define VERSION_VALUE                                                                                        \
    "CASE q.field WHEN 'name' THEN " NAME " WHEN 'tag' THEN CASE WHEN " SERVERS("q.key") " THEN "           \
    SERVER_TAG " ELSE " OWN_TAG " END END"
#define VERSION_FITS                                                                                         \
    "NOT EXISTS (SELECT 1 FROM " CONDITIONS(VERSION_VALUE) " WHERE NOT coalesce(CASE q.field "               \
    "WHEN 'version' THEN " NUMBER_HOLDS("v.number") " ELSE " TEXT_HOLDS " END, false))"

#define MODEL_CHANGED                                                                                        \
    "greatest(m.created_at, (SELECT v.created_at FROM version v WHERE v.model_id = m.id ORDER BY v.number "  \
    "DESC LIMIT 1), (SELECT max(s.moved_at) FROM stage s WHERE s.model_id = m.id))"
#define VERSION_CHANGED "greatest(v.created_at, v.archived_at)"
#define NEWEST(which)                                                                                        \
    "(SELECT v.id FROM version v WHERE v.model_id = m.id AND v.deletion_id IS NULL AND " which               \
    " ORDER BY v.number DESC LIMIT 1)"
#define HELD_BY_NONE                                                                                         \
    "v.archived_at IS NULL AND NOT EXISTS (SELECT 1 FROM stage s JOIN release r ON r.id = s.release_id "     \
    "WHERE s.model_id = m.id AND r.version_id = v.id)"

/* $1: the only project; $2: the only model; $4: the order, $5: 1 or -1; $6, $7, $8: the key of the page
 * before. What is ordered by a number rises in its product with $5. */
#define MODEL_PAGE(behind, order)                                                                            \
    "SELECT c.number AS key, c.name, c.project, c.model, m.id, m.description, m.created_by, "                \
    MICROSECONDS("m.created_at") " / 1000 AS created_ms, "                                                   \
    MICROSECONDS(MODEL_CHANGED) " / 1000 AS changed_ms, "                                                    \
    "(SELECT coalesce(json_agg(json_build_object('stage', s.name, 'version', v.number, 'id', v.id) "         \
    "ORDER BY s.name), '[]') FROM stage s JOIN release r ON r.id = s.release_id JOIN version v "             \
    "ON v.id = r.version_id WHERE s.model_id = m.id) AS stages, "                                            \
    NEWEST("v.archived_at IS NULL") " AS latest, " NEWEST(HELD_BY_NONE) " AS loose, "                        \
    NEWEST("v.archived_at IS NOT NULL") " AS archived, " MODEL_TAGS "::json AS tags "                        \
    "FROM (SELECT * FROM (SELECT m.id, p.name AS project, m.name AS model, " NAME " AS name, "               \
    "CASE $4::int WHEN 2 THEN " MICROSECONDS("m.created_at") " WHEN 3 THEN " MICROSECONDS(MODEL_CHANGED)     \
    " ELSE 0 END * $5::bigint AS number FROM model m JOIN project p ON p.id = m.project_id "                 \
    "WHERE m.deletion_id IS NULL AND ($1::bigint IS NULL OR m.project_id = $1) "                             \
    "AND ($2::bigint IS NULL OR m.id = $2) AND " MODEL_FITS ") c WHERE " behind " ORDER BY " order           \
    " LIMIT $9) c JOIN model m ON m.id = c.id JOIN project p ON p.id = m.project_id ORDER BY " order

#define VERSION_COLUMNS                                                                                      \
    NAME " AS name, p.name AS project, m.name AS model, v.number AS version, v.id, v.description, "          \
    "v.created_by, " MICROSECONDS("v.created_at") " / 1000 AS created_ms, " MICROSECONDS(VERSION_CHANGED)    \
    " / 1000 AS changed_ms, v.archived_at IS NOT NULL AS archived, "                                         \
    "(SELECT coalesce(json_agg(s.name ORDER BY s.name), '[]') FROM stage s JOIN release r "                  \
    "ON r.id = s.release_id WHERE s.model_id = v.model_id AND r.version_id = v.id) AS stages, "              \
    "(" OWN_TAGS " || " VERSION_TAGS ")::json AS tags "
#define VERSION_TABLES                                                                                       \
    "version v JOIN model m ON m.id = v.model_id JOIN project p ON p.id = m.project_id"

/* Those with the tag $10 of the text $11, by the index: a condition that few fit is not asked of all. It
 * stands alone: as a part of an OR it would be. */
#define TAGGED                                                                                               \
    "v.id IN (SELECT x.version_id FROM fact_name n JOIN version_fact x ON x.name_id = n.id "                 \
    "WHERE ($1::bigint IS NULL OR n.project_id = $1) AND n.kind = 'tag' AND n.name = $10::text "             \
    "AND x.text = $11::text) AND "

#define VERSION_PAGE(first, behind, order)                                                                   \
    "SELECT c.number AS key, " VERSION_COLUMNS "FROM (SELECT * FROM (SELECT v.id, " NAME " AS name, "        \
    "-v.number AS version, CASE $4::int WHEN 1 THEN v.number WHEN 2 THEN " MICROSECONDS("v.created_at")      \
    " WHEN 3 THEN " MICROSECONDS(VERSION_CHANGED) " ELSE 0 END * $5::bigint AS number FROM " VERSION_TABLES  \
    " WHERE v.deletion_id IS NULL AND m.deletion_id IS NULL AND ($1::bigint IS NULL OR m.project_id = $1) "  \
    "AND ($2::bigint IS NULL OR v.model_id = $2) AND " first VERSION_FITS ") c WHERE " behind                \
    " ORDER BY " order                                                                                       \
    " LIMIT $9) c JOIN version v ON v.id = c.id JOIN model m ON m.id = v.model_id "                          \
    "JOIN project p ON p.id = m.project_id ORDER BY " order

#define RISING "(c.number, c.name, c.version) > ($6::bigint, $7::text, $8::bigint)"
#define FALLING                                                                                              \
    "c.number >= $6::bigint AND ($7::text IS NULL OR c.name < $7 OR c.name = $7 AND c.version > $8::bigint)"
/* clang-format on */

const struct mlo_sql mlo_sql_catalog[] = {
    [CATALOG_MODELS] = {"catalog_models",
                        MODEL_PAGE("(c.number, c.name, 0) > ($6::bigint, $7::text, $8::bigint)",
                                   "c.number, c.name"),
                        9},
    [CATALOG_MODELS_FALLING] =
        {"catalog_models_falling",
         MODEL_PAGE("c.number >= $6::bigint AND $8::bigint IS NOT NULL AND ($7::text IS NULL OR c.name < $7)",
                    "c.name DESC"),
         9},
    [CATALOG_VERSIONS] = {"catalog_versions", VERSION_PAGE("", RISING, "c.number, c.name, c.version"), 9},
    [CATALOG_VERSIONS_FALLING] = {"catalog_versions_falling",
                                  VERSION_PAGE("", FALLING, "c.name DESC, c.version"), 9},
    [CATALOG_VERSIONS_TAGGED] = {"catalog_versions_tagged",
                                 VERSION_PAGE(TAGGED, RISING, "c.number, c.name, c.version"), 11},
    [CATALOG_VERSIONS_TAGGED_FALLING] = {"catalog_versions_tagged_falling",
                                         VERSION_PAGE(TAGGED, FALLING, "c.name DESC, c.version"), 11},
    [CATALOG_VERSIONS_OF] = {"catalog_versions_of",
                             "SELECT " VERSION_COLUMNS "FROM " VERSION_TABLES
                             " WHERE v.id = ANY ($1::bigint[]) ORDER BY v.id",
                             1},
};
const size_t mlo_sql_catalog_count = MLO_COUNT(mlo_sql_catalog);

bool mlo_catalog_name_parse(const char *name, char project[104], char model[104])
{
    size_t n = 0;
    const char *c = name;
    for (; *c && !(c[0] == '.' && c[1] != '.'); c++) {
        if (n >= 100)
            return false;
        project[n++] = *c;
        c += *c == '.'; /* a doubled one */
    }
    project[n] = '\0';
    if (*c != '.' || strlen(c + 1) > 100)
        return false;
    snprintf(model, 104, "%s", c + 1);
    return mlo_name_valid(project) && mlo_name_valid(model);
}

/* A condition that the index of facts answers: one that a tag of the uploader's is a text; NULL: none. */
static const json_t *indexed(const json_t *conditions)
{
    json_t *condition;
    size_t i;
    json_array_foreach((json_t *)conditions, i, condition)
    {
        if (strcmp(mlo_json_str(condition, "field", ""), "tag") == 0 &&
            strcmp(mlo_json_str(condition, "op", ""), "=") == 0 &&
            !mlo_str_starts(mlo_json_str(condition, "key", ""), "mlopt."))
            return condition;
    }
    return NULL;
}

static enum mlo_status run_page(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                const struct mlo_catalog *what, int statement, json_t **out, bool *more,
                                struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    const struct mlo_catalog_key *after = what->after;
    const bool by_name = what->order == MLO_CATALOG_NAME, falling = by_name && what->falling;
    enum mlo_status status = MLO_OK;
    *out = NULL;
    if (what->limit < 1 || what->limit > MLO_CATALOG_PAGE_MAX)
        return mlo_error_set(err, MLO_EINVAL, "a page has 1 to %d, not %lld", MLO_CATALOG_PAGE_MAX,
                             (long long)what->limit);
    if (what->conditions)
        mlo_json_canonical(what->conditions, &text);
    else
        mlo_buf_puts(&text, "[]");
    if (!mlo_buf_ok(&text))
        return mlo_error_nomem(err);
    mlo_param_id(&p, actor->project_id);
    mlo_param_id(&p, what->model_id);
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_i64(&p, what->order);
    mlo_param_i64(&p, what->falling && !by_name ? -1 : 1);
    mlo_param_i64(&p, after ? after->number : INT64_MIN);
    mlo_param_text(&p, after ? after->name : falling ? NULL : "");
    mlo_param_i64(&p, after ? -after->version : INT64_MIN);
    mlo_param_i64(&p, what->limit + 1);
    const json_t *tag = statement == CATALOG_VERSIONS ? indexed(what->conditions) : NULL;
    if (tag) {
        statement = CATALOG_VERSIONS_TAGGED;
        mlo_param_text(&p, mlo_json_str(tag, "key", NULL));
        mlo_param_text(&p, mlo_json_str(tag, "text", NULL));
    }
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_catalog[statement + falling], &p, &rows, err));
    *out = mlo_rows_json_all(&rows);
    if (!*out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *more = mlo_rows_count(&rows) > what->limit;
    if (*more)
        json_array_remove(*out, (size_t)what->limit);
out:
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_catalog_models(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_catalog *what, json_t **out, bool *more,
                                   struct mlo_error *err)
{
    return run_page(conn, actor, what, CATALOG_MODELS, out, more, err);
}

enum mlo_status mlo_catalog_versions(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                     const struct mlo_catalog *what, json_t **out, bool *more,
                                     struct mlo_error *err)
{
    return run_page(conn, actor, what, CATALOG_VERSIONS, out, more, err);
}

enum mlo_status mlo_catalog_versions_of(struct mlo_db_conn *conn, const int64_t *ids, size_t count,
                                        json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_array array = MLO_ARRAY_INIT;
    enum mlo_status status;
    *out = NULL;
    for (size_t i = 0; i < count; i++)
        mlo_array_i64(&array, ids[i]);
    MLO_TRY(mlo_param_array(&p, &array, err));
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_catalog[CATALOG_VERSIONS_OF], &p, out, err));
out:
    mlo_array_clear(&array);
    return status;
}
