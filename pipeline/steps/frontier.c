#include "pipeline/steps/frontier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 8 };

/* A value of every batch, in a file. */
struct kept {
    char *name;
    struct mlo_type type; /* static, of a batch; no borrowed names */
    size_t bytes;
    int fd;
};

struct mlo_frontier {
    const struct mlo_step_context *ctx;
    const struct mlo_model *model;
    struct mlo_dataset *dataset;
    int64_t samples, batch;
    bool *computed; /* by node of the model: it need not run again */
    struct kept *kept;
    size_t count, cap, nodes_run;
};

static int64_t batches(const struct mlo_frontier *f)
{
    return (f->samples + f->batch - 1) / f->batch;
}

/* --- what is kept ------------------------------------------------------------------------------- */

static struct kept *find_kept(const struct mlo_frontier *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->kept[i].name, name) == 0)
            return &f->kept[i];
    return NULL;
}

static void drop(struct mlo_frontier *f, struct kept *k)
{
    if (k->fd >= 0)
        close(k->fd);
    free(k->name);
    *k = f->kept[--f->count];
}

static enum mlo_status keep(struct mlo_frontier *f, const struct mlo_value *value, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf temp = MLO_BUF_INIT;
    struct kept k = {.fd = -1};
    int64_t dims[MLO_MAX_RANK];
    char *path = mlo_fs_join(f->ctx->out_dir, "activations", NULL);
    if (f->count == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 8;
        struct kept *grown = realloc(f->kept, cap * sizeof *grown);
        if (grown) {
            f->kept = grown;
            f->cap = cap;
        }
    }
    k.name = strdup(value->name);
    if (!path || !k.name || f->count == f->cap) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_type_static(&value->type, dims);
    k.type.dtype = value->type.dtype;
    k.type.rank = value->type.rank;
    for (int i = 0; i < k.type.rank; i++)
        k.type.dims[i] = (struct mlo_dim){.value = dims[i]};
    if (!mlo_shape_bytes(k.type.dtype, k.type.rank, dims, &k.bytes)) {
        status = mlo_error_set(err, MLO_EINTERNAL, "value '%s' has no size", value->name);
        goto out;
    }
    k.fd = mlo_fs_create_beside(path, &temp);
    if (k.fd < 0 || unlink(mlo_buf_str(&temp)) < 0) {
        status = mlo_error_errno(err, errno, "cannot keep activations in %s", f->ctx->out_dir);
        goto out;
    }
    f->kept[f->count++] = k;
    k = (struct kept){.fd = -1};
out:
    if (k.fd >= 0)
        close(k.fd);
    free(k.name);
    free(path);
    mlo_buf_clear(&temp);
    return status;
}

static enum mlo_status transfer(const struct kept *k, int64_t batch, void *bytes, bool write,
                                struct mlo_error *err)
{
    char *at = bytes;
    size_t left = k->bytes;
    off_t offset = (off_t)k->bytes * batch;
    while (left) {
        ssize_t n = write ? pwrite(k->fd, at, left, offset) : pread(k->fd, at, left, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return mlo_error_errno(err, n < 0 ? errno : EIO, "cannot %s activations",
                                   write ? "write" : "read");
        at += n;
        left -= (size_t)n;
        offset += n;
    }
    return MLO_OK;
}

/* --- whether the model can be run so ------------------------------------------------------------ */

/* The model as it is, with static shapes of a batch. *owner is who must be freed after it. */
static enum mlo_status bound(const struct mlo_frontier *f, int64_t batch, struct mlo_model **out,
                             struct mlo_error *err)
{
    enum mlo_status status;
    *out = NULL;
    MLO_TRY(mlo_dataset_fit(f->dataset, f->model, out, err));
    if (!*out)
        MLO_TRY(mlo_model_clone_borrowing(f->model, out, err));
    MLO_TRY(mlo_graph_bind_batch((*out)->graph, batch, err));
out:
    return status;
}

static bool stop_at_subgraph(struct mlo_graph *graph, void *arg)
{
    MLO_UNUSED(graph);
    MLO_UNUSED(arg);
    return false;
}

static bool is_plain(const struct mlo_graph *g)
{
    for (int i = 0; i < g->node_count; i++)
        if (!mlo_node_each_subgraph(g->nodes[i], stop_at_subgraph, NULL))
            return false;
    for (int i = 0; i < g->value_count; i++)
        if (!g->values[i]->constant &&
            (mlo_holds_values(g->values[i]->type.dtype) || !mlo_type_static(&g->values[i]->type, NULL)))
            return false;
    return true;
}

/* Rows for each sample: the first dim is a multiple of the batch, the same one for two batch sizes. */
static bool has_rows(const struct mlo_graph *a, int64_t batch_a, const struct mlo_graph *b, int64_t batch_b,
                     const char *name)
{
    const struct mlo_value *x = mlo_graph_value(a, name), *y = mlo_graph_value(b, name);
    return x && y && x->type.rank >= 2 && y->type.rank == x->type.rank &&
           x->type.dims[0].value % batch_a == 0 &&
           x->type.dims[0].value / batch_a * batch_b == y->type.dims[0].value;
}

static enum mlo_status suits(const struct mlo_frontier *f, const struct mlo_stats_wants *wants, bool *yes,
                             struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *a = NULL, *b = NULL;
    *yes = false;
    MLO_TRY(bound(f, f->batch, &a, err));
    MLO_TRY(bound(f, f->batch + 1, &b, err));
    *yes = is_plain(a->graph);
    for (size_t i = 0; *yes && i < wants->count; i++)
        *yes = has_rows(a->graph, f->batch, b->graph, f->batch + 1, wants->list[i].name);
    for (int i = 0; *yes && i < a->graph->input_count; i++) /* inputs are samples */
        *yes = a->graph->inputs[i]->constant ||
               (a->graph->inputs[i]->type.rank > 0 && a->graph->inputs[i]->type.dims[0].value == f->batch);
out:
    mlo_model_free(a);
    mlo_model_free(b);
    return status;
}

/* Keeps what the model is fed with. */
static enum mlo_status keep_inputs(struct mlo_frontier *f, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *m = NULL;
    int slots = f->model->graph->input_count;
    struct mlo_tensor *read = calloc((size_t)slots + 1, sizeof *read);
    char *padded = NULL;
    if (!read)
        return mlo_error_nomem(err);
    MLO_TRY(bound(f, f->batch, &m, err));
    size_t first = f->count, most = 0;
    for (int i = 0; i < m->graph->input_count; i++)
        if (!m->graph->inputs[i]->constant)
            MLO_TRY(keep(f, m->graph->inputs[i], err));
    for (size_t i = first; i < f->count; i++)
        most = MLO_MAX(most, f->kept[i].bytes);
    padded = calloc(1, most + 1);
    if (!padded) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int64_t b = 0; b < batches(f); b++) {
        int64_t got = MLO_MIN(f->batch, f->samples - b * f->batch);
        MLO_TRY(mlo_dataset_read(f->dataset, f->model, b * f->batch, got, read, err));
        for (size_t i = first; i < f->count; i++) {
            const struct mlo_tensor *t = &read[i - first];
            if (t->size_bytes > f->kept[i].bytes) {
                status =
                    mlo_error_set(err, MLO_EINTERNAL, "input '%s' is larger than it was", f->kept[i].name);
                goto out;
            }
            memset(padded, 0, f->kept[i].bytes);
            memcpy(padded, t->data, t->size_bytes);
            MLO_TRY(transfer(&f->kept[i], b, padded, true, err));
        }
        for (int i = 0; i < slots; i++)
            mlo_tensor_clear(&read[i]);
    }
out:
    for (int i = 0; i < slots; i++)
        mlo_tensor_clear(&read[i]);
    free(read);
    free(padded);
    mlo_model_free(m);
    return status;
}

enum mlo_status mlo_frontier_open(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                  struct mlo_dataset *dataset, const struct mlo_stats_wants *wants,
                                  int64_t samples, struct mlo_frontier **out, struct mlo_error *err)
{
    enum mlo_status status;
    bool yes = false;
    int64_t fixed;
    struct mlo_frontier *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f)
        return mlo_error_nomem(err);
    *f = (struct mlo_frontier){.ctx = ctx, .model = model, .dataset = dataset, .batch = BATCH};
    f->samples = MLO_MIN(samples, mlo_dataset_count(dataset));
    f->computed = calloc((size_t)model->graph->node_count + 1, sizeof *f->computed);
    if (!f->computed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_model_fixed_batch(model, &fixed, err));
    if (!fixed)
        MLO_TRY(suits(f, wants, &yes, err));
    if (!yes)
        goto out;
    MLO_TRY(keep_inputs(f, err));
    *out = f;
    f = NULL;
out:
    mlo_frontier_close(f);
    return status;
}

void mlo_frontier_close(struct mlo_frontier *frontier)
{
    if (!frontier)
        return;
    while (frontier->count)
        drop(frontier, &frontier->kept[frontier->count - 1]);
    free(frontier->kept);
    free(frontier->computed);
    free(frontier);
}

void mlo_frontier_runs(const struct mlo_frontier *frontier, size_t *nodes_run)
{
    *nodes_run = frontier->nodes_run;
}

/* --- a segment ----------------------------------------------------------------------------------- */

/* The nodes from what is kept to a target, as a model. */
struct segment {
    struct mlo_model *model;
    bool *needed;                  /* by node of the whole model */
    size_t node_count;             /* of them */
    const struct mlo_node *target; /* in the frontier's model */
};

/* Dequantizing costs little, and its input is a quarter of its output: it always runs again. */
static bool is_cheap(const struct mlo_node *node)
{
    return mlo_node_is(node, "DequantizeLinear");
}

/* Marks the nodes that the target needs, up to what is kept. */
static void mark_needed(const struct mlo_frontier *f, struct segment *s)
{
    const struct mlo_graph *g = f->model->graph;
    s->needed[s->target->index] = true;
    for (int n = s->target->index; n >= 0; n--) { /* producers come before their users */
        const struct mlo_node *node = g->nodes[n];
        for (int i = 0; s->needed[n] && i < node->input_count; i++)
            if (node->inputs[i] && node->inputs[i]->producer && !find_kept(f, node->inputs[i]->name))
                s->needed[node->inputs[i]->producer->index] = true;
        s->node_count += s->needed[n];
    }
}

/* Whether some node reads the value that has not run for good; what is behind cheap nodes reads it, too. */
static bool is_read_later(const struct mlo_frontier *f, const struct mlo_value *value)
{
    for (int i = 0; i < value->use_count; i++) {
        const struct mlo_node *user = value->uses[i].node;
        if (f->computed[user->index])
            continue;
        if (!is_cheap(user) || is_read_later(f, user->outputs[0]))
            return true;
    }
    return false;
}

/* Cuts the clone down to the segment: its inputs are kept values, its outputs those that are to be. */
static enum mlo_status cut(struct mlo_frontier *f, struct segment *s, const char *const *keeps,
                           size_t keep_count, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = s->model->graph;
    const struct mlo_graph *whole = f->model->graph;
    for (int i = 0; i < g->input_count; i++)
        g->inputs[i]->is_input = false;
    for (int i = 0; i < g->output_count; i++)
        g->outputs[i]->is_output = false;
    g->input_count = g->output_count = 0;
    for (int i = whole->node_count - 1; i >= 0; i--) { /* a clone has its nodes in the same places */
        if (g->node_count <= i || strcmp(g->nodes[i]->name, whole->nodes[i]->name) != 0)
            return mlo_error_set(err, MLO_EINTERNAL, "node '%s' has moved", whole->nodes[i]->name);
        if (!s->needed[i])
            mlo_graph_remove_node(g->nodes[i]);
    }
    for (size_t i = 0; i < f->count; i++) {
        struct mlo_value *v = mlo_graph_value(g, f->kept[i].name);
        if (v && v->use_count && !v->producer)
            MLO_TRY(mlo_graph_add_input(g, v, err));
    }
    for (size_t i = 0; i < keep_count; i++)
        MLO_TRY(mlo_graph_add_output(g, mlo_graph_value(g, keeps[i]), err));
    MLO_TRY(mlo_graph_add_output(g, mlo_graph_value(g, s->target->outputs[0]->name), err));
    mlo_graph_remove_unused_values(g);
out:
    return status;
}

struct sink {
    struct mlo_stats *stats;
    int64_t batch, got;
};

static enum mlo_status take(void *arg, const char *name, const struct mlo_tensor *value,
                            struct mlo_error *err)
{
    const struct sink *sink = arg;
    size_t per = mlo_tensor_count(value) / (size_t)sink->batch, inner = 1;
    for (int d = 2; d < value->rank; d++)
        inner *= (size_t)value->dims[d];
    size_t unit = inner * (size_t)value->dims[1];
    struct mlo_channel_stats *c = mlo_stats_get_channels(sink->stats, name, value->dims[1]);
    if (!c)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    for (int64_t s = 0; s < sink->got && status == MLO_OK; s++)
        status = mlo_channel_stats_add(c, (const float *)value->data + (size_t)s * per, unit ? per / unit : 0,
                                       inner, err);
    return status;
}

/* Runs the segment over all batches; the first keep_count outputs go to what was kept last. */
static enum mlo_status run_segment(struct mlo_frontier *f, const struct segment *s, size_t keep_count,
                                   struct mlo_stats *stats, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_graph *g = s->model->graph;
    const char *observed[] = {s->target->outputs[0]->name};
    struct mlo_compile_options options = {.numerics = MLO_NUMERICS_INVARIANT,
                                          .threads = f->ctx->threads,
                                          .observe = observed,
                                          .observe_count = 1,
                                          .constants = mlo_constants_new()};
    const struct mlo_engine *engine = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct mlo_tensor *in = calloc((size_t)g->input_count + 1, sizeof *in),
                      *out = calloc((size_t)g->output_count + 1, sizeof *out);
    struct kept **from = calloc((size_t)g->input_count + 1, sizeof *from);
    if (!in || !out || !from || !options.constants) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_engine_find("cpu", &engine, err));
    for (int i = 0; i < g->input_count; i++) {
        int64_t dims[MLO_MAX_RANK];
        from[i] = find_kept(f, g->inputs[i]->name);
        mlo_type_static(&from[i]->type, dims);
        MLO_TRY(mlo_tensor_init(&in[i], from[i]->type.dtype, from[i]->type.rank, dims, err));
    }
    MLO_TRY(engine->compile(s->model, &options, &plan, err));
    MLO_TRY(engine->load(plan, &program, err));
    for (int64_t b = 0; b < batches(f); b++) {
        struct sink sink = {stats, f->batch, MLO_MIN(f->batch, f->samples - b * f->batch)};
        for (int i = 0; i < g->input_count; i++)
            MLO_TRY(transfer(from[i], b, in[i].data, false, err));
        MLO_TRY(engine->observe(program, in, out, take, &sink, err));
        for (size_t i = 0; i < keep_count; i++)
            MLO_TRY(transfer(&f->kept[f->count - keep_count + i], b, out[i].data, true, err));
    }
out:
    if (engine) {
        engine->unload(program);
        engine->free_plan(plan);
    }
    for (int i = 0; in && i < g->input_count; i++)
        mlo_tensor_clear(&in[i]);
    for (int i = 0; out && i < g->output_count; i++)
        mlo_tensor_clear(&out[i]);
    free(in);
    free(out);
    free(from);
    mlo_constants_free(options.constants);
    return status;
}

enum mlo_status mlo_frontier_observe(struct mlo_frontier *f, const char *node, struct mlo_stats *stats,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *g = f->model->graph;
    struct segment s = {.needed = calloc((size_t)g->node_count + 1, sizeof *s.needed)};
    const char **keeps = calloc((size_t)g->value_count + 1, sizeof *keeps);
    size_t keep_count = 0;
    if (!s.needed || !keeps) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < g->node_count && !s.target; i++)
        if (strcmp(g->nodes[i]->name, node) == 0)
            s.target = g->nodes[i];
    if (!s.target) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the model has no node '%s'", node);
        goto out;
    }
    mark_needed(f, &s);
    f->nodes_run += s.node_count;
    for (int i = 0; i < g->node_count; i++)
        if (s.needed[i] && g->nodes[i] != s.target && !is_cheap(g->nodes[i]))
            f->computed[i] = true;
    MLO_TRY(bound(f, f->batch, &s.model, err));
    for (int i = 0; i < g->node_count; i++)
        for (int o = 0; f->computed[i] && s.needed[i] && o < g->nodes[i]->output_count; o++) {
            const struct mlo_value *v = g->nodes[i]->outputs[o];
            if (!v || find_kept(f, v->name) || !is_read_later(f, v))
                continue;
            keeps[keep_count++] = v->name;
        }
    MLO_TRY(cut(f, &s, keeps, keep_count, err));
    for (size_t i = 0; i < keep_count; i++)
        MLO_TRY(keep(f, mlo_graph_value(s.model->graph, keeps[i]), err));
    MLO_TRY(run_segment(f, &s, keep_count, stats, err));
    for (size_t i = f->count; i-- > 0;)
        if (!is_read_later(f, mlo_graph_value(g, f->kept[i].name)))
            drop(f, &f->kept[i]);
out:
    mlo_model_free(s.model);
    free(s.needed);
    free(keeps);
    return status;
}
