/* One thread asks for all who wait, and then wakes the first who came in the meantime to do the same. */
#include "registry/gather.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* LANES: round trips at a time; the server's threads prepare the next one while one is answered. MOST:
 * threads to one, so that no answer becomes large. KINDS: statements to one. */
enum { LANES = 2, MOST = 64, KINDS = 8 };

/* One thread's questions, on its stack: who leads fills it, and lets go of it with the post. */
struct visit {
    struct mlo_gather_ask *asks;
    size_t count;
    struct visit *next;
    sem_t wake;
    bool leads; /* woken to ask, not to read */
    bool none;  /* of who led: there was no answer to be had, by whatever question */
    enum mlo_status status;
    struct mlo_error err;
};

struct mlo_gather {
    struct mlo_db *db;
    pthread_mutex_t lock;
    struct visit *waiting, **end; /* those that nobody asks for yet, in order */
    int running;                  /* lanes; while fewer than LANES nobody waits */
};

struct mlo_gather_answer {
    atomic_size_t uses;
    PGresult *result;
};

/* The questions to one statement. */
struct group {
    const struct mlo_sql *sql;
    struct mlo_array arrays[MLO_GATHER_VALUES];
    struct mlo_params params;
    struct mlo_rows rows;
    const struct mlo_gather_ask *last; /* the one that was put last */
    int count;
    struct mlo_gather_answer *answer;
};

enum mlo_status mlo_gather_new(struct mlo_db *db, struct mlo_gather **out, struct mlo_error *err)
{
    struct mlo_gather *gather = calloc(1, sizeof *gather);
    *out = gather;
    if (!gather)
        return mlo_error_nomem(err);
    gather->db = db;
    gather->end = &gather->waiting;
    pthread_mutex_init(&gather->lock, NULL);
    return MLO_OK;
}

void mlo_gather_free(struct mlo_gather *gather)
{
    if (!gather)
        return;
    pthread_mutex_destroy(&gather->lock);
    free(gather);
}

/* --- asking for all ---------------------------------------------------------------------------- */

static bool same(const struct mlo_gather_ask *a, const struct mlo_gather_ask *b)
{
    for (int i = 0; i < a->sql->params; i++)
        if (!a->values[i] != !b->values[i] || (a->values[i] && strcmp(a->values[i], b->values[i]) != 0))
            return false;
    return true;
}

static struct group *group_of(struct group *groups, size_t *count, const struct mlo_sql *sql)
{
    for (size_t i = 0; i < *count; i++)
        if (groups[i].sql == sql)
            return &groups[i];
    if (*count == KINDS)
        return NULL;
    groups[*count] = (struct group){.sql = sql};
    return &groups[(*count)++];
}

/* Its number goes where its row will: many with one token ask the same, one after the other. */
static void put(struct group *group, struct mlo_gather_ask *ask)
{
    if (!group->last || !same(group->last, ask)) {
        for (int i = 0; i < ask->sql->params; i++)
            mlo_array_text(&group->arrays[i], ask->values[i]);
        group->last = ask;
        group->count++;
    }
    ask->row = group->count;
}

static enum mlo_status make_params(struct group *group, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < group->sql->params && status == MLO_OK; i++)
        status = mlo_param_array(&group->params, &group->arrays[i], err);
    return status;
}

/* All statements in one round trip: the first is waited for, the others travel with it. *lost: the connection
 * ended. *none: there was none, or no answer on it. */
static enum mlo_status ask_once(struct mlo_gather *gather, struct group *groups, size_t count, bool *lost,
                                bool *none, struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    enum mlo_status status = mlo_db_acquire(gather->db, &conn, err);
    *lost = false;
    *none = status != MLO_OK;
    if (status != MLO_OK)
        return status;
    for (size_t i = 1; i < count && status == MLO_OK; i++)
        status = mlo_db_ahead(conn, groups[i].sql, &groups[i].params, err);
    for (size_t i = 0; i < count && status == MLO_OK; i++)
        status = mlo_db_exec(conn, groups[i].sql, &groups[i].params, &groups[i].rows, err);
    *lost = status != MLO_OK && mlo_db_lost(conn);
    *none = status == MLO_EUNAVAILABLE;
    mlo_db_release(conn);
    return status;
}

/* They only read: where a connection ended under them, another one is asked, before that fails many. */
static enum mlo_status ask_all(struct mlo_gather *gather, struct group *groups, size_t count, bool *none,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool lost = false;
    for (size_t i = 0; i < count && status == MLO_OK; i++)
        status = make_params(&groups[i], err);
    if (status == MLO_OK)
        status = ask_once(gather, groups, count, &lost, none, err);
    if (lost)
        status = ask_once(gather, groups, count, &lost, none, err);
    return status;
}

/* The number of the question becomes that of its row. */
static void hand_out(const struct group *group, const int *row_of, struct mlo_gather_ask *ask)
{
    ask->row = row_of[ask->row];
    ask->rows = group->rows;
    ask->answer = group->answer;
    atomic_fetch_add(&group->answer->uses, 1);
}

static void answer_free(struct mlo_gather_answer *answer)
{
    if (answer && atomic_fetch_sub(&answer->uses, 1) == 1) {
        PQclear(answer->result);
        free(answer);
    }
}

/* Takes over the group's rows, and gives each question its own. */
static enum mlo_status share(struct group *group, struct visit *first, struct mlo_error *err)
{
    int *row_of = malloc(((size_t)group->count + 1) * sizeof *row_of);
    group->answer = calloc(1, sizeof *group->answer);
    if (!row_of || !group->answer) {
        free(row_of);
        free(group->answer);
        group->answer = NULL;
        mlo_rows_clear(&group->rows);
        return mlo_error_nomem(err);
    }
    atomic_init(&group->answer->uses, 1);
    group->answer->result = group->rows.result;
    for (int i = 0; i <= group->count; i++)
        row_of[i] = -1;
    for (int r = 0; r < mlo_rows_count(&group->rows); r++) {
        int64_t number = mlo_rows_i64(&group->rows, r, 0);
        if (number >= 1 && number <= group->count)
            row_of[number] = r;
    }
    for (struct visit *v = first; v; v = v->next)
        for (size_t i = 0; i < v->count; i++)
            if (v->asks[i].sql == group->sql)
                hand_out(group, row_of, &v->asks[i]);
    free(row_of);
    return MLO_OK;
}

static void serve(struct mlo_gather *gather, struct visit *first)
{
    struct group groups[KINDS];
    struct mlo_error err = {0};
    size_t count = 0;
    enum mlo_status status = MLO_OK;
    for (struct visit *v = first; v && status == MLO_OK; v = v->next)
        for (size_t i = 0; i < v->count && status == MLO_OK; i++) {
            struct group *group = group_of(groups, &count, v->asks[i].sql);
            if (group)
                put(group, &v->asks[i]);
            else
                status = mlo_error_set(&err, MLO_EINTERNAL, "more than %d kinds of questions", KINDS);
        }
    if (status == MLO_OK)
        status = ask_all(gather, groups, count, &first->none, &err);
    for (size_t i = 0; i < count; i++) {
        if (status == MLO_OK)
            status = share(&groups[i], first, &err);
        else
            mlo_rows_clear(&groups[i].rows);
        answer_free(groups[i].answer);
        for (int k = 0; k < MLO_GATHER_VALUES; k++)
            mlo_array_clear(&groups[i].arrays[k]);
    }
    for (struct visit *v = first; v; v = v->next) {
        v->status = status;
        if (status != MLO_OK)
            v->err = err;
    }
}

/* --- whose turn it is -------------------------------------------------------------------------- */

/* Behind `self`, those who came meanwhile, up to MOST. */
static void take(struct mlo_gather *gather, struct visit *self)
{
    struct visit *last = self;
    pthread_mutex_lock(&gather->lock);
    self->next = gather->waiting;
    for (size_t n = 1; n < MOST && last->next; n++)
        last = last->next;
    gather->waiting = last->next;
    last->next = NULL;
    if (!gather->waiting)
        gather->end = &gather->waiting;
    pthread_mutex_unlock(&gather->lock);
}

/* With the post each is its thread's again. */
static void wake(struct visit *first)
{
    for (struct visit *v = first, *next; v; v = next) {
        next = v->next;
        sem_post(&v->wake);
    }
}

/* The next who waits leads, or the lane ends. Where there was no answer to be had, all who wait are told so:
 * each round would take as long to find it out, behind the others. A statement that failed, of its time too,
 * says nothing about theirs. */
static void pass_on(struct mlo_gather *gather, const struct visit *done)
{
    struct visit *failed = NULL;
    pthread_mutex_lock(&gather->lock);
    if (done->none) {
        failed = gather->waiting;
        gather->waiting = NULL;
        gather->end = &gather->waiting;
    }
    struct visit *next = gather->waiting;
    if (next) {
        gather->waiting = next->next;
        if (!gather->waiting)
            gather->end = &gather->waiting;
        next->next = NULL;
        next->leads = true;
    } else {
        gather->running--;
    }
    pthread_mutex_unlock(&gather->lock);
    if (next)
        sem_post(&next->wake);
    for (struct visit *v = failed; v; v = v->next) {
        v->status = done->status;
        v->err = done->err;
    }
    wake(failed);
}

static void lead(struct mlo_gather *gather, struct visit *self)
{
    take(gather, self);
    serve(gather, self);
    pass_on(gather, self);
    wake(self->next);
}

enum mlo_status mlo_gather_read(struct mlo_gather *gather, struct mlo_gather_ask *asks, size_t count,
                                struct mlo_error *err)
{
    struct visit self = {.asks = asks, .count = count};
    for (size_t i = 0; i < count; i++) {
        asks[i].row = -1;
        asks[i].answer = NULL;
    }
    pthread_mutex_lock(&gather->lock);
    bool leads = gather->running < LANES;
    if (leads) {
        gather->running++;
    } else {
        sem_init(&self.wake, 0, 0);
        *gather->end = &self;
        gather->end = &self.next;
    }
    pthread_mutex_unlock(&gather->lock);
    if (leads) {
        lead(gather, &self);
    } else {
        while (sem_wait(&self.wake) != 0 && errno == EINTR) {
        }
        if (self.leads)
            lead(gather, &self);
        sem_destroy(&self.wake);
    }
    if (self.status != MLO_OK && err)
        *err = self.err;
    return self.status;
}

void mlo_gather_clear(struct mlo_gather_ask *asks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        answer_free(asks[i].answer);
        asks[i].answer = NULL;
        asks[i].rows.result = NULL;
        asks[i].row = -1;
    }
}
