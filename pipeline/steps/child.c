/* The child's side of a job: one folder in, one folder out, no database, no network. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/signature.h"
#include "pipeline/steps/step_impl.h"

struct reporter {
    int fd;
    double last;
    uint64_t last_ns;
};

/* At most ten lines a second, and each change of one percent at most once. */
static void report_progress(void *arg, double fraction, const char *message)
{
    struct reporter *r = arg;
    uint64_t now = mlo_clock_ns();
    if (r->fd < 0 || (fraction < 1 && (now - r->last_ns < 100000000 || fraction - r->last < 0.01)))
        return;
    r->last = fraction;
    r->last_ns = now;
    json_t *line = json_pack("{s:f,s:s}", "fraction", fraction, "message", message ? message : "");
    struct mlo_buf text = MLO_BUF_INIT;
    if (line) {
        mlo_json_canonical(line, &text);
        mlo_buf_putc(&text, '\n');
        if (mlo_buf_ok(&text) && !mlo_fs_write_full(r->fd, mlo_buf_str(&text), text.len))
            r->fd = -1; /* nobody listens any more; the step itself goes on */
    }
    mlo_buf_clear(&text);
    json_decref(line);
}

static enum mlo_status run_job(const char *dir, const json_t *job, struct reporter *reporter,
                               struct mlo_step_result *result, struct mlo_error *err)
{
    const char *name;
    enum mlo_status status = mlo_json_get_str(job, "step", NULL, &name, err);
    if (status != MLO_OK)
        return status;
    const struct mlo_step *step = mlo_step_find(name);
    if (!step)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "this program has no step '%s'", name);
    /* the datasets say all else of how they are read */
    const struct mlo_dataset_options reading = {.postprocess = mlo_json_str(job, "postprocess", NULL)};
    struct mlo_step_context ctx = {
        .options = json_object_get(job, "options"),
        .model_path = mlo_json_str(job, "model", NULL),
        .source_path = mlo_json_str(job, "source", NULL),
        .calibrate_path = mlo_json_str(job, "calibrate", NULL),
        .select_path = mlo_json_str(job, "select", NULL),
        .evaluate_path = mlo_json_str(job, "evaluate", NULL),
        .reading = reading.postprocess ? &reading : NULL,
        .parent_path = mlo_json_str(job, "parent", NULL),
        .history = json_object_get(job, "history"),
        .run = json_object_get(job, "run"),
        .teacher_path = mlo_json_str(job, "teacher", NULL),
        .teacher_labels_path = mlo_json_str(job, "teacher_labels", NULL),
        .labels_path = mlo_json_str(job, "student_labels", NULL),
        .out_dir = dir,
        .threads = (unsigned)mlo_json_i64(job, "threads", 1),
        .batch = mlo_json_i64(job, "batch", 0),
        .decision_path = mlo_json_str(job, "decision", NULL),
        .checkpoint_dir = mlo_json_str(job, "checkpoints", NULL),
        .progress = report_progress,
        .progress_arg = reporter,
    };
    const char *tunings[MLO_TUNINGS_MAX + 1] = {NULL};
    const json_t *paths = json_object_get(job, "tunings");
    for (size_t i = 0; i < json_array_size(paths) && i < MLO_TUNINGS_MAX; i++)
        tunings[i] = json_string_value(json_array_get(paths, i));
    ctx.tunings = tunings;
    if (!ctx.model_path || !ctx.source_path || !json_is_object(ctx.options) ||
        (step->needs_calibrate && !ctx.calibrate_path) ||
        (mlo_step_reads_select(step, ctx.options) && !ctx.select_path && !ctx.decision_path) ||
        (step->needs_evaluate && !ctx.evaluate_path) || (step->reads_teacher && !ctx.teacher_path))
        return mlo_error_set(err, MLO_EINTERNAL, "the job for the step '%s' lacks an input", name);
    return step->run(&ctx, result, err);
}

enum { SAMPLE_BYTES = 16 };

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, SAMPLE_BYTES);
}

/* The hashes of a dataset's samples, sorted, as a file of the result: what gates compare between data roles.
 */
static enum mlo_status hash_samples(const char *dataset_path, const char *file, struct mlo_error *err)
{
    struct mlo_dataset_options options = {0};
    struct mlo_dataset *dataset = NULL;
    struct mlo_digest digest;
    uint8_t *all = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_dataset_open(dataset_path, &options, &dataset, err));
    int64_t count = mlo_dataset_count(dataset);
    all = malloc((size_t)count * SAMPLE_BYTES + 1);
    if (!all) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int64_t i = 0; i < count; i++) {
        MLO_TRY(mlo_dataset_sample_digest(dataset, i, &digest, err));
        memcpy(all + i * SAMPLE_BYTES, digest.bytes, SAMPLE_BYTES);
    }
    qsort(all, (size_t)count, SAMPLE_BYTES, by_bytes);
    MLO_TRY(mlo_fs_write_atomic(file, all, (size_t)count * SAMPLE_BYTES, err));
out:
    free(all);
    mlo_dataset_close(dataset);
    return status;
}

/* Of the roles that the job asks for; *files (yours) is {role: file}. */
static enum mlo_status report_samples(const char *dir, const json_t *job, json_t **files,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *role;
    size_t i;
    *files = json_object();
    json_array_foreach(json_object_get(job, "samples"), i, role)
    {
        char name[64];
        const char *dataset = mlo_json_str(job, json_string_value(role), NULL);
        snprintf(name, sizeof name, "samples-%.20s.bin", json_string_value(role));
        char *path = dataset ? mlo_fs_join(dir, name, NULL) : NULL;
        if (dataset && path)
            status = hash_samples(dataset, path, err);
        if (dataset && (!path || (status == MLO_OK && json_object_set_new(*files, json_string_value(role),
                                                                          json_string(path)) != 0)))
            status = mlo_error_nomem(err);
        free(path);
        if (status != MLO_OK)
            break;
    }
    return status;
}

/* {"inputs","outputs"} of a model, {"labels"} of a label file; NULL where it cannot be read: the step has
 * what it needs, and nobody is told what is not so. */
static json_t *read_signature(const char *role, const char *path)
{
    struct mlo_error ignored = {0};
    json_t *out = NULL;
    if (!path)
        return NULL;
    if (strcmp(role, "labels") == 0)
        return mlo_labels_describe(path);
    return mlo_signature_of_model(path, &out, &ignored) == MLO_OK ? out : NULL;
}

/* Of the files that the job asks for ("source", "model", "artifact", "labels"). */
static json_t *report_signatures(const json_t *job, const struct mlo_step_result *result)
{
    json_t *out = json_object(), *role;
    size_t i;
    json_array_foreach(json_object_get(job, "signatures"), i, role)
    {
        const char *name = json_is_string(role) ? json_string_value(role) : "";
        bool made = strcmp(name, "artifact") == 0;
        json_t *read = read_signature(name, made ? result->artifact_path : mlo_json_str(job, name, NULL));
        if (read)
            json_object_set_new(out, name, read);
    }
    return out;
}

static json_t *result_json(enum mlo_status status, const struct mlo_step_result *result,
                           const json_t *samples, const json_t *signatures, const struct mlo_error *error)
{
    if (status != MLO_OK)
        return json_pack("{s:s,s:s,s:s,s:s}", "status", mlo_status_info(status)->code, "message",
                         error->message, "where", error->where, "hint", error->hint);
    json_t *empty = json_array();
    json_t *out = json_pack("{s:s,s:s?,s:O?,s:O,s:O,s:s?,s:s?,s:O?,s:O?}", "status", "ok", "artifact",
                            result->artifact_path, "report", result->report, "observations",
                            result->observations ? result->observations : empty, "plans",
                            result->plans ? result->plans : empty, "document", result->document_path,
                            "decision", result->decision_path, "samples", samples, "signatures", signatures);
    json_decref(empty);
    return out;
}

enum mlo_status mlo_step_child(const char *dir, int progress_fd, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_step_result result = {0};
    struct reporter reporter = {.fd = progress_fd};
    struct mlo_error job_error = {0};
    json_t *job = NULL, *answer = NULL, *samples = NULL, *signatures = NULL;
    char *in = mlo_fs_join(dir, "job.json", NULL), *out = mlo_fs_join(dir, "result.json", NULL);
    if (!in || !out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_json_load_file(in, &job, err));
    enum mlo_status outcome = run_job(dir, job, &reporter, &result, &job_error);
    if (outcome == MLO_OK)
        outcome = report_samples(dir, job, &samples, &job_error);
    if (outcome == MLO_OK)
        signatures = report_signatures(job, &result);
    if (outcome == MLO_OK)
        report_progress(&reporter, 1, "done");
    answer = result_json(outcome, &result, samples, signatures, &job_error);
    if (!answer) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_json_save_file(answer, out, err));
out:
    mlo_step_result_clear(&result);
    json_decref(job);
    json_decref(answer);
    json_decref(samples);
    json_decref(signatures);
    free(in);
    free(out);
    return status;
}
