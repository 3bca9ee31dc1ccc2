/* The teacher of a run: a member of its datasets, {"id": of the version, "name", "version", "variant",
 * "digest" and "size": of the model file, "labels": of its label file, or absent}. */
#ifndef MLO_SERVICE_TEACHER_IMPL_H
#define MLO_SERVICE_TEACHER_IMPL_H

#include "pipeline/service/service_impl.h"

#define MLO_TEACHER "teacher"

extern const struct mlo_sql MLO_TEACHER_SQL[];
extern const size_t MLO_TEACHER_SQL_COUNT;

/* The name that the recipe's steps give it; NULL: none compares with one. Borrowed. */
const char *mlo_teacher_of(const struct mlo_recipe *recipe);
/* Finds MODEL@VERSION/VARIANT of this project, or PROJECT/MODEL@… of one that the actor may read. *out is
 * yours. */
MLO_MUST_USE enum mlo_status mlo_teacher_resolve(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                 const char *project_name, const char *text, json_t **out,
                                                 struct mlo_error *err);
/* Where the job compared with a teacher: the edge from the student to it. */
MLO_MUST_USE enum mlo_status mlo_teacher_record(struct mlo_db_conn *conn, const struct mlo_job *job,
                                                const struct mlo_digest *student, struct mlo_error *err);

#endif
