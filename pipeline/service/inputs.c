/* What a step reads, put where it can read it: links into the blob store under the names that people gave. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/blob_cache_impl.h"
#include "pipeline/service/search_impl.h"
#include "pipeline/service/teacher_impl.h"
#include "pipeline/service/worker_impl.h"
#include "pipeline/steps/checkpoint.h"

enum { S_VERSION_FILES, S_DATASET_FILES, S_HISTORY, S_TUNINGS };

const struct mlo_sql MLO_INPUTS_SQL[] = {
    [S_VERSION_FILES] = {"inputs_version",
                         "select name, digest, role, null from version_blob where version_id = $1 "
                         "and role in ('model', 'data', 'external-data') order by name",
                         1},
    [S_DATASET_FILES] = {"inputs_dataset",
                         "select b.name, b.digest, b.role, v.metadata from dataset_blob b "
                         "join dataset_version v on v.id = b.dataset_version_id "
                         "where b.dataset_version_id = $1 order by b.name",
                         1},
    [S_HISTORY] = {"inputs_history",
                   "select d.step, d.spec, d.result, d.output from job j join job d on d.run = j.run "
                   "where j.id = $1 and d.kind = 'derive' and d.position < j.position order by d.position",
                   1},
    /* what was measured on GPUs for this project, the newest first */
    [S_TUNINGS] = {"inputs_tunings",
                   "select t.result::json #>> '{report,decision,blob}' from job j join job t "
                   "on t.project = j.project and t.step = 'tune' and t.state = 'succeeded' "
                   "where j.id = $1 and t.result is not null order by t.id desc limit 8",
                   1},
};
const size_t MLO_INPUTS_SQL_COUNT = MLO_COUNT(MLO_INPUTS_SQL);

static enum mlo_status read_files(struct mlo_worker *worker, int statement, int64_t id, struct mlo_rows *rows,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, id);
    do {
        struct mlo_db_conn *conn = NULL;
        status = mlo_db_acquire(worker->o.db, &conn, err);
        if (status == MLO_OK)
            status = mlo_db_exec(conn, &MLO_INPUTS_SQL[statement], &p, rows, err);
        mlo_db_release(conn);
    } while (mlo_attempt_once_more(status));
    return status;
}

static enum mlo_status from_store(void *arg, const struct mlo_digest *digest, const char *scratch,
                                  char **path, struct mlo_error *err)
{
    struct mlo_worker *worker = arg;
    return mlo_blob_path(worker->o.blobs, digest, scratch, true, path, err);
}

/* <dir>/<name> with the blob's bytes. */
static enum mlo_status place(struct mlo_worker *worker, const struct mlo_digest *digest, const char *dir,
                             const char *name, struct mlo_error *err)
{
    const struct mlo_blob_cache cache = {
        .dir = worker->cache_dir, .scratch = worker->scratch_dir, .max_bytes = worker->o.max_cache_bytes};
    bool hit = false;
    char *path = mlo_fs_join(dir, name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_blob_cache_place(&cache, digest, from_store, worker, path, &hit, err);
    if (status == MLO_OK)
        atomic_fetch_add(hit ? &worker->cache_hits : &worker->cache_misses, 1);
    if (status == MLO_EDIGEST) {
        const struct mlo_actor actor = {.name = worker->id, .role = MLO_ADMIN, .via = "worker"};
        status = mlo_blob_report_damage(worker->o.db, worker->o.blobs, &actor, digest, false, err);
    }
    free(path);
    return status;
}

/* The files of the upload; *model is the path of the one in the role "model", yours. */
static enum mlo_status place_version(struct mlo_worker *worker, int64_t version, const char *dir,
                                     char **model, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    MLO_TRY(mlo_fs_mkdirs(dir, err));
    MLO_TRY(read_files(worker, S_VERSION_FILES, version, &rows, err));
    for (int i = 0; i < mlo_rows_count(&rows); i++) {
        const char *name = mlo_rows_text(&rows, i, 0);
        mlo_rows_digest(&rows, i, 1, &digest);
        MLO_TRY(place(worker, &digest, dir, name, err));
        if (strcmp(mlo_rows_text(&rows, i, 2), "model") == 0 && !*model)
            *model = mlo_fs_join(dir, name, NULL);
    }
    if (!*model)
        status = mlo_error_set(err, MLO_EINTERNAL, "version %lld has no model file", (long long)version);
out:
    mlo_rows_clear(&rows);
    return status;
}

/* The dataset.json of a dataset's folder, from the roles of its files and its metadata. */
static enum mlo_status describe_dataset(const struct mlo_rows *rows, const char *dir, struct mlo_error *err)
{
    static const char *const passed_on[] = {"normalize", "input", "first", "count", "classes"};
    enum mlo_status status = MLO_OK;
    json_t *metadata = NULL, *files = json_object(), *manifest = NULL;
    char *path = mlo_fs_join(dir, "dataset.json", NULL);
    const char *text = mlo_rows_text(rows, 0, 3);
    bool idx = false;
    for (int i = 0; i < mlo_rows_count(rows); i++) {
        char name[256];
        snprintf(name, sizeof name, "files/%s", mlo_rows_text(rows, i, 0));
        const char *role = mlo_rows_text(rows, i, 2);
        idx |= strcmp(role, "images") == 0;
        json_object_set_new(files, role, json_string(name));
    }
    manifest = json_pack("{s:s, s:O}", "format", idx ? "idx" : "npz", "files", files);
    if (!path || !manifest) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_json_parse(text, strlen(text), "the dataset's metadata", &metadata, err));
    for (size_t i = 0; i < MLO_COUNT(passed_on); i++) {
        json_t *value = json_object_get(metadata, passed_on[i]);
        if (value && !json_is_null(value))
            json_object_set(manifest, passed_on[i], value);
    }
    MLO_TRY(mlo_json_save_file(manifest, path, err));
out:
    free(path);
    json_decref(metadata);
    json_decref(files);
    json_decref(manifest);
    return status;
}

static enum mlo_status place_dataset(struct mlo_worker *worker, int64_t dataset_version, const char *dir,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    char *files = mlo_fs_join(dir, "files", NULL);
    if (!files)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_fs_mkdirs(files, err));
    MLO_TRY(read_files(worker, S_DATASET_FILES, dataset_version, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "the dataset has no files");
        goto out;
    }
    for (int i = 0; i < mlo_rows_count(&rows); i++) {
        mlo_rows_digest(&rows, i, 1, &digest);
        MLO_TRY(place(worker, &digest, files, mlo_rows_text(&rows, i, 0), err));
    }
    MLO_TRY(describe_dataset(&rows, dir, err));
out:
    mlo_rows_clear(&rows);
    free(files);
    return status;
}

/* Adds the role's path to job.json when the step reads it. */
static enum mlo_status add_dataset(struct mlo_worker *worker, const struct mlo_job *job, const char *in,
                                   const char *role, bool needed, json_t *out, struct mlo_error *err)
{
    const json_t *dataset = json_object_get(job->datasets, role);
    if (!needed || !dataset)
        return json_object_set_new(out, role, json_null()) == 0 ? MLO_OK : mlo_error_nomem(err);
    char *dir = mlo_fs_join(in, role, NULL);
    if (!dir)
        return mlo_error_nomem(err);
    enum mlo_status status = place_dataset(worker, mlo_json_i64(dataset, "id", 0), dir, err);
    if (status == MLO_OK && json_object_set_new(out, role, json_string(dir)) < 0)
        status = mlo_error_nomem(err);
    if (status != MLO_OK)
        mlo_error_where(err, "dataset %s", mlo_json_str(dataset, "name", role));
    free(dir);
    return status;
}

/* The decision that a job follows when it reproduces: it is an input like any other, so that nothing is
 * chosen anew. */
static enum mlo_status add_decision(struct mlo_worker *worker, const struct mlo_job *job, const char *in,
                                    json_t *out, struct mlo_error *err)
{
    if (!job->has_decision)
        return MLO_OK;
    char *path = mlo_fs_join(in, "decision.json", NULL);
    enum mlo_status status =
        path ? place(worker, &job->decision, in, "decision.json", err) : mlo_error_nomem(err);
    if (status == MLO_OK && json_object_set_new(out, "decision", json_string(path)) != 0)
        status = mlo_error_nomem(err);
    free(path);
    return status;
}

/* What was measured before, for a step that begins with it: blobs as any other. One that is gone is left out.
 */
static enum mlo_status add_tunings(struct mlo_worker *worker, const struct mlo_job *job, const char *in,
                                   json_t *out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    json_t *paths = json_array();
    enum mlo_status status =
        paths ? read_files(worker, S_TUNINGS, job->id, &rows, err) : mlo_error_nomem(err);
    for (int i = 0; status == MLO_OK && i < mlo_rows_count(&rows); i++) {
        struct mlo_digest digest;
        struct mlo_error gone = {0};
        char name[32];
        if (!mlo_digest_parse(mlo_rows_text(&rows, i, 0) ? mlo_rows_text(&rows, i, 0) : "", &digest))
            continue;
        snprintf(name, sizeof name, "tuning-%d.json", i);
        char *path = mlo_fs_join(in, name, NULL);
        enum mlo_status placed = path ? place(worker, &digest, in, name, &gone) : MLO_OK;
        if (!path || (placed == MLO_OK && json_array_append_new(paths, json_string(path)) != 0)) {
            status = mlo_error_nomem(err);
        } else if (placed != MLO_OK && placed != MLO_ENOTFOUND && placed != MLO_EDIGEST) {
            *err = gone; /* it may be there: the attempt is tried again */
            status = placed;
        }
        free(path);
    }
    if (status == MLO_OK && json_object_set(out, "tunings", paths) != 0)
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    json_decref(paths);
    return status;
}

/* The recipe's postprocessing model, where the step makes metrics. */
static enum mlo_status add_postprocess(struct mlo_worker *worker, const struct mlo_job *job, const char *in,
                                       bool needed, json_t *out, struct mlo_error *err)
{
    const json_t *post = json_object_get(job->datasets, MLO_POSTPROCESS);
    char *path = NULL;
    if (!needed || !post)
        return MLO_OK;
    char *dir = mlo_fs_join(in, MLO_POSTPROCESS, NULL);
    enum mlo_status status =
        dir ? place_version(worker, mlo_json_i64(post, "id", 0), dir, &path, err) : mlo_error_nomem(err);
    if (status == MLO_OK && json_object_set_new(out, MLO_POSTPROCESS, json_string(path)) < 0)
        status = mlo_error_nomem(err);
    if (status != MLO_OK)
        mlo_error_where(err, "postprocess %s", mlo_json_str(post, "name", ""));
    free(dir);
    free(path);
    return status;
}

/* A file by its digest, as <in>/<name>; its path becomes the member `key` of job.json. */
static enum mlo_status add_blob(struct mlo_worker *worker, const struct mlo_digest *digest, const char *in,
                                const char *name, const char *key, json_t *out, struct mlo_error *err)
{
    char *path = mlo_fs_join(in, name, NULL);
    enum mlo_status status = path ? place(worker, digest, in, name, err) : mlo_error_nomem(err);
    if (status == MLO_OK && json_object_set_new(out, key, json_string(path)) != 0)
        status = mlo_error_nomem(err);
    free(path);
    return status;
}

/* The teacher, and the label files of both, for a step that compares with one. */
static enum mlo_status add_teacher(struct mlo_worker *worker, const struct mlo_job *job, const char *in,
                                   const struct mlo_step *step, json_t *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *teacher = json_object_get(job->datasets, MLO_TEACHER);
    struct mlo_digest digest;
    char *dir = NULL, *path = NULL;
    if (!step->reads_teacher || !teacher)
        return MLO_OK;
    if (!(dir = mlo_fs_join(in, MLO_TEACHER, NULL))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (strcmp(mlo_json_str(teacher, "variant", ""), MLO_VARIANT_SOURCE) == 0) {
        MLO_TRY(place_version(worker, mlo_json_i64(teacher, "id", 0), dir, &path, err));
        if (json_object_set_new(out, MLO_TEACHER, json_string(path)) != 0)
            status = mlo_error_nomem(err);
    } else if (mlo_digest_parse(mlo_json_str(teacher, "digest", ""), &digest)) {
        MLO_TRY(mlo_fs_mkdirs(dir, err));
        MLO_TRY(add_blob(worker, &digest, dir, "model.onnx", MLO_TEACHER, out, err));
    }
    MLO_TRY(status);
    if (mlo_digest_parse(mlo_json_str(teacher, "labels", ""), &digest))
        MLO_TRY(add_blob(worker, &digest, in, "teacher-labels", "teacher_labels", out, err));
    if (job->has_labels)
        MLO_TRY(add_blob(worker, &job->labels, in, "student-labels", "student_labels", out, err));
out:
    if (status != MLO_OK)
        mlo_error_where(err, "teacher %s", mlo_json_str(teacher, "name", ""));
    free(dir);
    free(path);
    return status;
}

/* Asks for the samples of the datasets that are placed and not known yet. */
static enum mlo_status ask_samples(struct mlo_worker *worker, const struct mlo_job *job, json_t *out,
                                   struct mlo_error *err)
{
    static const char *const roles[] = {"calibrate", "select", "evaluate"};
    struct mlo_digest digest;
    enum mlo_status status;
    json_t *asked = json_array();
    if (!asked || json_object_set_new(out, "samples", asked) != 0)
        return mlo_error_nomem(err);
    do {
        struct mlo_db_conn *conn = NULL;
        json_array_clear(asked);
        status = mlo_db_acquire(worker->o.db, &conn, err);
        for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(roles); i++) {
            const char *text = mlo_json_str(json_object_get(job->datasets, roles[i]), "digest", "");
            bool known = true;
            if (!json_is_string(json_object_get(out, roles[i])) || !mlo_digest_parse(text, &digest))
                continue;
            status = mlo_samples_known(conn, &digest, &known, err);
            if (status == MLO_OK && !known && json_array_append_new(asked, json_string(roles[i])) != 0)
                status = mlo_error_nomem(err);
        }
        mlo_db_release(conn);
    } while (mlo_attempt_once_more(status));
    return status;
}

/* Asks for the signatures of the files that no worker has read yet; what is made is always asked for. */
static enum mlo_status ask_signatures(struct mlo_worker *worker, const struct mlo_job *job, const char *in,
                                      json_t *out, struct mlo_error *err)
{
    const struct {
        const char *role;
        const struct mlo_digest *blob;
    } files[] = {{"source", &job->source},
                 {"model", job->from_source ? NULL : &job->input},
                 {"labels", job->has_labels ? &job->labels : NULL}};
    char *labels = mlo_fs_join(in, "labels", NULL);
    json_t *asked = json_array();
    bool want_labels = false;
    enum mlo_status status = labels && asked ? MLO_OK : mlo_error_nomem(err);
    while (status == MLO_OK) {
        struct mlo_db_conn *conn = NULL;
        json_array_clear(asked);
        want_labels = false;
        status = mlo_db_acquire(worker->o.db, &conn, err);
        for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(files); i++) {
            bool known = true;
            if (files[i].blob)
                status = mlo_signature_known(conn, files[i].blob, &known, err);
            if (!known)
                json_array_append_new(asked, json_string(files[i].role));
            want_labels = want_labels || (!known && files[i].blob == &job->labels);
        }
        mlo_db_release(conn); /* before bytes are fetched, which may take long */
        if (!mlo_attempt_once_more(status))
            break;
        status = MLO_OK;
    }
    if (status == MLO_OK && want_labels) {
        status = place(worker, &job->labels, in, "labels", err);
        json_object_set_new(out, "labels", json_string(labels));
    }
    if (job->derive)
        json_array_append_new(asked, json_string("artifact"));
    if (status == MLO_OK && json_object_set(out, "signatures", asked) != 0)
        status = mlo_error_nomem(err);
    json_decref(asked);
    free(labels);
    return status;
}

/* One deriving step: its options and what it reported. */
static enum mlo_status add_history(const struct mlo_rows *rows, int row, json_t *out, struct mlo_error *err)
{
    enum mlo_status status;
    const char *spec_text = mlo_rows_text(rows, row, 1), *result_text = mlo_rows_text(rows, row, 2);
    json_t *spec = NULL, *result = NULL;
    MLO_TRY(mlo_json_parse(spec_text, strlen(spec_text), "a job's spec", &spec, err));
    MLO_TRY(mlo_json_parse(result_text, strlen(result_text), "a job's result", &result, err));
    json_t *report = json_object_get(result, "report");
    if (json_array_append_new(out, json_pack("{s:s,s:O,s:O?}", "step", mlo_rows_text(rows, row, 0), "options",
                                             json_object_get(spec, "options"), "report", report)) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(spec);
    json_decref(result);
    return status;
}

/* For a step that asks: what the deriving steps before it did, and what the last of them was given. */
static enum mlo_status place_history(struct mlo_worker *worker, const struct mlo_job *job, const char *in,
                                     json_t *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_digest parent;
    json_t *history = json_array();
    char *dir = mlo_fs_join(in, "parent", NULL), *path = mlo_fs_join(in, "parent", "model.onnx", NULL);
    if (!history || !dir || !path) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(read_files(worker, S_HISTORY, job->id, &rows, err));
    int count = mlo_rows_count(&rows);
    for (int i = 0; i < count; i++)
        MLO_TRY(add_history(&rows, i, history, err));
    if (count > 1 && mlo_rows_digest(&rows, count - 2, 3, &parent)) {
        MLO_TRY(mlo_fs_mkdirs(dir, err));
        MLO_TRY(place(worker, &parent, dir, "model.onnx", err));
        json_object_set_new(out, "parent", json_string(path));
    }
    if (json_object_set(out, "history", history) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    json_decref(history);
    free(dir);
    free(path);
    return status;
}

/* For a step that asks: what its run did so far. */
static enum mlo_status add_run(struct mlo_worker *worker, const struct mlo_job *job, json_t *out,
                               struct mlo_error *err)
{
    enum mlo_status status;
    json_t *run = NULL;
    do {
        struct mlo_db_conn *conn = NULL;
        status = mlo_db_acquire(worker->o.db, &conn, err);
        if (status == MLO_OK)
            status = mlo_search_so_far(conn, job->id, &run, err);
        mlo_db_release(conn);
    } while (mlo_attempt_once_more(status));
    if (status == MLO_OK && json_object_set(out, "run", run) != 0)
        status = mlo_error_nomem(err);
    json_decref(run);
    return status;
}

enum mlo_status mlo_attempt_inputs(struct mlo_worker *worker, const struct mlo_job *job, const char *dir,
                                   const char *checkpoints, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_step *step = mlo_step_find(job->step);
    char *in = mlo_fs_join(dir, "in", NULL), *source_dir = mlo_fs_join(dir, "in", "source", NULL);
    char *variant_dir = mlo_fs_join(dir, "in", "variant", NULL),
         *json_path = mlo_fs_join(dir, "out", "job.json", NULL);
    char *source = NULL, *model = NULL;
    json_t *out = NULL;
    if (!step) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "this program has no step '%s'", job->step);
        goto out;
    }
    if (!in || !source_dir || !variant_dir || !json_path) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(place_version(worker, job->version, source_dir, &source, err));
    if (!job->from_source) {
        MLO_TRY(mlo_fs_mkdirs(variant_dir, err));
        MLO_TRY(place(worker, &job->input, variant_dir, "model.onnx", err));
        if (!(model = mlo_fs_join(variant_dir, "model.onnx", NULL))) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    mlo_checkpoint_trim(checkpoints);
    /* what an earlier attempt kept is no reproduction */
    out = json_pack("{s:s, s:O, s:s, s:s, s:i, s:i, s:s?}", "step", job->step, "options", job->options,
                    "model", model ? model : source, "source", source, "threads", (int)worker->o.threads,
                    "batch", 0, "checkpoints", job->reproduces ? NULL : checkpoints);
    if (!out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(add_dataset(worker, job, in, "calibrate", mlo_step_reads_calibrate(step), out, err));
    MLO_TRY(add_dataset(worker, job, in, "select",
                        mlo_step_reads_select(step, job->options) && !job->has_decision, out, err));
    MLO_TRY(add_decision(worker, job, in, out, err));
    MLO_TRY(add_dataset(worker, job, in, "evaluate", mlo_step_reads_evaluate(step), out, err));
    MLO_TRY(add_postprocess(worker, job, in, mlo_step_reads_postprocess(step, job->options), out, err));
    MLO_TRY(add_teacher(worker, job, in, step, out, err));
    MLO_TRY(ask_samples(worker, job, out, err));
    MLO_TRY(ask_signatures(worker, job, in, out, err));
    if (step->reads_history)
        MLO_TRY(place_history(worker, job, in, out, err));
    if (step->reads_run)
        MLO_TRY(add_run(worker, job, out, err));
    if (step->reads_tunings && !job->has_decision)
        MLO_TRY(add_tunings(worker, job, in, out, err));
    MLO_TRY(mlo_json_save_file(out, json_path, err));
out:
    json_decref(out);
    free(in);
    free(source_dir);
    free(variant_dir);
    free(json_path);
    free(source);
    free(model);
    return status;
}
