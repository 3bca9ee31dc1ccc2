/* What a run says of its candidates: one point each, from the jobs that were planned for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"

static struct mlo_bounded bounded(const json_t *object)
{
    const json_t *value = json_object_get(object, "value"), *low = json_object_get(object, "low"),
                 *high = json_object_get(object, "high");
    struct mlo_bounded out = {.known = json_is_number(value) && json_is_number(low) && json_is_number(high)};
    if (out.known) {
        out.value = json_number_value(value);
        out.low = json_number_value(low);
        out.high = json_number_value(high);
    }
    return out;
}

static struct mlo_bounded negative(struct mlo_bounded b)
{
    return (struct mlo_bounded){-b.value, -b.high, -b.low, b.known};
}

/* How much worse the metric is than the source's, of an observation of the variant. */
static struct mlo_bounded drop_of(const struct mlo_metric_use *metric, const json_t *seen)
{
    struct mlo_bounded all = bounded(seen);
    if (metric->row->needs & MLO_METRIC_REFERENCE) /* agreement: 1 is the source itself */
        return (struct mlo_bounded){1 - all.value, 1 - all.high, 1 - all.low, all.known};
    struct mlo_bounded difference = bounded(json_object_get(json_object_get(seen, "against"), "difference"));
    return metric->row->higher_is_better ? negative(difference) : difference;
}

static struct mlo_bounded ratio_of(const json_t *seen)
{
    return bounded(json_object_get(json_object_get(seen, "against"), "ratio"));
}

/* Whether it is of all there is: a trial that asked for more samples than that says so by how many it had. */
static bool is_whole(const json_t *seen)
{
    int64_t first = mlo_json_i64(json_object_get(seen, "params"), "samples", 0);
    return first == 0 || mlo_json_i64(seen, "n", 0) < first;
}

static void take_observation(const struct mlo_search_state *s, struct mlo_search_candidate *c,
                             const json_t *seen, int rung, const char *step)
{
    const char *metric = mlo_json_str(seen, "metric", "");
    if (strcmp(mlo_json_str(seen, "subject", ""), "variant") != 0)
        return;
    /* in jobs of their own, as searches before revision 2 had them */
    bool tried = strcmp(step, "trial") == 0, judged = tried || strcmp(step, "screen") == 0,
         timed = tried || strcmp(step, "benchmark") == 0;
    if (judged && strcmp(metric, s->metric.name) == 0) {
        c->point.axis[MLO_AXIS_DROP] = drop_of(&s->metric, seen);
        c->accuracy = bounded(seen);
        c->screened = is_whole(seen) ? MLO_RUNG_SELECT : rung;
        c->samples = mlo_json_i64(seen, "n", 0);
    } else if (strcmp(step, "evaluate") == 0 && strcmp(metric, s->metric.name) == 0) {
        c->evaluated_drop = drop_of(&s->metric, seen);
        c->evaluated = bounded(seen);
    } else if (timed && strcmp(metric, "latency.p50") == 0) {
        c->point.p50_us = bounded(seen);
        c->point.axis[MLO_AXIS_LATENCY] = ratio_of(seen);
    } else if (timed && strcmp(metric, "latency.p99") == 0) {
        c->point.p99_us = bounded(seen);
        c->point.p99_ratio = ratio_of(seen);
    }
}

/* What is known of the machine that timed it. */
static void take_machine(struct mlo_search_state *s, const json_t *seen)
{
    const json_t *targets = json_object_get(json_object_get(seen, "machine"), "targets"), *target;
    size_t i;
    if (!json_is_array(targets))
        return;
    s->plain_integers = true;
    json_array_foreach(targets, i, target)
    {
        if (mlo_str_eq(json_string_value(target), "cpu:avx512-vnni"))
            s->plain_integers = false;
    }
}

static struct mlo_search_candidate *find(struct mlo_search_state *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->all[i].name, name) == 0)
            return &s->all[i];
    return NULL;
}

static bool derives(const char *step)
{
    const struct mlo_step *row = mlo_step_find(step);
    return row && row->kind == MLO_STEP_DERIVE;
}

static void take_job(struct mlo_search_state *s, const json_t *job)
{
    const json_t *spec = json_object_get(job, "spec"), *seen;
    const char *state = mlo_json_str(job, "state", ""), *step = mlo_json_str(job, "step", "");
    int rung = (int)mlo_json_i64(spec, "rung", 0);
    struct mlo_search_candidate *c = find(s, mlo_json_str(spec, "candidate", ""));
    size_t i;
    s->used_jobs += strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0;
    s->last_rung = MLO_MAX(s->last_rung, rung);
    if (!c)
        return;
    c->begun = MLO_MAX(c->begun, rung);
    if (strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0) {
        const char *why = mlo_json_str(json_object_get(job, "error"), "message", NULL);
        c->failed = true;
        if (why)
            c->why = why;
        return;
    }
    if (derives(step)) {
        c->artifact = mlo_json_str(job, "output", NULL);
        c->made_by = step;
        c->point.size_bytes = (double)mlo_json_i64(job, "size", 0);
        if (s->source_bytes > 0) {
            double ratio = c->point.size_bytes / s->source_bytes;
            c->point.axis[MLO_AXIS_SIZE] = (struct mlo_bounded){ratio, ratio, ratio, true};
        }
    }
    json_array_foreach(json_object_get(json_object_get(job, "result"), "observations"), i, seen)
    {
        take_observation(s, c, seen, rung, step);
        take_machine(s, seen);
    }
}

enum mlo_status mlo_search_state_init(struct mlo_search_state *s, const json_t *options, const json_t *run,
                                      struct mlo_error *err)
{
    enum mlo_status status;
    json_t *job;
    size_t i;
    *s = (struct mlo_search_state){
        .options = options,
        .run = run,
        .elapsed_s = mlo_json_f64(run, "elapsed_s", 0),
        .cpu_s = mlo_json_f64(run, "cpu_s", 0),
        .gpu_s = mlo_json_f64(run, "gpu_s", 0),
        .source_bytes = (double)mlo_json_i64(run, "source_bytes", 0),
        .source_threads = json_integer_value(json_array_get(json_object_get(options, "threads"), 0))};
    s->cost =
        (s->cpu_s * mlo_json_f64(options, "cpu_hour", 0) + s->gpu_s * mlo_json_f64(options, "gpu_hour", 0)) /
        3600;
    MLO_TRY(mlo_goal_parse(mlo_json_str(options, "goal", ""), &s->goal, err));
    MLO_TRY(mlo_metric_find(mlo_json_str(options, "metric", ""), &s->metric, err));
    MLO_TRY(mlo_search_space(options, &s->space, err));
    s->count = json_array_size(s->space);
    if (!(s->all = calloc(s->count, sizeof *s->all))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (i = 0; i < s->count; i++) {
        const json_t *row = json_array_get(s->space, i);
        s->all[i] = (struct mlo_search_candidate){.name = mlo_json_str(row, "name", ""),
                                                  .shape = mlo_json_str(row, "shape", ""),
                                                  .form = mlo_json_str(row, "form", ""),
                                                  .precision = mlo_json_str(row, "precision", ""),
                                                  .share = mlo_json_f64(row, "share", 0),
                                                  .of_weights = mlo_json_bool(row, "of_weights", false),
                                                  .sparsity = mlo_json_f64(row, "sparsity", 0),
                                                  .round = mlo_json_i64(row, "round", 0),
                                                  .threads = mlo_json_i64(row, "threads", 1),
                                                  .between = mlo_json_bool(row, "between", false),
                                                  .steps = json_object_get(row, "steps")};
    }
    json_array_foreach(json_object_get(run, "jobs"), i, job) take_job(s, job);
out:
    return status;
}

void mlo_search_state_clear(struct mlo_search_state *s)
{
    json_decref(s->space);
    free(s->all);
    *s = (struct mlo_search_state){0};
}

static json_t *bounded_json(struct mlo_bounded b)
{
    return b.known ? json_pack("{s:f, s:f, s:f}", "value", b.value, "low", b.low, "high", b.high)
                   : json_null();
}

json_t *mlo_search_point_json(const struct mlo_search_state *s, const struct mlo_search_candidate *c)
{
    json_t *out =
        json_pack("{s:s, s:O, s:s?, s:s?, s:i, s:I, s:b, s:b, s:s, s:b, s:s?}", "name", c->name, "steps",
                  c->steps, "artifact", c->artifact, "made_by", c->made_by, "rung", c->begun, "samples",
                  (json_int_t)c->samples, "failed", c->failed, "kept", c->kept, "state",
                  c->failed                                        ? "failed"
                  : c->begun == 0                                  ? "not tried"
                  : c->point.axis[MLO_AXIS_DROP].known && !c->kept ? "dropped"
                                                                   : "kept",
                  "front", c->front, "why", c->why);
    if (!out)
        return NULL;
    json_object_set_new(out, "accuracy", bounded_json(c->accuracy));
    json_object_set_new(out, "accuracy_drop", bounded_json(c->point.axis[MLO_AXIS_DROP]));
    json_object_set_new(out, "latency_p50_us", bounded_json(c->point.p50_us));
    json_object_set_new(out, "latency_p99_us", bounded_json(c->point.p99_us));
    json_object_set_new(out, "latency_ratio", bounded_json(c->point.axis[MLO_AXIS_LATENCY]));
    json_object_set_new(
        out, "size", c->point.size_bytes > 0 ? json_integer((json_int_t)c->point.size_bytes) : json_null());
    json_object_set_new(out, "size_ratio",
                        c->point.axis[MLO_AXIS_SIZE].known ? json_real(c->point.axis[MLO_AXIS_SIZE].value)
                                                           : json_null());
    json_object_set_new(out, "meets",
                        json_boolean(mlo_point_whole(&c->point) &&
                                     mlo_goal_held(&s->goal, &c->point, false) == s->goal.count));
    if (c->evaluated.known) {
        json_object_set_new(out, "evaluated", bounded_json(c->evaluated));
        json_object_set_new(out, "evaluated_drop", bounded_json(c->evaluated_drop));
    }
    return out;
}
