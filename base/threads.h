/* A thread pool for data-parallel loops. Work is split statically by index, so which thread does what
 * never changes a result that is itself independent per index. The pool sleeps when idle. */
#ifndef MLO_BASE_THREADS_H
#define MLO_BASE_THREADS_H

#include <stdbool.h>
#include <stddef.h>

struct mlo_pool;

/* Work on indices [begin, end); `worker` is 0 … threads-1. */
typedef void mlo_range_fn(void *arg, size_t begin, size_t end, unsigned worker);

/* A pool in which `threads` threads work, the caller being one of them (1: no thread is made).
 * NULL when threads cannot be started. */
struct mlo_pool *mlo_pool_new(unsigned threads);
void mlo_pool_free(struct mlo_pool *pool);
unsigned mlo_pool_threads(const struct mlo_pool *pool);

/* Runs fn over [0, count), split into contiguous ranges of at least `grain` indices, and returns when all
 * is done. One caller at a time. A NULL pool runs it on the caller's thread. */
void mlo_pool_run(struct mlo_pool *pool, size_t count, size_t grain, mlo_range_fn *fn, void *arg);

/* While busy, threads that are done with a loop look for the next one for some microseconds before they
 * sleep: for loops that follow closely. The pool does not spin otherwise. */
void mlo_pool_busy(struct mlo_pool *pool, bool busy);

/* The number of CPUs this process may run on. */
unsigned mlo_cpu_count(void);

#endif
