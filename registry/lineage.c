#include "registry/evidence.h"
#include "registry/sql_impl.h"

enum { LINEAGE_ADD, LINEAGE_NODES, LINEAGE_EDGES, LINEAGE_NAMES };

/* The most that is told bounds what is written out, not what is read: an artifact's variants are found by its
 * bytes, those of other projects with them, and looked through until enough of this project are found. What
 * thousands of versions elsewhere share is slow here too. */

/* The variants of the project that an artifact is now: what a name pointed at before does not count. */
#define NAMED(variants, wanted)                                                                              \
    "FROM " variants " va JOIN version v ON v.id = va.version_id JOIN model m ON m.id = v.model_id "         \
    "JOIN project p ON p.id = m.project_id WHERE " wanted "m.project_id = $1 "                               \
    "AND NOT EXISTS (SELECT 1 FROM variant newer WHERE newer.version_id = va.version_id "                    \
    "AND newer.name = va.name AND newer.id > va.id) "
/* Of one of a family: its variants first. The planner, which sees what most variants are, would go through
 * all versions for each of the family. In the index's order, so that a limit ends it. */
#define NAMED_OF_FAMILY                                                                                      \
    NAMED("(SELECT id, version_id, name FROM variant WHERE artifact = f.digest ORDER BY id OFFSET 0)", "")
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define FIRST_NAMES TEXT(MLO_LINEAGE_NAMES)
#define MOST_NAMES TEXT(MLO_LINEAGE_COUNTED)

/* The digest and all its descendants, then all ancestors of those: what it came from and what came of it,
 * each with its calibration and evaluation data. $1 project, $2 digest. */
#define FAMILY                                                                                               \
    "WITH RECURSIVE down(digest) AS (SELECT $2::bytea UNION SELECT e.child FROM lineage_edge e "             \
    "JOIN down d ON e.parent = d.digest WHERE e.project_id = $1), "                                          \
    "family(digest) AS (SELECT digest FROM down UNION SELECT e.parent FROM lineage_edge e "                  \
    "JOIN family f ON e.child = f.digest WHERE e.project_id = $1) "

const struct mlo_sql mlo_sql_lineage[] = {
    [LINEAGE_ADD] = {"lineage_add",
                     "INSERT INTO lineage_edge (project_id, child, parent, kind, derivation, run_id) "
                     "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                     6},
    [LINEAGE_NODES] = {"lineage_nodes",
                       FAMILY
                       ", named AS MATERIALIZED (SELECT f.digest, (SELECT json_agg(t.name ORDER BY t.id) "
                       "FROM (SELECT va.id, "
                       "p.name || '/' || m.name || '@' || v.number || '/' || va.name AS name " NAMED_OF_FAMILY
                       "ORDER BY va.id LIMIT " FIRST_NAMES ") t) AS artifacts, "
                       "(SELECT count(*) FROM (SELECT 1 " NAMED_OF_FAMILY "LIMIT " MOST_NAMES
                       ") t) AS artifacts_count, "
                       "(SELECT json_agg(t.name ORDER BY t.id) FROM (SELECT dv.id, "
                       "p.name || '/' || d.name || '@' || dv.number AS name FROM "
                       "dataset_version dv "
                       "JOIN dataset d ON d.id = dv.dataset_id JOIN project p ON p.id = "
                       "d.project_id "
                       "WHERE dv.manifest_digest = f.digest AND d.project_id = $1 ORDER BY "
                       "dv.id LIMIT " FIRST_NAMES ") t) AS datasets, (SELECT count(*) FROM (SELECT 1 FROM "
                       "dataset_version dv JOIN dataset d ON "
                       "d.id = dv.dataset_id WHERE dv.manifest_digest = f.digest AND "
                       "d.project_id = $1 "
                       "LIMIT " MOST_NAMES ") t) AS datasets_count FROM family f) "
                       "SELECT n.digest, CASE WHEN n.datasets IS NOT NULL THEN 'dataset' "
                       "WHEN n.artifacts IS NOT NULL THEN 'artifact' ELSE 'intermediate' "
                       "END AS type, "
                       "coalesce(n.datasets, n.artifacts, '[]'::json) AS names, "
                       "CASE WHEN n.datasets IS NOT NULL THEN n.datasets_count ELSE "
                       "n.artifacts_count END AS "
                       "names_count, "
                       "coalesce((SELECT b.size FROM project_blob pb JOIN blob b USING "
                       "(digest) "
                       "WHERE pb.project_id = $1 AND pb.digest = n.digest), "
                       "(SELECT sum(b.size)::bigint FROM dataset_blob b JOIN "
                       "dataset_version dv "
                       "ON dv.id = b.dataset_version_id JOIN dataset d ON d.id = "
                       "dv.dataset_id "
                       "WHERE dv.manifest_digest = n.digest AND d.project_id = $1 GROUP BY "
                       "dv.id LIMIT 1)) AS size "
                       "FROM named n ORDER BY n.digest",
                       2},
    [LINEAGE_EDGES] =
        {"lineage_edges",
         FAMILY "SELECT e.child, e.parent, e.kind, e.derivation, d.step, e.run_id, e.at FROM lineage_edge e "
                "LEFT JOIN derivation d ON d.key = e.derivation "
                "WHERE e.project_id = $1 AND e.child IN (SELECT digest FROM family) ORDER BY e.at, e.child, "
                "e.parent",
         2},
    [LINEAGE_NAMES] = {"lineage_names",
                       "SELECT va.id AS cursor_key, p.name AS project, m.name AS model, v.number AS version, "
                       "va.name AS variant, va.named_at, va.named_by, va.deletion_id IS NOT NULL AS "
                       "deleted " NAMED(
                           "variant",
                           "va.artifact = $2::bytea AND ") "AND va.id < $3 ORDER BY va.id DESC LIMIT $4",
                       4},
};
const size_t mlo_sql_lineage_count = MLO_COUNT(mlo_sql_lineage);

enum mlo_status mlo_lineage_add(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_digest *child,
                                const struct mlo_digest *parent, const char *kind,
                                const struct mlo_digest *derivation, int64_t run_id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_digest(&p, child);
    mlo_param_digest(&p, parent);
    mlo_param_text(&p, kind);
    mlo_param_digest(&p, derivation);
    mlo_param_id(&p, run_id);
    /* nobody waits for an answer */
    return mlo_db_in_transaction(conn) ? mlo_db_queue(conn, &mlo_sql_lineage[LINEAGE_ADD], &p, NULL, err)
                                       : mlo_db_exec(conn, &mlo_sql_lineage[LINEAGE_ADD], &p, NULL, err);
}

enum mlo_status mlo_lineage_get(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_digest *digest,
                                json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *nodes = NULL, *edges = NULL;
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status;
    *out = NULL;
    mlo_param_i64(&p, project_id);
    mlo_param_digest(&p, digest);
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_lineage[LINEAGE_NODES], &p, &nodes, err));
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_lineage[LINEAGE_EDGES], &p, &edges, err));
    const json_t *only = json_array_get(nodes, 0);
    if (json_array_size(edges) == 0 && json_array_size(nodes) == 1 &&
        json_is_null(json_object_get(only, "size"))) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "this project has no %s", mlo_digest_text(digest, text));
        goto out;
    }
    *out =
        json_pack("{s:s, s:O, s:O}", "root", mlo_digest_text(digest, text), "nodes", nodes, "edges", edges);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(nodes);
    json_decref(edges);
    return status;
}

enum mlo_status mlo_lineage_names(struct mlo_db_conn *conn, int64_t project_id,
                                  const struct mlo_digest *artifact, const struct mlo_page *page,
                                  json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_digest(&p, artifact);
    return mlo_page_newest(conn, &mlo_sql_lineage[LINEAGE_NAMES], &p, page, out, err);
}
