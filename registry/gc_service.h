/* Garbage collection every so often, on a thread of its own. Several servers may have one. */
#ifndef MLO_REGISTRY_GC_SERVICE_H
#define MLO_REGISTRY_GC_SERVICE_H

#include "registry/gc.h"

struct mlo_gc_service;
struct mlo_gc_service_options {
    struct mlo_db *db; /* the server's role; borrowed, as the store */
    struct mlo_blob_store *blobs;
    int64_t every_s, grace_s;
};
/* The first time after a minute, or every_s when that is less. Failures are logged; the next time goes on. */
MLO_MUST_USE enum mlo_status mlo_gc_service_start(const struct mlo_gc_service_options *options,
                                                  struct mlo_gc_service **out, struct mlo_error *err);
/* Waits for the piece that is being done. NULL is allowed. */
void mlo_gc_service_stop(struct mlo_gc_service *service);

#endif
