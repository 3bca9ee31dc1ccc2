#include "registry/gc_service.h"

#include <stdlib.h>

#include "base/periodic.h"

struct mlo_gc_service {
    struct mlo_gc_service_options o;
    struct mlo_periodic *clock;
};

enum { PIECE_MS = 5000, FIRST_AFTER_MS = 60000 };

/* In pieces, so that a stop need not wait for all of it. */
static void collect(struct mlo_periodic *clock, void *arg)
{
    const struct mlo_gc_service *s = arg;
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    struct mlo_gc_options options = {.blobs = s->o.blobs, .grace_s = s->o.grace_s, .budget_ms = PIECE_MS};
    struct mlo_gc_result r = {.more = true};
    struct mlo_error err = {0};
    enum mlo_status status = MLO_OK;
    while (status == MLO_OK && r.more && !mlo_periodic_stopping(clock)) {
        struct mlo_db_conn *conn = NULL;
        status = mlo_db_acquire(s->o.db, &conn, &err);
        if (status == MLO_OK)
            status = mlo_gc_run(conn, &actor, &options, &r, NULL, &err);
        mlo_db_release(conn);
        options.behind = r.next;
        if (status == MLO_OK && (r.purged || r.marked || r.removed)) {
            char removed[24], bytes[32];
            snprintf(removed, sizeof removed, "%lld", (long long)r.removed);
            mlo_log(MLO_LOG_INFO, "garbage was collected", "blobs", removed, "bytes",
                    mlo_str_size((uint64_t)r.removed_bytes, bytes), NULL);
        }
    }
    if (status != MLO_OK)
        mlo_log_error(MLO_LOG_WARN, "garbage collection failed; the next one goes on", &err);
}

enum mlo_status mlo_gc_service_start(const struct mlo_gc_service_options *options,
                                     struct mlo_gc_service **out, struct mlo_error *err)
{
    const uint64_t every_ms = (uint64_t)MLO_MAX(options->every_s, 1) * 1000;
    struct mlo_gc_service *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return mlo_error_nomem(err);
    s->o = *options;
    enum mlo_status status = mlo_periodic_start(collect, s, MLO_MIN((uint64_t)FIRST_AFTER_MS, every_ms),
                                                every_ms, "collects garbage", &s->clock, err);
    if (status == MLO_OK)
        *out = s;
    else
        free(s);
    return status;
}

void mlo_gc_service_stop(struct mlo_gc_service *s)
{
    if (!s)
        return;
    mlo_periodic_stop(s->clock);
    free(s);
}
