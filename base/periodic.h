/* A thread that does something now and then, until it is told to stop. Not in base.h. */
#ifndef MLO_BASE_PERIODIC_H
#define MLO_BASE_PERIODIC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct mlo_periodic;

/* What is done each time. Long work looks at mlo_periodic_stopping between its pieces. */
typedef void mlo_periodic_fn(struct mlo_periodic *self, void *arg);

/* Calls fn(arg) on a thread of its own, the first time after `first_ms` (0: at once), then `every_ms` (more
 * than 0) after each call's end, by a clock that nobody sets. MLO_EUNAVAILABLE: no thread can be started that
 * `what` ("keeps schedules") says of. */
MLO_MUST_USE enum mlo_status mlo_periodic_start(mlo_periodic_fn *fn, void *arg, uint64_t first_ms,
                                                uint64_t every_ms, const char *what,
                                                struct mlo_periodic **out, struct mlo_error *err);
/* Whether somebody waits for the end. NULL never stops. Any thread may ask. */
bool mlo_periodic_stopping(struct mlo_periodic *periodic);
/* Waits for the call that is being made, and frees it; no other begins. NULL is allowed. */
void mlo_periodic_stop(struct mlo_periodic *periodic);

#endif
