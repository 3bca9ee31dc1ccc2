/* What the planner's files share: a run before it is one. */
#ifndef MLO_SERVICE_PLANNER_IMPL_H
#define MLO_SERVICE_PLANNER_IMPL_H

#include "pipeline/service/service_impl.h"

enum { MLO_PLANNED_JOBS_MAX = 64 };

struct mlo_planned_job {
    bool made; /* it is what the request is on: its step and recipe_step are NULL */
    const struct mlo_recipe_step *recipe_step;
    const struct mlo_step *step;
    char name[96];
    const char *target;
    int needs; /* position of the job before; -1: none */
    struct mlo_needs resources;
    bool no_memory, no_disk; /* nobody said how much: estimated */
};

struct mlo_run_outline {
    int64_t project, version;
    char project_name[104], object[256]; /* "fashion/cnn@2" */
    int64_t source_bytes;
    struct mlo_digest source;       /* the model file */
    struct mlo_digest source_input; /* what stands for the upload in a derivation */
    json_t *datasets;
    struct mlo_planned_job jobs[MLO_PLANNED_JOBS_MAX + 1];
    int job_count;
    const char *variant; /* NULL: nothing is derived */
    const char *target;  /* the recipe's, or that of what it is on */
    const struct mlo_run_subject *on;
    char made_by[64];          /* the step that made it */
    struct mlo_digest made_as; /* and its derivation */
};

/* Resolves a request: version, data, teacher, what it is on, and its jobs in order. Whoever has `plan`
 * (zeroed before) frees its `datasets`, whatever came back. MLO_ENOTFOUND, MLO_EINVAL, MLO_ETOOBIG, … with
 * the place in the recipe. */
MLO_MUST_USE enum mlo_status mlo_run_outline_make(struct mlo_db_conn *conn,
                                                  const struct mlo_run_request *request,
                                                  struct mlo_run_outline *plan, struct mlo_error *err);

#endif
