#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/macros.h"

struct mlo_pool {
    unsigned threads, started;
    pthread_t *handles;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool stop;
    unsigned long round; /* number of the loop being run */
    unsigned pending;    /* helpers still in it */
    mlo_range_fn *fn;
    void *arg;
    size_t count;
    unsigned parts;
};

struct start {
    struct mlo_pool *pool;
    unsigned index;
};

static void run_part(const struct mlo_pool *pool, unsigned part)
{
    if (part >= pool->parts)
        return;
    size_t begin = pool->count * part / pool->parts, end = pool->count * (part + 1) / pool->parts;
    if (begin < end)
        pool->fn(pool->arg, begin, end, part);
}

static void *helper_main(void *arg)
{
    struct start start = *(struct start *)arg;
    free(arg);
    struct mlo_pool *pool = start.pool;
    unsigned long seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->round == seen)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        run_part(pool, start.index);
        pthread_mutex_lock(&pool->lock);
        if (--pool->pending == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
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
    if (!pool->handles) {
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
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->started; i++)
        pthread_join(pool->handles[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->handles);
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
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->arg = arg;
    pool->count = count;
    pool->parts = (unsigned)MLO_MIN(most, (size_t)pool->threads);
    pool->pending = pool->started;
    pool->round++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    run_part(pool, 0);
    pthread_mutex_lock(&pool->lock);
    while (pool->pending)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

unsigned mlo_cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}
