/* Derivations (what made an artifact), lineage (from what), evidence (what was measured). Written by workers
 * within the transaction that completes a job. */
#ifndef MLO_REGISTRY_EVIDENCE_H
#define MLO_REGISTRY_EVIDENCE_H

#include "registry/models.h"

/* --- derivations ------------------------------------------------------------------------------- */

/* Records that this derivation made this artifact (its blob recorded before). The key is the SHA-256 of the
 * canonical text. The same again is fine; the same key with another artifact is MLO_ECONFLICT: the derivation
 * is not reproducible, and that is a bug worth a loud stop. `key` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_derivation_record(struct mlo_db_conn *conn, const json_t *derivation,
                                                   const char *step, const struct mlo_digest *artifact,
                                                   uint64_t size_bytes, const json_t *report,
                                                   struct mlo_digest *key, struct mlo_error *err);
/* The artifact of a derivation that was made before, for reuse; MLO_ENOTFOUND when it was not. `size_bytes`
 * and `report` (yours) may be NULL. */
MLO_MUST_USE enum mlo_status mlo_derivation_find(struct mlo_db_conn *conn, const struct mlo_digest *key,
                                                 struct mlo_digest *artifact, uint64_t *size_bytes,
                                                 json_t **report, struct mlo_error *err);
/* {key, derivation:{…}, step, artifact, size, report, made_at}. */
MLO_MUST_USE enum mlo_status mlo_derivation_get(struct mlo_db_conn *conn, const struct mlo_digest *key,
                                                json_t **out, struct mlo_error *err);

/* --- lineage
 * ---------------------------------------------------------------------------------------------------------
 */

#define MLO_LINEAGE_DERIVED_FROM "derived-from"
#define MLO_LINEAGE_DISTILLED_FROM "distilled-from"
#define MLO_LINEAGE_FINE_TUNED_FROM                                                                          \
    "fine-tuned-from" /* made of it elsewhere: no derivation of ours says how */
#define MLO_LINEAGE_CALIBRATED_WITH "calibrated-with"
#define MLO_LINEAGE_SELECTED_WITH "selected-with"
#define MLO_LINEAGE_EVALUATED_ON "evaluated-on"

/* Adds an edge; one that is there stays. Digests are of artifacts or of dataset manifests. `derivation` may
 * be NULL. */
MLO_MUST_USE enum mlo_status mlo_lineage_add(struct mlo_db_conn *conn, int64_t project_id,
                                             const struct mlo_digest *child, const struct mlo_digest *parent,
                                             const char *kind, const struct mlo_digest *derivation,
                                             int64_t run_id, struct mlo_error *err);
/* So many names of a node are told, the first that it had; and its names are counted so far. */
#define MLO_LINEAGE_NAMES 20
#define MLO_LINEAGE_COUNTED 1000
/* All ancestors and descendants within the project:
 * {"nodes":[{digest, type:"artifact"|"dataset"|"intermediate", names:["fashion/cnn@1/source"…], names_count,
 *  size}], "edges":[{child, parent, kind, derivation, step, at}], "root": digest}. MLO_ENOTFOUND when
 * unknown. */
MLO_MUST_USE enum mlo_status mlo_lineage_get(struct mlo_db_conn *conn, int64_t project_id,
                                             const struct mlo_digest *digest, json_t **out,
                                             struct mlo_error *err);
/* All variants of the project that the artifact is now, the last named first: {project, model, version,
 * variant, named_at, named_by, deleted}. */
MLO_MUST_USE enum mlo_status mlo_lineage_names(struct mlo_db_conn *conn, int64_t project_id,
                                               const struct mlo_digest *artifact, const struct mlo_page *page,
                                               json_t **out, struct mlo_error *err);

/* --- evidence
 * ----------------------------------------------------------------------------------------------------------
 */

struct mlo_interval {
    double value, low, high; /* NaN low and high: no interval */
};

struct mlo_evidence {
    int64_t project_id;
    struct mlo_digest artifact;
    const struct mlo_digest *dataset; /* manifest digest; NULL: none */
    const char *metric, *unit;
    const json_t *params; /* object; NULL: {} */
    struct mlo_interval observed;
    int64_t n;                         /* samples; 0: not told */
    const struct mlo_digest *baseline; /* NULL: not compared */
    const char *comparison;            /* "difference" or "ratio", with baseline */
    struct mlo_interval compared;
    const char *protocol, *engine, *machine_class;
    const json_t *machine;            /* object; NULL: {} */
    const struct mlo_digest *samples; /* blob; NULL: none */
    const char *data_role;            /* "evaluate"…; NULL: none */
    int64_t run_id, job_id;           /* 0: none */
};
/* Stores an observation (insert only). `id` may be NULL. The artifact must be linked to the project. */
MLO_MUST_USE enum mlo_status mlo_evidence_add(struct mlo_db_conn *conn, const struct mlo_evidence *evidence,
                                              int64_t *id, struct mlo_error *err);

/* --- samples of datasets ----------------------------------------------------------------------------------
 */

#define MLO_SAMPLE_BYTES 16 /* of a sample's SHA-256: what is kept of it */

/* Records which samples a dataset has: the first bytes of each one's SHA-256, sorted, one after another (a
 * sample that is in there twice stands there twice). The same dataset again is fine, and changes nothing. */
MLO_MUST_USE enum mlo_status mlo_samples_record(struct mlo_db_conn *conn, const struct mlo_digest *dataset,
                                                const void *hashes, size_t size_bytes, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_samples_known(struct mlo_db_conn *conn, const struct mlo_digest *dataset,
                                               bool *known, struct mlo_error *err);
/* How many samples two datasets share; *known is false where those of one were never recorded. */
MLO_MUST_USE enum mlo_status mlo_samples_shared(struct mlo_db_conn *conn, const struct mlo_digest *a,
                                                const struct mlo_digest *b, int64_t *shared, bool *known,
                                                struct mlo_error *err);

struct mlo_evidence_filter {
    const struct mlo_digest *artifact; /* NULL: all */
    const char *metric;                /* NULL: all */
    int64_t run_id;                    /* 0: all */
};
/* Newest first: {id, artifact, dataset, dataset_name, metric, params, unit, value, low, high, n, baseline,
 * comparison, comparison_value, comparison_low, comparison_high, protocol, engine, machine_class, machine,
 * samples, data_role, run_id, job_id, at}. */
MLO_MUST_USE enum mlo_status mlo_evidence_list(struct mlo_db_conn *conn, int64_t project_id,
                                               const struct mlo_evidence_filter *filter,
                                               const struct mlo_page *page, json_t **out,
                                               struct mlo_error *err);

#endif
