/* Signatures (base/signature.h) of the forms of a version: what its uploader declared, which its manifest
 * holds, and what workers read in the bytes. Only what was read opens a gate. */
#ifndef MLO_REGISTRY_SIGNATURE_H
#define MLO_REGISTRY_SIGNATURE_H

#include "base/signature.h"
#include "registry/models.h"

#define MLO_ROLE_LABELS "labels" /* of the file of a version that holds its labels */

/* Whether a worker has read these bytes. */
MLO_MUST_USE enum mlo_status mlo_signature_known(struct mlo_db_conn *conn, const struct mlo_digest *blob,
                                                 bool *known, struct mlo_error *err);

struct mlo_signature_reading {
    struct mlo_digest blob;
    const json_t *document; /* {"inputs","outputs"} of a model, {"labels"} of a label file */
    const char *worker;
    int64_t job_id;
};
/* Keeps what a worker read; the same again is fine. Of one beyond MLO_SIGNATURE_MAX_BYTES it keeps that it is
 * too large: it is known then, and nobody reads it again. Another reading of the same bytes is kept beside
 * it: the newest counts. *added (may be NULL) tells whether it was news. */
MLO_MUST_USE enum mlo_status mlo_signature_record(struct mlo_db_conn *conn,
                                                  const struct mlo_signature_reading *reading, bool *added,
                                                  struct mlo_error *err);

/* {"artifact", "read": {inputs, outputs, labels} | null (no worker has read the model, or its label file, or
 * it is "too_large"), "read_at", "worker" (both null where a job of another project read the same bytes),
 * "declared": as pushed | null, "difference": text | null}. `difference` says where what was declared for the
 * upload is not what was read. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_signature_get(struct mlo_db_conn *conn, int64_t version_id,
                                               const struct mlo_digest *artifact, json_t **out,
                                               struct mlo_error *err);
/* Appends an audit entry where what was declared of a version is not what was read: nobody should have to
 * look for it. */
MLO_MUST_USE enum mlo_status mlo_signature_refute(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                  int64_t version_id, struct mlo_error *err);

#endif
