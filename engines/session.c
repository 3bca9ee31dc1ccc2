/* Sessions: plans by shape, programs by call. */
#include "engines/session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engines/engines_impl.h"

enum { DEFAULT_PLANS = 32 };
#define DEFAULT_BYTES ((size_t)1 << 30)

/* A plan and the shapes it is for. */
struct entry {
    struct entry *next;
    struct mlo_tensor *shapes;  /* of the inputs; no data */
    struct mlo_tensor *results; /* of the outputs; no data */
    struct mlo_plan *plan;      /* NULL: a thread is compiling it */
    struct mlo_footprint size;
    struct mlo_program **idle;
    unsigned idle_count, programs;
    unsigned users; /* an entry in use stays */
    uint64_t used;  /* when it was taken last, in calls */
};

struct mlo_session {
    struct mlo_model *model;
    struct mlo_value **inputs; /* of the model, that are fed */
    int input_count;
    struct mlo_plan_file *file; /* whose plan the only entry has; or NULL */
    struct mlo_session_options options;
    struct mlo_constants *constants;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct entry *entries;
    size_t plan_count;
    uint64_t clock, runs, compiled, evicted;
};

static void free_entry(struct mlo_session *s, struct entry *e)
{
    if (!e)
        return;
    for (unsigned i = 0; i < e->idle_count; i++)
        s->options.engine->unload(e->idle[i]);
    if (!s->file)
        s->options.engine->free_plan(e->plan);
    free(e->idle);
    free(e->shapes);
    free(e->results);
    free(e);
}

/* A session without a model; options that were left open are filled in. NULL: out of memory. */
static struct mlo_session *new_session(const struct mlo_session_options *options)
{
    struct mlo_session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->options = *options;
    s->options.threads = MLO_MAX(s->options.threads, 1u);
    s->options.max_plans = s->options.max_plans ? s->options.max_plans : DEFAULT_PLANS;
    s->options.max_bytes = s->options.max_bytes ? s->options.max_bytes : DEFAULT_BYTES;
    s->options.max_idle = s->options.max_idle ? s->options.max_idle : mlo_cpu_count();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    return s;
}

static enum mlo_status take_model(struct mlo_session *s, struct mlo_model *model, struct mlo_error *err)
{
    s->model = model;
    s->inputs = calloc((size_t)model->graph->input_count + 1, sizeof(struct mlo_value *));
    if (!s->inputs)
        return mlo_error_nomem(err);
    s->input_count = mlo_engine_inputs(model->graph, s->inputs);
    return MLO_OK;
}

enum mlo_status mlo_session_new_take(struct mlo_model *model, const struct mlo_session_options *options,
                                     struct mlo_session **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_session *s = new_session(options);
    if (!s) {
        mlo_model_free(model);
        return mlo_error_nomem(err);
    }
    MLO_TRY(take_model(s, model, err));
    if (!s->options.engine)
        MLO_TRY(mlo_engine_find("cpu", &s->options.engine, err));
    MLO_TRY(s->options.engine->probe(err));
    MLO_TRY(mlo_graph_check_supported(model->graph, err));
    s->constants = mlo_constants_new();
    if (!s->constants) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *out = s;
    s = NULL;
out:
    mlo_session_free(s);
    return status;
}

void mlo_session_free(struct mlo_session *s)
{
    if (!s)
        return;
    while (s->entries) {
        struct entry *e = s->entries;
        s->entries = e->next;
        free_entry(s, e);
    }
    mlo_constants_free(s->constants);
    free(s->inputs);
    mlo_model_free(s->model);
    mlo_plan_close(s->file);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

const struct mlo_model *mlo_session_model(const struct mlo_session *session)
{
    return session->model;
}

/* --- plans; the lock is held -------------------------------------------------------------------------- */

static struct entry *find(const struct mlo_session *s, const struct mlo_tensor *inputs, size_t count)
{
    for (struct entry *e = s->entries; e; e = e->next) {
        size_t same = 0;
        while (same < count && e->shapes[same].dtype == inputs[same].dtype &&
               mlo_tensor_same_shape(&e->shapes[same], &inputs[same]))
            same++;
        if (same == count)
            return e;
    }
    return NULL;
}

static size_t bytes_in_use(const struct mlo_session *s)
{
    size_t bytes = s->constants ? mlo_constants_bytes(s->constants) : 0;
    for (const struct entry *e = s->entries; e; e = e->next)
        bytes += e->size.plan_bytes + e->programs * e->size.program_bytes;
    return bytes;
}

static void unlink_entry(struct mlo_session *s, struct entry *e)
{
    struct entry **at = &s->entries;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    s->plan_count--;
}

/* Programs that wait for a call are made again in no time, plans are not: they go first, of what was used
 * least recently, down to one a plan. */
static void trim_idle(struct mlo_session *s)
{
    while (bytes_in_use(s) > s->options.max_bytes) {
        struct entry *oldest = NULL;
        for (struct entry *e = s->entries; e; e = e->next)
            if (e->idle_count && e->programs > 1 && (!oldest || e->used < oldest->used))
                oldest = e;
        if (!oldest)
            return;
        s->options.engine->unload(oldest->idle[--oldest->idle_count]);
        oldest->programs--;
    }
}

/* Least recently used plans go until the rest is within the bounds. */
static void evict(struct mlo_session *s)
{
    trim_idle(s);
    while (s->plan_count > s->options.max_plans || bytes_in_use(s) > s->options.max_bytes) {
        struct entry *oldest = NULL;
        for (struct entry *e = s->entries; e; e = e->next)
            if (!e->users && e->plan && !s->file && e->used != s->clock &&
                (!oldest || e->used < oldest->used))
                oldest = e;
        if (!oldest)
            return;
        unlink_entry(s, oldest);
        s->evicted++;
        free_entry(s, oldest);
    }
}

/* An entry for these shapes that this thread is to compile; NULL: out of memory. */
static struct entry *reserve(struct mlo_session *s, const struct mlo_tensor *inputs, size_t count)
{
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->shapes = calloc(count + 1, sizeof *e->shapes);
    e->results = calloc((size_t)s->model->graph->output_count + 1, sizeof *e->results);
    e->idle = calloc(s->options.max_idle, sizeof(struct mlo_program *));
    if (!e->shapes || !e->results || !e->idle) {
        free_entry(s, e);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        e->shapes[i] = inputs[i];
        e->shapes[i].data = NULL;
        e->shapes[i].owned = false;
    }
    e->users = 1;
    e->used = ++s->clock;
    e->next = s->entries;
    s->entries = e;
    s->plan_count++;
    return e;
}

/* --- compiling; the lock is not held ------------------------------------------------------------------- */

static void note_results(const struct mlo_graph *g, struct mlo_tensor *results)
{
    for (int i = 0; i < g->output_count; i++) {
        const struct mlo_type *type = &g->outputs[i]->type;
        struct mlo_tensor *t = &results[i];
        t->dtype = type->dtype;
        t->rank = mlo_type_static(type, t->dims) ? type->rank : -1;
        if (t->rank >= 0 && !mlo_shape_bytes(t->dtype, t->rank, t->dims, &t->size_bytes))
            t->rank = -1;
    }
}

static enum mlo_status compile(struct mlo_session *s, struct entry *e, size_t count, struct mlo_plan **plan,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *bound = NULL;
    struct mlo_compile_options options = {
        .numerics = s->options.numerics, .threads = s->options.threads, .constants = s->constants};
    MLO_TRY(mlo_model_clone_borrowing(s->model, &bound, err));
    MLO_TRY(mlo_graph_bind_inputs(bound->graph, e->shapes, count, err));
    note_results(bound->graph, e->results);
    MLO_TRY(s->options.engine->compile(bound, &options, plan, err));
out:
    mlo_model_free(bound);
    return status;
}

enum mlo_status mlo_session_new_plan_take(struct mlo_plan_file *plan,
                                          const struct mlo_session_options *options, struct mlo_session **out,
                                          struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *model = NULL;
    struct mlo_tensor *inputs = NULL;
    struct mlo_session *s = new_session(options);
    if (!s) {
        mlo_plan_close(plan);
        return mlo_error_nomem(err);
    }
    s->file = plan;
    s->options.engine = mlo_plan_file_engine(plan);
    s->options.threads = mlo_plan_file_threads(plan);
    MLO_TRY(mlo_model_clone(mlo_plan_file_model(plan), &model, err));
    MLO_TRY(take_model(s, model, err));
    inputs = calloc((size_t)s->input_count + 1, sizeof *inputs);
    if (!inputs) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < s->input_count; i++) {
        const struct mlo_type *type = &s->inputs[i]->type;
        inputs[i].dtype = type->dtype;
        inputs[i].rank = type->rank;
        mlo_type_static(type, inputs[i].dims);
    }
    struct entry *e = reserve(s, inputs, (size_t)s->input_count);
    if (!e) {
        status = mlo_error_nomem(err);
        goto out;
    }
    e->users = 0;
    e->plan = mlo_plan_file_plan(plan);
    note_results(model->graph, e->results);
    if (s->options.engine->footprint)
        s->options.engine->footprint(e->plan, &e->size);
    *out = s;
    s = NULL;
out:
    free(inputs);
    mlo_session_free(s);
    return status;
}

/* A plan's file is for its own shapes. */
static enum mlo_status other_shapes(const struct mlo_session *s, const struct mlo_tensor *inputs,
                                    struct mlo_error *err)
{
    for (int i = 0; i < s->input_count; i++) {
        enum mlo_status status = mlo_engine_check_input(s->inputs[i], &inputs[i], err);
        if (status != MLO_OK)
            return status;
    }
    return mlo_error_set(err, MLO_EINTERNAL, "the plan of these shapes is gone");
}

/* The entry of these shapes, compiled, with one user more. */
static enum mlo_status acquire(struct mlo_session *s, const struct mlo_tensor *inputs, size_t count,
                               struct entry **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_plan *plan = NULL;
    if (count != (size_t)s->input_count)
        return mlo_error_set(err, MLO_EINVAL, "the model takes %d inputs, not %zu", s->input_count, count);
    for (size_t i = 0; i < count; i++)
        if (inputs[i].rank < 0 || inputs[i].rank > MLO_MAX_RANK)
            return mlo_error_set(err, MLO_EINVAL, "input %zu has rank %d; 0 to %d are possible", i,
                                 inputs[i].rank, MLO_MAX_RANK);
    pthread_mutex_lock(&s->lock);
    struct entry *e = find(s, inputs, count);
    while (e && !e->plan) { /* it may fail, and another thread, this one say, tries again */
        pthread_cond_wait(&s->changed, &s->lock);
        e = find(s, inputs, count);
    }
    if (e) {
        e->users++;
        e->used = ++s->clock;
        goto out;
    }
    if (s->file) {
        status = other_shapes(s, inputs, err);
        goto out;
    }
    if (!(e = reserve(s, inputs, count))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    pthread_mutex_unlock(&s->lock);
    status = compile(s, e, count, &plan, err);
    pthread_mutex_lock(&s->lock);
    if (status == MLO_OK) {
        e->plan = plan;
        if (s->options.engine->footprint)
            s->options.engine->footprint(plan, &e->size);
        s->compiled++;
    } else {
        unlink_entry(s, e);
        free_entry(s, e);
    }
    pthread_cond_broadcast(&s->changed);
out:
    pthread_mutex_unlock(&s->lock);
    if (status == MLO_OK)
        *out = e;
    return status;
}

/* A program of the entry that no other call uses. */
static enum mlo_status take_program(struct mlo_session *s, struct entry *e, struct mlo_program **out,
                                    struct mlo_error *err)
{
    struct mlo_program *program = NULL;
    pthread_mutex_lock(&s->lock);
    if (e->idle_count)
        program = e->idle[--e->idle_count];
    pthread_mutex_unlock(&s->lock);
    if (!program) {
        enum mlo_status status = s->options.engine->load(e->plan, &program, err);
        if (status != MLO_OK)
            return status;
        pthread_mutex_lock(&s->lock);
        e->programs++;
        pthread_mutex_unlock(&s->lock);
    }
    *out = program;
    return MLO_OK;
}

static void release(struct mlo_session *s, struct entry *e, struct mlo_program *program, bool reusable)
{
    pthread_mutex_lock(&s->lock);
    if (program && reusable && e->idle_count < s->options.max_idle) {
        e->idle[e->idle_count++] = program;
        program = NULL;
    }
    e->programs -= program != NULL;
    pthread_mutex_unlock(&s->lock);
    s->options.engine->unload(program);
    pthread_mutex_lock(&s->lock);
    e->users--;
    evict(s);
    pthread_mutex_unlock(&s->lock);
}

enum mlo_status mlo_session_prepare(struct mlo_session *session, const struct mlo_tensor *inputs,
                                    size_t count, struct mlo_tensor *outputs, struct mlo_error *err)
{
    struct entry *e;
    enum mlo_status status = acquire(session, inputs, count, &e, err);
    if (status != MLO_OK)
        return status;
    memcpy(outputs, e->results, (size_t)session->model->graph->output_count * sizeof *outputs);
    release(session, e, NULL, false);
    return MLO_OK;
}

enum mlo_status mlo_session_run(struct mlo_session *session, const struct mlo_tensor *inputs, size_t count,
                                struct mlo_tensor *outputs, struct mlo_error *err)
{
    struct entry *e;
    struct mlo_program *program = NULL;
    enum mlo_status status = acquire(session, inputs, count, &e, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(take_program(session, e, &program, err));
    MLO_TRY(session->options.engine->run(program, inputs, outputs, err));
out:
    if (status == MLO_OK)
        __atomic_add_fetch(&session->runs, 1, __ATOMIC_RELAXED);
    release(session, e, program, status == MLO_OK);
    return status;
}

enum mlo_status mlo_session_describe(struct mlo_session *session, const struct mlo_tensor *inputs,
                                     size_t count, json_t **out, struct mlo_error *err)
{
    struct entry *e;
    enum mlo_status status = acquire(session, inputs, count, &e, err);
    if (status != MLO_OK)
        return status;
    status = session->options.engine->describe(e->plan, out, err);
    release(session, e, NULL, false);
    return status;
}

void mlo_session_stats(struct mlo_session *session, struct mlo_session_stats *out)
{
    pthread_mutex_lock(&session->lock);
    *out = (struct mlo_session_stats){.plans = session->plan_count,
                                      .bytes = bytes_in_use(session),
                                      .runs = __atomic_load_n(&session->runs, __ATOMIC_RELAXED),
                                      .compiled = session->compiled,
                                      .evicted = session->evicted};
    for (const struct entry *e = session->entries; e; e = e->next)
        out->programs += e->programs;
    pthread_mutex_unlock(&session->lock);
}
