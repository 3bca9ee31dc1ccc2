/* Private to registry: facts as rows, by which versions are found. */
#ifndef MLO_REGISTRY_FACTS_IMPL_H
#define MLO_REGISTRY_FACTS_IMPL_H

#include "registry/facts.h"
#include "registry/models.h"

/* Makes the rows of a new version; `facts` as mlo_facts_read gives them (NULL: none). `model` is its name. */
enum mlo_status mlo_facts_insert(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                 const struct mlo_version_info *version, const char *model,
                                 const json_t *facts, struct mlo_error *err);

/* "facts" as a column: of the manifest in the column `m`. */
#define MLO_FACTS_JSON(m) "coalesce(" m "::json -> 'facts', '{}'::json) AS facts"

#endif
