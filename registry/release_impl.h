/* Private to registry: what a release consists of. */
#ifndef MLO_REGISTRY_RELEASE_IMPL_H
#define MLO_REGISTRY_RELEASE_IMPL_H

#include "registry/stages.h"

struct mlo_release {
    int64_t id, seq;
};

struct mlo_release_item {
    const char *target; /* borrowed from the choice */
    struct mlo_variant_info variant;
};

/* What was chosen, found. */
struct mlo_release_content {
    struct mlo_release_item *items; /* sorted by target */
    size_t count;
    json_t *json; /* {version, variants:[{target, variant, artifact}]} */
    struct mlo_digest digest;
};
/* Finds the variants of the version. Clear it. */
enum mlo_status mlo_release_content(struct mlo_db_conn *conn, const struct mlo_version_info *version,
                                    const struct mlo_release_choice *choices, size_t count,
                                    struct mlo_release_content *out, struct mlo_error *err);
/* Read ahead for mlo_version_find, mlo_variant_find and mlo_release_ensure. */
enum mlo_status mlo_version_ahead(struct mlo_db_conn *conn, int64_t model_id, int64_t number,
                                  struct mlo_error *err);
enum mlo_status mlo_variant_ahead(struct mlo_db_conn *conn, int64_t version_id, const char *name,
                                  struct mlo_error *err);
enum mlo_status mlo_release_ahead(struct mlo_db_conn *conn, const struct mlo_version_info *version,
                                  const struct mlo_release_content *content, struct mlo_error *err);
void mlo_release_content_clear(struct mlo_release_content *content);

/* The release with exactly this content: the one that is there, or a new one, for which it locks the model
 * (and forgets what was read ahead). */
enum mlo_status mlo_release_ensure(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_version_info *version,
                                   const struct mlo_release_content *content, struct mlo_release *out,
                                   struct mlo_error *err);

/* A release as JSON, by an expression for its id. */
#define MLO_RELEASE_JSON(id)                                                                                 \
    "(SELECT json_build_object('release', r.seq, 'version', v.number, "                                      \
    "'created_at', to_char(r.created_at, 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), 'created_by', r.created_by, " \
    "'variants', (SELECT json_agg(json_build_object('target', rv.target, 'variant', rv.variant, "            \
    "'artifact', 'sha256:' || encode(rv.artifact, 'hex'), 'size', rv.size) ORDER BY rv.target) "             \
    "FROM release_variant rv WHERE rv.release_id = r.id)) "                                                  \
    "FROM release r JOIN version v ON v.id = r.version_id WHERE r.id = " id ")"

#endif
