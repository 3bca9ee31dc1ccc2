/* The model that a recipe compares with: found when a run is planned, placed for the step, named by the
 * student's lineage. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/teacher_impl.h"

enum { S_LABELS };

const struct mlo_sql MLO_TEACHER_SQL[] = {
    [S_LABELS] =
        {"teacher_labels",
         "select digest from version_blob where version_id = $1 and role = 'labels' order by name limit 1",
         1},
};
const size_t MLO_TEACHER_SQL_COUNT = MLO_COUNT(MLO_TEACHER_SQL);

const char *mlo_teacher_of(const struct mlo_recipe *recipe)
{
    for (size_t i = 0; i < recipe->step_count; i++) {
        const char *teacher = mlo_json_str(recipe->steps[i].options, "teacher", "");
        if (mlo_step_find(recipe->steps[i].name)->reads_teacher && *teacher)
            return teacher;
    }
    return NULL;
}

static enum mlo_status labels_of(struct mlo_db_conn *conn, int64_t version, struct mlo_digest *out,
                                 bool *found, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, version);
    enum mlo_status status = mlo_db_exec(conn, &MLO_TEACHER_SQL[S_LABELS], &p, &rows, err);
    *found = status == MLO_OK && mlo_rows_count(&rows) == 1 && mlo_rows_digest(&rows, 0, 0, out);
    mlo_rows_clear(&rows);
    return status;
}

/* The entry that datasets of a run have of it. */
static enum mlo_status describe(struct mlo_db_conn *conn, const struct mlo_ref *ref,
                                const struct mlo_version_info *version, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *variant = ref->variant[0] ? ref->variant : MLO_VARIANT_SOURCE;
    struct mlo_digest artifact = version->artifact, labels;
    struct mlo_variant_info info;
    char name[256], text[MLO_DIGEST_TEXT_SIZE];
    bool has_labels = false;
    uint64_t size = version->artifact_size;
    if (strcmp(variant, MLO_VARIANT_SOURCE) != 0) {
        MLO_TRY(mlo_variant_find(conn, version->id, variant, &info, err));
        artifact = info.artifact;
        size = info.size_bytes;
    }
    MLO_TRY(labels_of(conn, version->id, &labels, &has_labels, err));
    snprintf(name, sizeof name, "%s/%s", ref->project, ref->name);
    *out = json_pack("{s:I, s:s, s:I, s:s, s:s, s:I}", "id", (json_int_t)version->id, "name", name, "version",
                     (json_int_t)version->number, "variant", variant, "digest",
                     mlo_digest_text(&artifact, text), "size", (json_int_t)size);
    if (!*out ||
        (has_labels && json_object_set_new(*out, "labels", json_string(mlo_digest_text(&labels, text))) != 0))
        status = mlo_error_nomem(err);
out:
    return status;
}

enum mlo_status mlo_teacher_resolve(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                    const char *project_name, const char *text, json_t **out,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_ref ref = {0};
    struct mlo_version_info version;
    int64_t project, model;
    char full[320];
    *out = NULL;
    /* MODEL@3/int8-cpu has a slash, too: PROJECT/ is what stands before one that comes before any '@' */
    const char *slash = strchr(text, '/'), *at = strchr(text, '@');
    bool own = !slash || (at && at < slash);
    int length = snprintf(full, sizeof full, "%s%s%s", own ? project_name : "", own ? "/" : "", text);
    if (length < 0 || (size_t)length >= sizeof full) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.60s…' is longer than a reference can be", text);
        mlo_error_hint(err, "the teacher is MODEL@VERSION/VARIANT of a project that you may read");
        goto out;
    }
    MLO_TRY(mlo_ref_parse(full, &ref, err));
    if (ref.stage[0]) {
        status =
            mlo_error_set(err, MLO_EINVAL, "'%.200s' names a stage, and what stands there changes", text);
        mlo_error_hint(err,
                       "write MODEL@VERSION/VARIANT, with PROJECT/ in front where it is another project's");
        goto out;
    }
    status = mlo_project_find(conn, actor, ref.project, MLO_VIEWER, &project, err);
    if (status == MLO_OK)
        status = mlo_model_find(conn, project, ref.name, &model, err);
    if (status == MLO_OK)
        status = mlo_version_find(conn, model, ref.version, &version, err);
    if (status == MLO_OK)
        status = describe(conn, &ref, &version, out, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_hint(err, "the teacher is MODEL@VERSION/VARIANT of a project that you may read");
out:
    if (status != MLO_OK)
        mlo_error_where(err, "recipe, teacher");
    return status;
}

enum mlo_status mlo_teacher_record(struct mlo_db_conn *conn, const struct mlo_job *job,
                                   const struct mlo_digest *student, struct mlo_error *err)
{
    const struct mlo_step *step = mlo_step_find(job->step);
    const json_t *teacher = json_object_get(job->datasets, MLO_TEACHER);
    struct mlo_digest digest;
    if (!step || !step->reads_teacher || !mlo_digest_parse(mlo_json_str(teacher, "digest", ""), &digest) ||
        mlo_digest_eq(&digest, student)) /* a model is not its own teacher */
        return MLO_OK;
    return mlo_lineage_add(conn, job->project, student, &digest, MLO_LINEAGE_DISTILLED_FROM, NULL, job->run,
                           err);
}
