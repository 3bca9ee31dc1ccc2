/* Why a ready job is not taken. */
#ifndef MLO_SERVICE_WAITS_IMPL_H
#define MLO_SERVICE_WAITS_IMPL_H

#include "pipeline/service/service_impl.h"

/* Whether none of these workers, [{"targets","memory_bytes","disk_bytes","gpus":[{"model"}]}] (null: it does
 * not say), can take a job of {"target","memory_bytes","disk_bytes","gpus","gpu","estimated"}, and then why:
 * "needs 64.0 GB of memory; the largest worker has 16.0 GB". */
bool mlo_waits_for_workers(const json_t *workers, const json_t *job, struct mlo_buf *out);
/* Gives each job of a run, as mlo_run_get has them, its "waits": a text for a queued one that cannot be
 * taken as things stand, else null. */
MLO_MUST_USE enum mlo_status mlo_waits_of_run(struct mlo_db_conn *conn, int64_t run, json_t *jobs,
                                              struct mlo_error *err);

#endif
