/* Statements of where an artifact came from: in-toto statements with SLSA provenance (v1), in DSSE envelopes
 * signed by the worker that made it. Stored as they were signed, and never changed. */
#ifndef MLO_REGISTRY_ATTEST_H
#define MLO_REGISTRY_ATTEST_H

#include "registry/db.h"

#define MLO_ATTEST_PAYLOAD "application/vnd.in-toto+json"
#define MLO_ATTEST_STATEMENT "https://in-toto.io/Statement/v1"
#define MLO_ATTEST_PREDICATE "https://slsa.dev/provenance/v1"
#define MLO_ATTEST_BUILD_TYPE "urn:mlopt:derivation:v1"

struct mlo_attestation {
    int64_t project_id;
    struct mlo_digest artifact, derivation;
    const char *signer;   /* the public key's text */
    const char *envelope; /* canonical JSON */
    int64_t run_id, job_id;
};
/* The artifact must be linked to the project. The same again is fine, unless its number is asked for:
 * MLO_EEXISTS. `id` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_attestation_add(struct mlo_db_conn *conn,
                                                 const struct mlo_attestation *attestation, int64_t *id,
                                                 struct mlo_error *err);
/* Those of an artifact and of all that it was derived from, oldest first: {artifact, derivation, signer,
 * run_id, job_id, made_at, envelope}. */
MLO_MUST_USE enum mlo_status mlo_attestation_list(struct mlo_db_conn *conn, int64_t project_id,
                                                  const struct mlo_digest *artifact, json_t **out,
                                                  struct mlo_error *err);

#endif
