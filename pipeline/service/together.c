/* Completions of a worker's slots, sent together: those that come while one is under way share the next call,
 * and so one commit. Nobody waits for company: who finds nothing under way goes at once. */
#include "pipeline/service/worker_impl.h"

struct mlo_waiting {
    struct mlo_waiting *next;
    struct mlo_finished job;
    bool done;
};

void mlo_together_init(struct mlo_together *together)
{
    *together = (struct mlo_together){.waiting = NULL};
    pthread_mutex_init(&together->lock, NULL);
    pthread_cond_init(&together->ended, NULL);
}

void mlo_together_clear(struct mlo_together *together)
{
    pthread_cond_destroy(&together->ended);
    pthread_mutex_destroy(&together->lock);
}

/* Sends what waits, oldest first. Under the lock, which it gives up meanwhile. */
static void send_waiting(struct mlo_together *together, struct mlo_db *db)
{
    enum { MOST = 64 };
    struct mlo_finished jobs[MOST];
    struct mlo_waiting *sent[MOST];
    size_t count = 0;
    for (; together->waiting && count < MOST; together->waiting = together->waiting->next) {
        sent[count] = together->waiting;
        jobs[count++] = together->waiting->job;
    }
    together->count -= count;
    together->sending = true;
    together->calls++;
    pthread_mutex_unlock(&together->lock);
    mlo_queue_complete_all(db, jobs, count);
    pthread_mutex_lock(&together->lock);
    together->sending = false;
    for (size_t i = 0; i < count; i++) {
        sent[i]->job = jobs[i];
        sent[i]->done = true; /* its thread may take it away as soon as it has the lock */
    }
    pthread_cond_broadcast(&together->ended);
}

enum mlo_status mlo_together_complete(struct mlo_together *together, struct mlo_db *db,
                                      const struct mlo_job *job, const struct mlo_completion *what,
                                      struct mlo_error *err)
{
    struct mlo_waiting mine = {.job = {.job = job, .what = what}};
    struct mlo_waiting **last = &together->waiting;
    if (!mlo_queue_complete_shares(job, what)) /* nobody is to wait for what it takes */
        return mlo_queue_complete(db, job, what, err);
    pthread_mutex_lock(&together->lock);
    while (*last)
        last = &(*last)->next;
    *last = &mine;
    together->count++;
    while (!mine.done) {
        if (together->sending)
            pthread_cond_wait(&together->ended, &together->lock);
        else
            send_waiting(together, db); /* also for those that came meanwhile: mine is among the oldest */
    }
    pthread_mutex_unlock(&together->lock);
    if (mine.job.status != MLO_OK && err)
        *err = mine.job.error;
    return mine.job.status;
}
