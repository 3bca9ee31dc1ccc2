/* Derivations that were run again, from the same inputs and decisions and past every cache, to see whether
 * the same bytes come out. What came out is a row that nobody changes, with the worker's signed statement. */
#ifndef MLO_REGISTRY_REPRODUCTION_H
#define MLO_REGISTRY_REPRODUCTION_H

#include "registry/evidence.h"
#include "registry/page.h"

struct mlo_reproduction {
    int64_t project_id, version_id;
    const char *step;
    struct mlo_digest derivation;
    struct mlo_digest parent, artifact; /* what it works on, and what it had made */
    struct mlo_digest made;             /* what came out now; linked to the project */
    const char *signer, *envelope;      /* of the statement (attest.h), whose subject is `made` */
    const char *machine_class, *program;
    int64_t run_id, job_id;
};
/* Adds it, with its statement, and an audit entry: gates read it. MLO_EEXISTS when the job has one. */
MLO_MUST_USE enum mlo_status mlo_reproduction_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                  const struct mlo_reproduction *what, struct mlo_error *err);
/* A page of those of an artifact and of all that it was derived from, newest first: items {id, derivation,
 * step, parent, artifact, made, matched, signer, machine_class, program, run_id, job_id, requested_by, at}.
 */
MLO_MUST_USE enum mlo_status mlo_reproduction_list(struct mlo_db_conn *conn, int64_t project_id,
                                                   const struct mlo_digest *artifact,
                                                   const struct mlo_page *page, json_t **out,
                                                   struct mlo_error *err);

#endif
