/* Models and versions of all projects that an actor may see, under names without a slash: what clients list
 * and search that know no projects (the subset of MLflow's API).
 *
 * A name is PROJECT.MODEL, with each dot of the project's own name doubled: model `c.d` of project `a.b` is
 * `a..b.c.d`. A model's name begins with a letter or digit, so there is one way to read it. */
#ifndef MLO_REGISTRY_CATALOG_H
#define MLO_REGISTRY_CATALOG_H

#include "registry/models.h"

#define MLO_CATALOG_NAME_SIZE 304 /* bytes of a name with its NUL, with room */
#define MLO_CATALOG_PAGE_MAX 1000

/* From a name to what it names; false when it is none. */
bool mlo_catalog_name_parse(const char *name, char project[104], char model[104]);

enum mlo_catalog_order {
    MLO_CATALOG_NAME,
    MLO_CATALOG_VERSION, /* of versions only */
    MLO_CATALOG_CREATED,
    MLO_CATALOG_CHANGED, /* a model: also by its newest version and by moves of its stages */
};

/* Where a page ended: what it was ordered by (0: the name), and what decides between equal ones. */
struct mlo_catalog_key {
    int64_t number;
    char name[MLO_CATALOG_NAME_SIZE];
    int64_t version; /* 0 of models */
};

struct mlo_catalog {
    /* All must hold: an array of {field, op, key?, and one of text, number, list}. `field` is "name", "tag"
     * (its `key`), "version" (of versions: a number), or "none": what nothing has. `op` is = != LIKE ILIKE
     * (text; % and _, nothing escapes them), IN, NOT IN (list), < <= > >= = != (number). Where there is no
     * such value nothing holds, != neither. NULL: no conditions. */
    const json_t *conditions;
    int64_t model_id; /* 0: of all */
    enum mlo_catalog_order order;
    bool falling;                        /* then by name, rising, and by version, falling */
    const struct mlo_catalog_key *after; /* NULL: from the beginning */
    int64_t limit;                       /* 1 to MLO_CATALOG_PAGE_MAX */
};

/* An array of {key (what it is ordered by), name, project, model, id, description, created_by, created_ms,
 * changed_ms, stages: [{stage, version, id}], latest, loose, archived, tags: {…}}. Times are milliseconds
 * since 1970; `latest`, `loose` and `archived` are ids of versions, or null: the newest that is not archived,
 * the newest of those that no stage holds, the newest archived one. *more tells of a further page. */
MLO_MUST_USE enum mlo_status mlo_catalog_models(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const struct mlo_catalog *what, json_t **out, bool *more,
                                                struct mlo_error *err);
/* An array of {key, name, project, model, version, id, description, created_by, created_ms, changed_ms,
 * archived, stages: ["production", …], tags: {…}}. `tags` are those that the version was pushed with, and
 * mlopt.project, .model, .digest (of the upload), .manifest, .variants, and of each stage that holds it
 * mlopt.STAGE.release, .variants (TARGET=VARIANT, …), .digests. */
MLO_MUST_USE enum mlo_status mlo_catalog_versions(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                  const struct mlo_catalog *what, json_t **out, bool *more,
                                                  struct mlo_error *err);
/* The same, without key, of these versions (at most once each), in the order of their ids. */
MLO_MUST_USE enum mlo_status mlo_catalog_versions_of(struct mlo_db_conn *conn, const int64_t *ids,
                                                     size_t count, json_t **out, struct mlo_error *err);

#endif
