#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/macros.h"

/* How often a thread looks before it sleeps: some tens of microseconds, about what waking another takes. */
enum { SPINS = 2000 };

struct mlo_pool {
    unsigned threads, started;
    pthread_t *handles;
    pthread_mutex_t lock; /* for going to sleep */
    pthread_cond_t work, done;
    atomic_bool stop, busy, waiting; /* busy: more loops follow soon; waiting: the caller sleeps */
    atomic_ulong round;              /* number of the loop being run: what follows is written before it */
    atomic_uint sleepers, pending;   /* helpers asleep, and parts that are not done */
    mlo_range_fn *fn;
    void *arg;
    size_t count;
    unsigned parts;
    /* By part: the last loop in which a thread has taken it, or in which there is no such part. */
    struct claim {
        _Alignas(64) atomic_ulong round;
    } * claims;
};

struct start {
    struct mlo_pool *pool;
    unsigned index;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void run_part(const struct mlo_pool *pool, unsigned part)
{
    size_t begin = pool->count * part / pool->parts, end = pool->count * (part + 1) / pool->parts;
    if (begin < end)
        pool->fn(pool->arg, begin, end, part);
}

/* Takes a part of a loop unless somebody else has, or the loop is over: what a loop consists of may be read
 * only by who has a part of it, for which its caller waits. */
static bool take_part(struct mlo_pool *pool, unsigned part, unsigned long round)
{
    unsigned long last = atomic_load(&pool->claims[part].round);
    return last < round && atomic_compare_exchange_strong(&pool->claims[part].round, &last, round);
}

/* Until there is a loop after `seen`; false: the pool ends. Who sleeps says so before it looks a last time,
 * and who starts a loop looks for sleepers after it has, so that one of them sees the other. */
static bool await_work(struct mlo_pool *pool, unsigned long seen)
{
    for (int i = 0; i < SPINS && atomic_load(&pool->busy) && atomic_load(&pool->round) == seen; i++)
        relax();
    if (atomic_load(&pool->round) == seen) {
        pthread_mutex_lock(&pool->lock);
        atomic_fetch_add(&pool->sleepers, 1);
        while (!atomic_load(&pool->stop) && atomic_load(&pool->round) == seen)
            pthread_cond_wait(&pool->work, &pool->lock);
        atomic_fetch_sub(&pool->sleepers, 1);
        pthread_mutex_unlock(&pool->lock);
    }
    return !atomic_load(&pool->stop);
}

static void *helper_main(void *arg)
{
    struct start start = *(struct start *)arg;
    free(arg);
    struct mlo_pool *pool = start.pool;
    for (unsigned long seen = 0; await_work(pool, seen);) {
        seen = atomic_load(&pool->round);
        if (!take_part(pool, start.index, seen))
            continue;
        run_part(pool, start.index);
        if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->waiting)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
    return NULL;
}

/* A helper that has not begun yet (it was asleep, or something else runs on its processor) is not waited for:
 * the caller does its part. */
static void finish_parts(struct mlo_pool *pool, unsigned long round)
{
    for (unsigned part = 1; part < pool->parts && atomic_load(&pool->pending); part++)
        if (take_part(pool, part, round)) {
            run_part(pool, part);
            atomic_fetch_sub(&pool->pending, 1);
        }
    for (int i = 0; i < SPINS && atomic_load(&pool->pending); i++)
        relax();
    if (!atomic_load(&pool->pending))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->waiting, true);
    while (atomic_load(&pool->pending))
        pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->waiting, false);
    pthread_mutex_unlock(&pool->lock);
}

struct mlo_pool *mlo_pool_new(unsigned threads)
{
    struct mlo_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->threads = threads ? threads : 1;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->handles = calloc(pool->threads, sizeof *pool->handles);
    pool->claims = aligned_alloc(_Alignof(struct claim), pool->threads * sizeof *pool->claims);
    for (unsigned i = 0; pool->claims && i < pool->threads; i++)
        atomic_init(&pool->claims[i].round, 0);
    if (!pool->handles || !pool->claims) {
        mlo_pool_free(pool);
        return NULL;
    }
    for (unsigned i = 1; i < pool->threads; i++) {
        struct start *start = malloc(sizeof *start);
        if (start)
            *start = (struct start){pool, i};
        if (!start || pthread_create(&pool->handles[pool->started], NULL, helper_main, start) != 0) {
            free(start);
            mlo_pool_free(pool);
            return NULL;
        }
        pool->started++;
    }
    return pool;
}

void mlo_pool_free(struct mlo_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, true);
    atomic_store(&pool->busy, false);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->started; i++)
        pthread_join(pool->handles[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->handles);
    free(pool->claims);
    free(pool);
}

unsigned mlo_pool_threads(const struct mlo_pool *pool)
{
    return pool ? pool->threads : 1;
}

void mlo_pool_run(struct mlo_pool *pool, size_t count, size_t grain, mlo_range_fn *fn, void *arg)
{
    if (count == 0)
        return;
    size_t most = grain ? count / grain : count;
    if (!pool || pool->threads == 1 || most <= 1) {
        fn(arg, 0, count, 0);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    pool->count = count;
    pool->parts = (unsigned)MLO_MIN(most, (size_t)pool->threads);
    unsigned long round = atomic_load(&pool->round) + 1;
    for (unsigned part = pool->parts; part < pool->threads; part++)
        atomic_store(&pool->claims[part].round, round);
    atomic_store(&pool->pending, pool->parts - 1);
    atomic_store(&pool->round, round);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
    }
    run_part(pool, 0);
    finish_parts(pool, round);
}

void mlo_pool_busy(struct mlo_pool *pool, bool busy)
{
    if (pool)
        atomic_store(&pool->busy, busy);
}

unsigned mlo_cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}
