/* A run's trace as OpenTelemetry has it: https://github.com/open-telemetry/opentelemetry-proto, trace.proto
 * in the JSON mapping of its specification (ids as hex, 64-bit numbers as text). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum { KIND_INTERNAL = 1, STATUS_OK = 1, STATUS_ERROR = 2 };

struct writer {
    json_t *spans;
    char trace_id[33];
    int64_t submitted_us;
};

/* The first bytes of a digest of what the thing is. */
static void id_of(char *out, size_t bytes, const char *fmt, ...) MLO_PRINTF(3, 4);
static void id_of(char *out, size_t bytes, const char *fmt, ...)
{
    char text[160];
    struct mlo_digest digest;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    mlo_digest_of(text, strlen(text), &digest);
    mlo_hex(&digest, bytes, out);
}

static void attribute(json_t *span, const char *key, json_t *value)
{
    const char *type = json_is_integer(value)   ? "intValue"
                       : json_is_boolean(value) ? "boolValue"
                                                : "stringValue";
    if (json_is_integer(value)) { /* 64-bit numbers are text */
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        json_decref(value);
        value = json_string(text);
    }
    if (value && !json_is_null(value))
        json_array_append_new(json_object_get(span, "attributes"),
                              json_pack("{s:s, s:{s:O}}", "key", key, "value", type, value));
    json_decref(value);
}

static json_t *copy(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return value ? json_incref(value) : json_null();
}

/* Borrowed. */
static json_t *add(struct writer *w, const char *id, const char *parent, const char *name, double from_s,
                   double to_s)
{
    char from[24], to[24];
    snprintf(from, sizeof from, "%lld", (long long)(w->submitted_us * 1000 + llround(from_s * 1e9)));
    snprintf(to, sizeof to, "%lld", (long long)(w->submitted_us * 1000 + llround(to_s * 1e9)));
    json_t *span =
        json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:[]}", "traceId", w->trace_id, "spanId", id, "name", name,
                  "kind", KIND_INTERNAL, "startTimeUnixNano", from, "endTimeUnixNano", to, "attributes");
    if (parent && span)
        json_object_set_new(span, "parentSpanId", json_string(parent));
    json_array_append_new(w->spans, span);
    return span;
}

static void status_of(json_t *span, const char *state)
{
    bool failed = strcmp(state, "failed") == 0 || strcmp(state, "lost") == 0 || strcmp(state, "retried") == 0;
    if (failed || strcmp(state, "succeeded") == 0 || strcmp(state, "reused") == 0)
        json_object_set_new(span, "status",
                            failed ? json_pack("{s:i, s:s}", "code", STATUS_ERROR, "message", state)
                                   : json_pack("{s:i}", "code", STATUS_OK));
}

static void add_job(struct writer *w, const json_t *job, const char *parent)
{
    long long number = (long long)mlo_json_i64(job, "job", 0);
    const json_t *spans = json_object_get(job, "spans"), *part, *phase;
    size_t count = json_array_size(spans), i, p;
    char id[17], part_id[17], phase_id[17];
    if (!count)
        return;
    id_of(id, 8, "%s job %lld", w->trace_id, number);
    json_t *span =
        add(w, id, parent, mlo_json_str(job, "name", ""), mlo_json_f64(json_array_get(spans, 0), "from_s", 0),
            mlo_json_f64(json_array_get(spans, count - 1), "to_s", 0));
    attribute(span, "mlopt.job", json_integer(number));
    attribute(span, "mlopt.step", copy(job, "step"));
    attribute(span, "mlopt.state", copy(job, "state"));
    status_of(span, mlo_json_str(job, "state", ""));
    json_array_foreach((json_t *)spans, i, part)
    {
        id_of(part_id, 8, "%s job %lld part %zu", w->trace_id, number, i);
        span = add(w, part_id, id, mlo_json_str(part, "kind", ""), mlo_json_f64(part, "from_s", 0),
                   mlo_json_f64(part, "to_s", 0));
        if (mlo_json_bool(part, "open", false))
            attribute(span, "mlopt.open", json_true());
        if (strcmp(mlo_json_str(part, "kind", ""), "attempt") != 0)
            continue;
        attribute(span, "mlopt.attempt", copy(part, "attempt"));
        attribute(span, "mlopt.worker", copy(part, "worker"));
        attribute(span, "mlopt.outcome", copy(part, "outcome"));
        attribute(span, "error.type", copy(part, "error"));
        status_of(span, mlo_json_str(part, "outcome", ""));
        json_array_foreach(json_object_get(part, "phases"), p, phase)
        {
            id_of(phase_id, 8, "%s phase %zu", part_id, p);
            add(w, phase_id, part_id, mlo_json_str(phase, "name", ""), mlo_json_f64(phase, "from_s", 0),
                mlo_json_f64(phase, "to_s", 0));
        }
    }
}

json_t *mlo_trace_otlp(const json_t *trace, const char *version)
{
    struct writer w = {.spans = json_array(), .submitted_us = mlo_json_i64(trace, "submitted_us", 0)};
    char id[17];
    json_t *job;
    size_t i;
    id_of(w.trace_id, 16, "mlopt run %lld of %lld", (long long)mlo_json_i64(trace, "run", 0),
          (long long)w.submitted_us);
    id_of(id, 8, "%s run", w.trace_id);
    json_t *span =
        add(&w, id, NULL, mlo_json_str(trace, "recipe", "run"), 0, mlo_json_f64(trace, "seconds", 0));
    attribute(span, "mlopt.run", copy(trace, "run"));
    attribute(span, "mlopt.project", copy(trace, "project"));
    attribute(span, "mlopt.model", copy(trace, "model"));
    attribute(span, "mlopt.version", copy(trace, "version"));
    attribute(span, "mlopt.state", copy(trace, "state"));
    status_of(span, mlo_json_str(trace, "state", ""));
    json_array_foreach(json_object_get(trace, "jobs"), i, job) add_job(&w, job, id);
    return json_pack("{s:[{s:{s:[{s:s, s:{s:s}}]}, s:[{s:{s:s, s:s}, s:o}]}]}", "resourceSpans", "resource",
                     "attributes", "key", "service.name", "value", "stringValue", "mlopt", "scopeSpans",
                     "scope", "name", "mlopt", "version", version, "spans", w.spans);
}
