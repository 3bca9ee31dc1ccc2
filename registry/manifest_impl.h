/* Private to registry: manifests, which versions and datasets share. */
#ifndef MLO_REGISTRY_MANIFEST_IMPL_H
#define MLO_REGISTRY_MANIFEST_IMPL_H

#include "registry/models.h"

/* Checks names and roles, fills sizes from the project's blobs (each must be linked), sorts by name, and
 * writes the canonical text {"files":[…]} with `members` (an object of others: metadata, facts; NULL: none)
 * and its digest. */
enum mlo_status mlo_manifest_make(struct mlo_db_conn *conn, int64_t project_id,
                                  struct mlo_manifest_blob *blobs, size_t count, const json_t *members,
                                  struct mlo_buf *text, struct mlo_digest *digest, struct mlo_error *err);
/* Inserts the rows (parent id, role, name, digest, size, media type) with this statement. */
enum mlo_status mlo_manifest_insert(struct mlo_db_conn *conn, const struct mlo_sql *sql, int64_t parent_id,
                                    const struct mlo_manifest_blob *blobs, size_t count,
                                    struct mlo_error *err);

/* "files" as a column: of the blob table `t` whose column `c` is `id`. */
#define MLO_FILES_JSON(t, c, id)                                                                             \
    "coalesce((SELECT json_agg(json_build_object('role', f.role, 'name', f.name, 'digest', "                 \
    "'sha256:' || encode(f.digest, 'hex'), 'size', f.size, 'media_type', f.media_type) ORDER BY f.name) "    \
    "FROM " t " f WHERE f." c " = " id "), '[]'::json) AS files"

#endif
