/* libmlopt: the public interface over sessions. Everything here checks what comes from outside; nothing of
 * the rooms below shows through. */
#include "api/lib/mlopt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/session.h"
#include "passes/passes.h"
#include "passes/sparsify.h"

struct mlopt_session {
    struct mlo_session *inner;
    struct mlopt_port *inputs, *outputs;
    size_t input_count, output_count;
};

/* --- words of the interface ----------------------------------------------------------------------------- */

static const struct {
    enum mlo_status from;
    enum mlopt_status to;
} statuses[] = {
    {MLO_EINVAL, MLOPT_INVALID},
    {MLO_EUSAGE, MLOPT_INVALID},
    {MLO_EFORMAT, MLOPT_FORMAT},
    {MLO_EUNSUPPORTED, MLOPT_UNSUPPORTED},
    {MLO_ENOTFOUND, MLOPT_NOT_FOUND},
    {MLO_ENOMEM, MLOPT_NO_MEMORY},
    {MLO_EIO, MLOPT_IO},
    {MLO_ENOSPC, MLOPT_IO},
    {MLO_EQUOTA, MLOPT_IO},
    {MLO_EFORBIDDEN, MLOPT_IO},
    {MLO_EUNAVAILABLE, MLOPT_UNAVAILABLE},
    {MLO_EPRECONDITION, MLOPT_UNAVAILABLE},
    {MLO_ETOOBIG, MLOPT_TOO_BIG},
    {MLO_EDIGEST, MLOPT_REFUSED},
    {MLO_ESTALE, MLOPT_UNAVAILABLE},
    {MLO_EAUTH, MLOPT_REFUSED},
};

static const char *const status_names[] = {
    [MLOPT_OK] = "ok",
    [MLOPT_INVALID] = "invalid",
    [MLOPT_FORMAT] = "format",
    [MLOPT_UNSUPPORTED] = "unsupported",
    [MLOPT_NOT_FOUND] = "not found",
    [MLOPT_NO_MEMORY] = "no memory",
    [MLOPT_IO] = "input or output",
    [MLOPT_UNAVAILABLE] = "unavailable",
    [MLOPT_TOO_BIG] = "too big",
    [MLOPT_REFUSED] = "refused",
    [MLOPT_INTERNAL] = "internal",
};

static const enum mlopt_type types[] = {
    MLOPT_FLOAT32, MLOPT_UINT8,   MLOPT_INT8,    MLOPT_UINT16, MLOPT_INT16,  MLOPT_INT32,    MLOPT_INT64,
    MLOPT_BOOL,    MLOPT_FLOAT16, MLOPT_FLOAT64, MLOPT_UINT32, MLOPT_UINT64, MLOPT_BFLOAT16,
};

const char *mlopt_status_name(enum mlopt_status status)
{
    return (size_t)status < MLO_COUNT(status_names) ? status_names[status] : "unknown";
}

static bool passable(enum mlopt_type type)
{
    for (size_t i = 0; i < MLO_COUNT(types); i++)
        if (types[i] == type)
            return true;
    return false;
}

size_t mlopt_type_size(enum mlopt_type type)
{
    return passable(type) ? mlo_dtype_info((enum mlo_dtype)type)->bits / 8 : 0;
}

const char *mlopt_type_name(enum mlopt_type type)
{
    return passable(type) ? mlo_dtype_name((enum mlo_dtype)type) : "unknown";
}

static char version_text[128];
static pthread_once_t version_once = PTHREAD_ONCE_INIT;

static void make_version(void)
{
    const struct mlo_engine *cpu = NULL;
    struct mlo_error err;
    snprintf(version_text, sizeof version_text, "%s (%s)", MLOPT_VERSION,
             mlo_engine_find("cpu", &cpu, &err) == MLO_OK ? cpu->version() : "no engine");
}

const char *mlopt_version(void)
{
    pthread_once(&version_once, make_version);
    return version_text;
}

/* The status that the caller sees, and the error with it. */
static enum mlopt_status report(enum mlo_status status, const struct mlo_error *err, struct mlopt_error *out)
{
    enum mlopt_status shown = MLOPT_INTERNAL;
    if (status == MLO_OK)
        return MLOPT_OK;
    for (size_t i = 0; i < MLO_COUNT(statuses); i++)
        if (statuses[i].from == status)
            shown = statuses[i].to;
    if (out) {
        out->status = shown;
        snprintf(out->message, sizeof out->message, "%s", err->message);
        snprintf(out->where, sizeof out->where, "%s", err->where);
        snprintf(out->hint, sizeof out->hint, "%s", err->hint);
    }
    return shown;
}

/* --- opening ------------------------------------------------------------------------------------------- */

/* The caller's options may be older (shorter) than ours; newer ones may hold nothing that we do not know. */
static enum mlo_status read_options(const struct mlopt_options *from, struct mlopt_options *out,
                                    struct mlo_error *err)
{
    *out = (struct mlopt_options)MLOPT_OPTIONS_INIT;
    if (!from)
        return MLO_OK;
    if (from->struct_size < offsetof(struct mlopt_options, trusted_keys) + sizeof from->trusted_keys)
        return mlo_error_set(err, MLO_EINVAL,
                             "options begin with struct_size, which is %zu; "
                             "MLOPT_OPTIONS_INIT sets it",
                             from->struct_size);
    for (size_t i = sizeof *out; i < from->struct_size; i++)
        if (((const char *)from)[i])
            return mlo_error_set(err, MLO_EINVAL,
                                 "options hold something that this library (%s) does not know",
                                 MLOPT_VERSION);
    memcpy(out, from, MLO_MIN(from->struct_size, sizeof *out));
    if (out->threads > 4096)
        return mlo_error_set(err, MLO_EINVAL, "options ask for %u threads; 4096 are the most",
                             (unsigned)out->threads);
    return MLO_OK;
}

static void describe_port(const struct mlo_value *value, struct mlopt_port *port)
{
    const struct mlo_type *type = &value->type;
    *port = (struct mlopt_port){.name = value->name, .type = (int32_t)type->dtype, .rank = type->rank};
    for (int d = 0; d < type->rank; d++) {
        port->dims[d] = type->dims[d].value;
        port->dim_names[d] = type->dims[d].value < 0 ? type->dims[d].name : NULL;
    }
}

static enum mlo_status describe_ports(struct mlopt_session *s, struct mlo_error *err)
{
    const struct mlo_graph *g = mlo_session_model(s->inner)->graph;
    s->inputs = calloc((size_t)g->input_count + 1, sizeof *s->inputs);
    s->outputs = calloc((size_t)g->output_count + 1, sizeof *s->outputs);
    if (!s->inputs || !s->outputs)
        return mlo_error_nomem(err);
    for (int i = 0; i < g->input_count; i++)
        if (!g->inputs[i]->constant)
            describe_port(g->inputs[i], &s->inputs[s->input_count++]);
    for (int i = 0; i < g->output_count; i++)
        describe_port(g->outputs[i], &s->outputs[s->output_count++]);
    return MLO_OK;
}

static enum mlo_status optimize(struct mlo_model *model, struct mlo_error *err)
{
    struct mlo_pass_driver driver = {0};
    size_t count = 0;
    const char *const *names = mlo_passes_optimize(&count);
    struct mlo_pass_request *requests = calloc(count + 1, sizeof *requests);
    if (!requests)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        requests[i] = (struct mlo_pass_request){names[i], NULL};
    enum mlo_status status = mlo_passes_run(model, requests, count, &driver, err);
    json_decref(driver.report);
    free(requests);
    return status;
}

static enum mlo_status open_take(struct mlo_model *model, const struct mlopt_options *o,
                                 struct mlopt_session **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_session_options options = {.threads = o->threads,
                                          .max_plans = o->max_plans,
                                          .max_idle = o->max_idle,
                                          .max_bytes = (size_t)o->max_bytes};
    struct mlopt_session *s = calloc(1, sizeof *s);
    if (!s) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_engine_find(o->engine ? o->engine : "cpu", &options.engine, err));
    MLO_TRY(mlo_graph_check_supported(model->graph, err));
    MLO_TRY(mlo_sparse_unpack(model, NULL, err));
    if (!o->optimize)
        MLO_TRY(optimize(model, err));
    struct mlo_model *taken = model;
    model = NULL;
    MLO_TRY(mlo_session_new_take(taken, &options, &s->inner, err));
    MLO_TRY(describe_ports(s, err));
    *out = s;
    s = NULL;
out:
    mlo_model_free(model);
    mlopt_session_close(s);
    return status;
}

/* The keys of the options; *out is yours. */
static enum mlo_status read_keys(const char *text, struct mlo_public_key **out, size_t *count,
                                 struct mlo_error *err)
{
    size_t lines = 1;
    for (const char *p = text; p && *p; p++)
        lines += *p == '\n';
    struct mlo_public_key *keys = calloc(lines, sizeof *keys);
    if (!keys)
        return mlo_error_nomem(err);
    *count = 0;
    while (text && *text) {
        char line[MLO_PUBLIC_KEY_TEXT_SIZE];
        size_t len = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)MLO_MIN(len, sizeof line - 1), text);
        if (len && (len >= sizeof line || !mlo_public_key_parse(line, &keys[(*count)++]))) {
            free(keys);
            return mlo_error_set(err, MLO_EINVAL, "trusted_keys: '%s' is no public key", line);
        }
        text += len + (text[len] == '\n');
    }
    *out = keys;
    return MLO_OK;
}

static enum mlo_status open_plan(const char *path, const struct mlopt_options *o, struct mlopt_session **out,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_public_key *keys = NULL;
    struct mlo_plan_open_options options = {0};
    struct mlo_plan_file *plan = NULL;
    struct mlopt_session *s = calloc(1, sizeof *s);
    if (!s) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(read_keys(o->trusted_keys, &keys, &options.trusted_count, err));
    options.trusted = keys;
    MLO_TRY(mlo_plan_open(path, &options, &plan, err));
    MLO_TRY(mlo_session_new_plan_take(plan, &(struct mlo_session_options){.max_idle = o->max_idle}, &s->inner,
                                      err));
    MLO_TRY(describe_ports(s, err));
    *out = s;
    s = NULL;
out:
    free(keys);
    mlopt_session_close(s);
    return status;
}

enum mlopt_status mlopt_session_open(const char *path, const struct mlopt_options *options,
                                     struct mlopt_session **session, struct mlopt_error *error)
{
    enum mlo_status status;
    struct mlo_error err = {0};
    struct mlopt_options o;
    struct mlo_model *model = NULL;
    *session = NULL;
    MLO_TRY(read_options(options, &o, &err));
    if (!path) {
        status = mlo_error_set(&err, MLO_EINVAL, "there is no path of a model or plan to open");
        goto out;
    }
    if (mlo_plan_is_file(path)) {
        MLO_TRY(open_plan(path, &o, session, &err));
        goto out;
    }
    MLO_TRY(mlo_onnx_load(path, &model, &err));
    MLO_TRY(open_take(model, &o, session, &err));
out:
    return report(status, &err, error);
}

enum mlopt_status mlopt_session_open_memory(const void *bytes, size_t size_bytes,
                                            const struct mlopt_options *options,
                                            struct mlopt_session **session, struct mlopt_error *error)
{
    enum mlo_status status;
    struct mlo_error err = {0};
    struct mlopt_options o;
    struct mlo_model *model = NULL;
    *session = NULL;
    MLO_TRY(read_options(options, &o, &err));
    MLO_TRY(mlo_onnx_parse(bytes, size_bytes, "memory", &model, &err));
    MLO_TRY(open_take(model, &o, session, &err));
out:
    return report(status, &err, error);
}

void mlopt_session_close(struct mlopt_session *session)
{
    if (!session)
        return;
    mlo_session_free(session->inner);
    free(session->inputs);
    free(session->outputs);
    free(session);
}

size_t mlopt_session_input_count(const struct mlopt_session *session)
{
    return session->input_count;
}

size_t mlopt_session_output_count(const struct mlopt_session *session)
{
    return session->output_count;
}

enum mlopt_status mlopt_session_input(const struct mlopt_session *session, size_t index,
                                      struct mlopt_port *port)
{
    if (index >= session->input_count)
        return MLOPT_NOT_FOUND;
    *port = session->inputs[index];
    return MLOPT_OK;
}

enum mlopt_status mlopt_session_output(const struct mlopt_session *session, size_t index,
                                       struct mlopt_port *port)
{
    if (index >= session->output_count)
        return MLOPT_NOT_FOUND;
    *port = session->outputs[index];
    return MLOPT_OK;
}

/* --- running ------------------------------------------------------------------------------------------- */

static enum mlo_status to_inner(const struct mlopt_session *s, const struct mlopt_tensor *from, size_t count,
                                bool with_data, struct mlo_tensor **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (count != s->input_count || (count && !from))
        return mlo_error_set(err, MLO_EINVAL, "the model takes %zu inputs, not %zu", s->input_count,
                             from ? count : (size_t)0);
    struct mlo_tensor *tensors = calloc(count + 1, sizeof *tensors);
    if (!tensors)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++) {
        struct mlo_tensor *t = &tensors[i];
        const char *name = s->inputs[i].name;
        size_t bytes = 0;
        if (!passable(from[i].type) || from[i].rank < 0 || from[i].rank > MLO_MAX_RANK) {
            status = mlo_error_set(err, MLO_EINVAL, "input '%s': type %d of rank %d cannot be passed", name,
                                   (int)from[i].type, (int)from[i].rank);
            goto out;
        }
        *t = (struct mlo_tensor){.dtype = (enum mlo_dtype)from[i].type,
                                 .rank = from[i].rank,
                                 .data = from[i].data,
                                 .size_bytes = from[i].size_bytes};
        for (int d = 0; d < t->rank; d++)
            t->dims[d] = from[i].dims[d];
        if (!mlo_shape_bytes(t->dtype, t->rank, t->dims, &bytes)) {
            status = mlo_error_set(err, MLO_EINVAL, "input '%s': a dim is negative or too large", name);
            goto out;
        }
        if (with_data && (bytes != t->size_bytes || (bytes && !t->data))) {
            char text[256];
            status = mlo_error_set(err, MLO_EINVAL, "input '%s': %s takes %zu bytes, and there are %zu", name,
                                   mlo_tensor_describe(t, text, sizeof text), bytes,
                                   t->data ? t->size_bytes : (size_t)0);
            goto out;
        }
    }
    *out = tensors;
    tensors = NULL;
out:
    free(tensors);
    return status;
}

static void to_outer(const struct mlo_tensor *from, struct mlopt_tensor *to)
{
    *to = (struct mlopt_tensor){.type = (enum mlopt_type)from->dtype,
                                .rank = from->rank,
                                .data = from->data,
                                .size_bytes = from->size_bytes,
                                .owned = from->owned};
    for (int d = 0; d < from->rank; d++)
        to->dims[d] = from->dims[d];
}

/* Memory that the caller gave an output, not what the library made for an earlier run. */
static bool is_theirs(const struct mlopt_tensor *output)
{
    return output->data && !output->owned;
}

static enum mlo_status check_outputs(const struct mlopt_session *s, const struct mlopt_tensor *to,
                                     size_t count, struct mlo_error *err)
{
    if (count != s->output_count || (count && !to))
        return mlo_error_set(err, MLO_EINVAL, "the model gives %zu outputs, not %zu", s->output_count,
                             to ? count : (size_t)0);
    return MLO_OK;
}

/* What prepare and run are given, in the rooms' words: *in, *out (with room for all outputs) are yours. */
static enum mlo_status take_call(const struct mlopt_session *s, const struct mlopt_tensor *inputs,
                                 size_t input_count, bool with_data, const struct mlopt_tensor *outputs,
                                 size_t output_count, struct mlo_tensor **in, struct mlo_tensor **out,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    if (outputs || with_data)
        MLO_TRY(check_outputs(s, outputs, output_count, err));
    MLO_TRY(to_inner(s, inputs, input_count, with_data, in, err));
    *out = calloc(s->output_count + 1, sizeof **out);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    return status;
}

enum mlopt_status mlopt_session_prepare(struct mlopt_session *session, const struct mlopt_tensor *inputs,
                                        size_t input_count, struct mlopt_tensor *outputs, size_t output_count,
                                        struct mlopt_error *error)
{
    enum mlo_status status;
    struct mlo_error err = {0};
    struct mlo_tensor *in = NULL, *out = NULL;
    MLO_TRY(take_call(session, inputs, input_count, false, outputs, output_count, &in, &out, &err));
    MLO_TRY(mlo_session_prepare(session->inner, in, input_count, out, &err));
    for (size_t i = 0; outputs && i < output_count; i++)
        to_outer(&out[i], &outputs[i]);
out:
    free(in);
    free(out);
    return report(status, &err, error);
}

static enum mlo_status too_little(const struct mlopt_session *s, size_t i, size_t needed, size_t given,
                                  struct mlo_error *err)
{
    return mlo_error_set(err, MLO_EINVAL, "output '%s' takes %zu bytes; its memory has %zu",
                         s->outputs[i].name, needed, given);
}

/* Where the outputs go: memory of the caller's where it fits exactly, what the library made before, or
 * nothing yet. Shapes are looked up only where the caller's memory wants them. */
static enum mlo_status place_outputs(struct mlopt_session *s, const struct mlo_tensor *in, size_t input_count,
                                     struct mlopt_tensor *outputs, struct mlo_tensor *out,
                                     struct mlo_error *err)
{
    bool wanted = false;
    for (size_t i = 0; i < s->output_count; i++)
        wanted |= is_theirs(&outputs[i]);
    if (wanted) {
        enum mlo_status status = mlo_session_prepare(s->inner, in, input_count, out, err);
        if (status != MLO_OK)
            return status;
    }
    for (size_t i = 0; i < s->output_count; i++)
        if (is_theirs(&outputs[i]) && out[i].rank >= 0 && out[i].size_bytes > outputs[i].size_bytes)
            return too_little(s, i, out[i].size_bytes, outputs[i].size_bytes, err);
    for (size_t i = 0; i < s->output_count; i++) {
        struct mlopt_tensor *t = &outputs[i];
        if (is_theirs(t) && out[i].rank >= 0) {
            out[i].data = t->data;
        } else if (t->data && t->owned) {
            out[i] = (struct mlo_tensor){.dtype = (enum mlo_dtype)t->type,
                                         .rank = t->rank,
                                         .data = t->data,
                                         .size_bytes = t->size_bytes,
                                         .owned = true};
            for (int d = 0; d < t->rank && d < MLO_MAX_RANK; d++)
                out[i].dims[d] = t->dims[d];
            *t = (struct mlopt_tensor){0};
        } else {
            out[i] = (struct mlo_tensor){0};
        }
    }
    return MLO_OK;
}

/* Results whose shape was not known before are copied to the caller's memory now. */
static enum mlo_status deliver(const struct mlopt_session *s, struct mlo_tensor *out,
                               struct mlopt_tensor *outputs, struct mlo_error *err)
{
    for (size_t i = 0; i < s->output_count; i++) {
        if (!passable((enum mlopt_type)out[i].dtype))
            return mlo_error_set(err, MLO_EUNSUPPORTED, "output '%s' is a %s, which cannot be passed",
                                 s->outputs[i].name, mlo_dtype_name(out[i].dtype));
        if (is_theirs(&outputs[i]) && out[i].data != outputs[i].data &&
            out[i].size_bytes > outputs[i].size_bytes)
            return too_little(s, i, out[i].size_bytes, outputs[i].size_bytes, err);
    }
    for (size_t i = 0; i < s->output_count; i++) {
        void *theirs = outputs[i].data;
        if (is_theirs(&outputs[i]) && out[i].data != theirs) {
            if (out[i].size_bytes)
                memcpy(theirs, out[i].data, out[i].size_bytes);
            if (out[i].owned)
                free(out[i].data);
            out[i].data = theirs;
            out[i].owned = false;
        }
        to_outer(&out[i], &outputs[i]);
        out[i] = (struct mlo_tensor){0};
    }
    return MLO_OK;
}

enum mlopt_status mlopt_session_run(struct mlopt_session *session, const struct mlopt_tensor *inputs,
                                    size_t input_count, struct mlopt_tensor *outputs, size_t output_count,
                                    struct mlopt_error *error)
{
    enum mlo_status status;
    struct mlo_error err = {0};
    struct mlo_tensor *in = NULL, *out = NULL;
    MLO_TRY(take_call(session, inputs, input_count, true, outputs, output_count, &in, &out, &err));
    MLO_TRY(place_outputs(session, in, input_count, outputs, out, &err));
    MLO_TRY(mlo_session_run(session->inner, in, input_count, out, &err));
    MLO_TRY(deliver(session, out, outputs, &err));
out:
    for (size_t i = 0; out && i < session->output_count; i++)
        mlo_tensor_clear(&out[i]);
    free(in);
    free(out);
    return report(status, &err, error);
}

void mlopt_tensor_clear(struct mlopt_tensor *tensor)
{
    if (tensor->owned)
        free(tensor->data);
    *tensor = (struct mlopt_tensor){0};
}

/* --- watching ------------------------------------------------------------------------------------------ */

enum mlopt_status mlopt_session_stats(struct mlopt_session *session, struct mlopt_stats *stats)
{
    struct mlo_session_stats inner;
    size_t size = stats->struct_size;
    if (size < sizeof(struct mlopt_stats))
        return MLOPT_INVALID;
    mlo_session_stats(session->inner, &inner);
    *stats = (struct mlopt_stats){.struct_size = size,
                                  .plans = inner.plans,
                                  .programs = inner.programs,
                                  .bytes = inner.bytes,
                                  .runs = inner.runs,
                                  .compiled = inner.compiled,
                                  .evicted = inner.evicted};
    return MLOPT_OK;
}

enum mlopt_status mlopt_session_describe(struct mlopt_session *session, const struct mlopt_tensor *inputs,
                                         size_t input_count, char **text, struct mlopt_error *error)
{
    enum mlo_status status;
    struct mlo_error err = {0};
    struct mlo_tensor *in = NULL;
    json_t *json = NULL;
    *text = NULL;
    MLO_TRY(to_inner(session, inputs, input_count, false, &in, &err));
    MLO_TRY(mlo_session_describe(session->inner, in, input_count, &json, &err));
    *text = json_dumps(json, JSON_COMPACT);
    if (!*text)
        status = mlo_error_nomem(&err);
out:
    json_decref(json);
    free(in);
    return report(status, &err, error);
}

void mlopt_free(void *memory)
{
    free(memory);
}
