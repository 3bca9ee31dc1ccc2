/* Projects, the blobs they may see, models, versions, variants, datasets.
 *
 * Reads give JSON ready for the API; what logic needs is typed. All functions work on a leased connection; a
 * mutation is one transaction with its audit entry, or part of the caller's. */
#ifndef MLO_REGISTRY_MODELS_H
#define MLO_REGISTRY_MODELS_H

#include "registry/audit.h"
#include "registry/blob.h"
#include "registry/facts.h"
#include "registry/ref.h"

/* --- projects ---------------------------------------------------------------------------------- */

/* MLO_EEXISTS when the name is taken. `id` may be NULL. Needs an admin of all projects. */
MLO_MUST_USE enum mlo_status mlo_project_create(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const char *name, const char *description, int64_t *id,
                                                struct mlo_error *err);
/* Finds it, or makes it when the actor may. */
MLO_MUST_USE enum mlo_status mlo_project_ensure(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const char *name, int64_t *id, struct mlo_error *err);
/* Finds it for an actor who must have `role` there. A project outside the actor's scope is MLO_ENOTFOUND,
 * like one that does not exist. */
MLO_MUST_USE enum mlo_status mlo_project_find(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              const char *name, enum mlo_role role, int64_t *id,
                                              struct mlo_error *err);
/* The second half of it: whether an actor who needs `role` may know of the project `id`, called `name`. */
MLO_MUST_USE enum mlo_status mlo_project_admit(const struct mlo_actor *actor, int64_t id, const char *name,
                                               enum mlo_role role, struct mlo_error *err);
/* {id, name, description, created_at, created_by, models, datasets} by name, of those in the actor's scope.
 */
MLO_MUST_USE enum mlo_status mlo_project_list(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              const struct mlo_page *page, json_t **out,
                                              struct mlo_error *err);

/* --- blobs of a project ------------------------------------------------------------------------ */

/* Records bytes that are in the store, and that this project really uploaded or derived. Idempotent; each
 * time the blob's grace begins again. A blob that was removed is brought back when its bytes are in `store`;
 * when they went at this very moment, MLO_EIO: store them again. */
MLO_MUST_USE enum mlo_status mlo_blob_record_stored(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                                    const struct mlo_actor *actor, int64_t project_id,
                                                    const struct mlo_digest *digest, uint64_t size_bytes,
                                                    struct mlo_error *err);
/* The same without a store at hand: one that was removed stays so (MLO_EIO). */
MLO_MUST_USE enum mlo_status mlo_blob_record(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                             int64_t project_id, const struct mlo_digest *digest,
                                             uint64_t size_bytes, struct mlo_error *err);
/* MLO_EQUOTA when the project may not keep so many bytes more: before they are sent. The links themselves are
 * refused by the database, whoever makes them. */
MLO_MUST_USE enum mlo_status mlo_storage_check(struct mlo_db_conn *conn, int64_t project_id,
                                               uint64_t more_bytes, struct mlo_error *err);
/* The same for these bytes, before they are published: what the project has already is nothing more. */
MLO_MUST_USE enum mlo_status mlo_storage_check_blob(struct mlo_db_conn *conn, int64_t project_id,
                                                    const struct mlo_digest *digest, uint64_t size_bytes,
                                                    struct mlo_error *err);
/* MLO_ENOTFOUND unless the project has a link to it: knowing a digest grants nothing. So for one that is
 * damaged, which is said. `size_bytes` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_blob_linked(struct mlo_db_conn *conn, int64_t project_id,
                                             const struct mlo_digest *digest, uint64_t *size_bytes,
                                             struct mlo_error *err);

/* Somebody who may upload asks whether it is there, and will not send it: its grace begins again. */
MLO_MUST_USE enum mlo_status mlo_blob_touch(struct mlo_db_conn *conn, int64_t project_id,
                                            const struct mlo_digest *digest, struct mlo_error *err);
/* A read found other bytes than the digest says. Looks again: damaged bytes are put aside in the store, the
 * row is marked, and the audit log says so; what refers to the blob stays, and the right bytes, uploaded
 * again, heal it. *damaged false: they are right now (they were replaced meanwhile). *aside (may be NULL) is
 * where the damaged bytes are, yours (free); NULL: they were gone. */
MLO_MUST_USE enum mlo_status mlo_blob_quarantine(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                                 const struct mlo_actor *actor,
                                                 const struct mlo_digest *digest, bool *damaged, char **aside,
                                                 struct mlo_error *err);

/* For whoever got MLO_EDIGEST of a read: does that on a connection of its own, which it leases when it has
 * looked, and leaves it to another one who does it already; logs it, and puts what was done into `err`.
 * `settle_it` false, as for a worker, whose role may not do more: it is reported only, nothing is hidden by
 * that, and a server looks for itself (garbage collection, the reconciler; until then who may upload is asked
 * to send it again: mlo_blob_reported). Returns MLO_EDIGEST; MLO_EIO (reading again helps) when they are
 * right now. */
MLO_MUST_USE enum mlo_status mlo_blob_report_damage(struct mlo_db *db, struct mlo_blob_store *store,
                                                    const struct mlo_actor *actor,
                                                    const struct mlo_digest *digest, bool settle_it,
                                                    struct mlo_error *err);

/* Looks at a blob that a worker reported as damaged (mlo_blob_quarantine): it is read with the connection
 * held, which is for those who have one for themselves. Outside of a transaction. */
MLO_MUST_USE enum mlo_status mlo_blob_settle_report(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                                    const struct mlo_digest *digest, struct mlo_error *err);

/* Whether a worker reported it as damaged and nobody has looked since: who has the bytes sends them again,
 * and they are written, not compared. No bytes are read for it. Ask mlo_blob_linked before. */
MLO_MUST_USE enum mlo_status mlo_blob_reported(struct mlo_db_conn *conn, const struct mlo_digest *digest,
                                               bool *out, struct mlo_error *err);
/* Its bytes were hashed and written anew: what was reported of it is answered. */
MLO_MUST_USE enum mlo_status mlo_blob_replaced(struct mlo_db_conn *conn, const struct mlo_digest *digest,
                                               struct mlo_error *err);

/* A blob within a manifest. */
struct mlo_manifest_blob {
    const char
        *role; /* versions: "model" exactly once, else "data", "document"…; datasets: "data", "images"… */
    const char *name; /* file name, unique in the manifest; no path */
    struct mlo_digest digest;
    const char *media_type; /* NULL: "application/octet-stream" */
    uint64_t size_bytes;    /* filled in from the project's blobs */
    bool size_said;         /* then it must be said_bytes */
    uint64_t said_bytes;
};

/* --- models and versions ----------------------------------------------------------------------- */

MLO_MUST_USE enum mlo_status mlo_model_create(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project_id, const char *name, const char *description,
                                              int64_t *id, struct mlo_error *err);
/* Finds it or makes it. */
MLO_MUST_USE enum mlo_status mlo_model_ensure(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project_id, const char *name, int64_t *id,
                                              struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_model_find(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                                            int64_t *id, struct mlo_error *err);
/* {id, project, name, description, created_at, created_by, versions, stages:{staging:{…}|null, production}}.
 */
MLO_MUST_USE enum mlo_status mlo_model_get(struct mlo_db_conn *conn, int64_t model_id, json_t **out,
                                           struct mlo_error *err);
/* Models of a project (0: of all in the actor's scope) by project and name, those with `text` in name or
 * description (NULL: all): {id, project, name, description, created_at, latest_version, staging, production}
 * - the stages as {release, version, generation} or null. */
MLO_MUST_USE enum mlo_status mlo_model_list(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                            int64_t project_id, const char *text, const struct mlo_page *page,
                                            json_t **out, struct mlo_error *err);

struct mlo_version_info {
    bool created; /* by mlo_version_create: false when the latest version has exactly these files already */
    bool archived, deleted;
    int64_t id, number, model_id, project_id;
    struct mlo_digest manifest,
        artifact; /* artifact: the blob in the role "model", i.e. the variant `source` */
    uint64_t artifact_size;
};

/* What a version is. */
struct mlo_version_content {
    const char *description;         /* NULL: none */
    const json_t *facts;             /* as mlo_facts_read takes them; NULL: none */
    const json_t *signature;         /* as its uploader declares it (signature.h); NULL, null: not */
    struct mlo_manifest_blob *blobs; /* each must be linked to the project, and is filled with its size */
    size_t count;
};
/* Adds a version - unless the latest one has the same manifest, which is then given: the next number of the
 * model's counter, a manifest of the blobs and facts, its variant `source`, and in the lineage what it says
 * it was trained on. */
MLO_MUST_USE enum mlo_status mlo_version_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                             int64_t model_id, const struct mlo_version_content *content,
                                             struct mlo_version_info *out, struct mlo_error *err);
/* The same of files alone. */
MLO_MUST_USE enum mlo_status mlo_version_create(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                int64_t model_id, const char *description,
                                                struct mlo_manifest_blob *blobs, size_t count,
                                                struct mlo_version_info *out, struct mlo_error *err);
/* `number` 0: the latest that is not archived. One that was deleted is MLO_ENOTFOUND, with words. */
MLO_MUST_USE enum mlo_status mlo_version_find(struct mlo_db_conn *conn, int64_t model_id, int64_t number,
                                              struct mlo_version_info *out, struct mlo_error *err);
/* The same, a deleted one too: for what stays of it (evidence, lineage). */
MLO_MUST_USE enum mlo_status mlo_version_find_any(struct mlo_db_conn *conn, int64_t model_id, int64_t number,
                                                  struct mlo_version_info *out, struct mlo_error *err);
/* By names, in one round trip: as mlo_project_find for `role`, mlo_model_find and mlo_version_find, or with
 * `deleted_too` mlo_version_find_any, one after the other, with their failures. */
MLO_MUST_USE enum mlo_status mlo_version_locate(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const char *project, const char *model, int64_t number,
                                                enum mlo_role role, bool deleted_too,
                                                struct mlo_version_info *out, struct mlo_error *err);
/* Reads it ahead (mlo_db_ahead): whether the actor may know of it is asked by the call itself. */
MLO_MUST_USE enum mlo_status mlo_version_locate_ahead(struct mlo_db_conn *conn, const char *project,
                                                      const char *model, int64_t number,
                                                      struct mlo_error *err);
/* {id, project, model, version, manifest_digest, description, created_at, created_by, facts (facts.h),
 *  archived: {at, by, reason} or null, deletion: number or null, files:[{role, name, digest, size,
 * media_type}]}. */
MLO_MUST_USE enum mlo_status mlo_version_get(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                             struct mlo_error *err);
/* Newest first; the same without files, with `variants` (a count). */
MLO_MUST_USE enum mlo_status mlo_version_list(struct mlo_db_conn *conn, int64_t model_id,
                                              const struct mlo_page *page, json_t **out,
                                              struct mlo_error *err);

/* --- variants ---------------------------------------------------------------------------------- */

#define MLO_VARIANT_SOURCE "source"

struct mlo_variant_info {
    int64_t id, version_id, run_id;
    char name[104];
    struct mlo_digest artifact, derivation;
    uint64_t size_bytes;
    bool has_derivation;
};

/* Points the name at an artifact (linked to the project, its derivation recorded). Naming what it already
 * names changes nothing and is not audited; *changed may be NULL. `source` cannot be named. `run_id` 0: none.
 */
MLO_MUST_USE enum mlo_status mlo_variant_name(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t version_id, const char *name,
                                              const struct mlo_digest *artifact,
                                              const struct mlo_digest *derivation, int64_t run_id,
                                              bool *changed, struct mlo_error *err);
/* Notes in the project's log that the caller's transaction gave the name of `version` (PROJECT/MODEL@VERSION)
 * to the artifact: behind all that it did (mlo_db_queue_last). `was`: what had it, NULL: nothing. */
MLO_MUST_USE enum mlo_status mlo_variant_audit(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                               int64_t project_id, const char *version, const char *name,
                                               const struct mlo_variant_info *was,
                                               const struct mlo_digest *artifact,
                                               const struct mlo_digest *derivation, int64_t run_id,
                                               struct mlo_error *err);
/* What the name points at now. */
MLO_MUST_USE enum mlo_status mlo_variant_find(struct mlo_db_conn *conn, int64_t version_id, const char *name,
                                              struct mlo_variant_info *out, struct mlo_error *err);
/* Array, `source` first: {variant, artifact, size, derivation, step, report, run_id, named_at, named_by,
 * evidence:[latest of each artifact, dataset, metric, params, machine class, engine: as in
 * mlo_evidence_list], plans:[as in mlo_variant_plans], reports:[as in mlo_variant_reports]}. */
MLO_MUST_USE enum mlo_status mlo_variant_list(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                              struct mlo_error *err);
/* What can be compared, in one statement: the variants of the model's newest versions, `newest` of them, and
 * of those that `numbers` names. Array, the newest version and in it `source` first: {version, variant,
 * artifact, size}. */
MLO_MUST_USE enum mlo_status mlo_variant_choice(struct mlo_db_conn *conn, int64_t model_id,
                                                const int64_t *numbers, size_t count, int newest,
                                                json_t **out, struct mlo_error *err);
/* Gives such rows their evidence, as in mlo_variant_list, in one statement. */
MLO_MUST_USE enum mlo_status mlo_variant_measured(struct mlo_db_conn *conn, int64_t project_id,
                                                  json_t *const *variants, size_t count,
                                                  struct mlo_error *err);
/* All that the name ever pointed at, newest first: {artifact, size, derivation, run_id, named_at, named_by}.
 */
MLO_MUST_USE enum mlo_status mlo_variant_history(struct mlo_db_conn *conn, int64_t version_id,
                                                 const char *name, json_t **out, struct mlo_error *err);

/* --- compiled plans of variants --------------------------------------------------------------------------
 */

struct mlo_variant_plan {
    int64_t project_id;
    struct mlo_digest artifact; /* the model that it is a plan of; linked to the project, as the blob is */
    const json_t *fingerprint;  /* what it was made for: opaque here, but for its digest */
    struct mlo_digest blob;
    uint64_t size_bytes;
    const char *signer, *machine_class;
    int64_t run_id, job_id; /* 0: none */
};
/* Attaches a plan to its model. One of the same fingerprint and signer stays as it is: it is a cache entry,
 * no history, and is not audited. */
MLO_MUST_USE enum mlo_status mlo_variant_plan_add(struct mlo_db_conn *conn,
                                                  const struct mlo_variant_plan *plan, struct mlo_error *err);
/* The plans of all artifacts of a version's variants, newest first: array of {artifact, blob, size, signer,
 * machine_class, fingerprint, made_for, run_id, made_at}. */
MLO_MUST_USE enum mlo_status mlo_variant_plans(struct mlo_db_conn *conn, int64_t project_id,
                                               int64_t version_id, json_t **out, struct mlo_error *err);

/* --- reports of variants -----------------------------------------------------------------------------------
 */

struct mlo_variant_report {
    int64_t project_id;
    struct mlo_digest artifact; /* what it explains; linked to the project, as the blob is */
    struct mlo_digest blob;
    uint64_t size_bytes;
    int64_t run_id, job_id; /* 0: none */
};
/* Attaches a report to its artifact; the same one of the same run stays as it is. */
MLO_MUST_USE enum mlo_status mlo_variant_report_add(struct mlo_db_conn *conn,
                                                    const struct mlo_variant_report *report,
                                                    struct mlo_error *err);
/* Those of all artifacts of a version's variants, newest first: array of {artifact, blob, size, run_id,
 * made_at}. */
MLO_MUST_USE enum mlo_status mlo_variant_reports(struct mlo_db_conn *conn, int64_t project_id,
                                                 int64_t version_id, json_t **out, struct mlo_error *err);
/* The newest of an artifact, or of one run (0: of any). MLO_ENOTFOUND says how to get one. */
MLO_MUST_USE enum mlo_status mlo_variant_report_find(struct mlo_db_conn *conn, int64_t project_id,
                                                     const struct mlo_digest *artifact, int64_t run_id,
                                                     struct mlo_digest *blob, uint64_t *size_bytes,
                                                     struct mlo_error *err);

/* --- datasets ---------------------------------------------------------------------------------- */

struct mlo_dataset_info {
    bool created; /* by mlo_dataset_version_create: false when the latest version is the same already */
    int64_t dataset_id, version_id, number, project_id;
    struct mlo_digest manifest; /* the dataset's digest */
};

/* What a version of a dataset is. */
struct mlo_dataset_content {
    const char *description;         /* NULL: none */
    const json_t *metadata;          /* an object (normalize, …; NULL: {}) */
    const json_t *facts;             /* as mlo_facts_read takes them; NULL: none */
    struct mlo_manifest_blob *blobs; /* as of a version */
    size_t count;
};
/* Adds a version (and the dataset, when absent). Metadata and facts are part of the manifest, hence of the
 * digest. */
MLO_MUST_USE enum mlo_status mlo_dataset_version_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                     int64_t project_id, const char *name,
                                                     const struct mlo_dataset_content *content,
                                                     struct mlo_dataset_info *out, struct mlo_error *err);
/* The same without facts. */
MLO_MUST_USE enum mlo_status mlo_dataset_version_create(struct mlo_db_conn *conn,
                                                        const struct mlo_actor *actor, int64_t project_id,
                                                        const char *name, const char *description,
                                                        const json_t *metadata,
                                                        struct mlo_manifest_blob *blobs, size_t count,
                                                        struct mlo_dataset_info *out, struct mlo_error *err);
/* `number` 0: the latest. */
MLO_MUST_USE enum mlo_status mlo_dataset_find(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                                              int64_t number, struct mlo_dataset_info *out,
                                              struct mlo_error *err);
/* {project, dataset, version, digest, metadata, facts, description, created_at, created_by,
 * files:[…]}. */
MLO_MUST_USE enum mlo_status mlo_dataset_get(struct mlo_db_conn *conn, int64_t dataset_version_id,
                                             json_t **out, struct mlo_error *err);
/* Datasets of a project (0: of all in scope) by name, each with its latest version. */
MLO_MUST_USE enum mlo_status mlo_dataset_list(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project_id, const struct mlo_page *page, json_t **out,
                                              struct mlo_error *err);

#endif
