/* A completion: what finish.c and completion.c share. */
#ifndef MLO_SERVICE_COMPLETION_IMPL_H
#define MLO_SERVICE_COMPLETION_IMPL_H

#include "pipeline/service/service_impl.h"

struct mlo_complete {
    const struct mlo_job *job;
    const struct mlo_completion *what;
    struct mlo_actor actor;
};

/* All of a job's effect in statements of its own, one transaction: for what queue_complete does not know
 * (decisions, reproductions), and to say exactly what is wrong where it would do nothing. */
MLO_MUST_USE enum mlo_status mlo_complete_apart(struct mlo_db *db, const struct mlo_complete *c,
                                                struct mlo_error *err);

/* What was read of models and labels, of so many jobs whose tokens were found right: in the order of the
 * blobs, so that two of these at once wait for each other one way. news[i]: of job i's upload or label file
 * something was said for the first time. */
MLO_MUST_USE enum mlo_status mlo_completion_record_signatures(struct mlo_db_conn *conn,
                                                              const struct mlo_complete *jobs, size_t count,
                                                              bool *news, struct mlo_error *err);
/* What a completion has beyond that and the rows that queue_complete writes: observations, plans, a report,
 * samples; and their rows, once the token was found right. With `news` an uploader who declared something
 * else is contradicted in the log. */
bool mlo_completion_has_more(const struct mlo_completion *what);
MLO_MUST_USE enum mlo_status mlo_completion_record_more(struct mlo_db_conn *conn,
                                                        const struct mlo_complete *c, bool news,
                                                        struct mlo_error *err);
/* The result that the job's row keeps, as canonical JSON. */
MLO_MUST_USE enum mlo_status mlo_completion_result(const struct mlo_completion *what, struct mlo_buf *text,
                                                   struct mlo_error *err);
/* The key of the derive step that works on what this one made: a claim passes over what is made already. */
MLO_MUST_USE enum mlo_status mlo_completion_next_key(const struct mlo_complete *c, bool *has_key,
                                                     struct mlo_digest *key, struct mlo_error *err);

/* Adds the observation of the size of what a run made: exact, and no step need measure it. */
MLO_MUST_USE enum mlo_status mlo_run_append_size(json_t *observations, double size, double source_size,
                                                 struct mlo_error *err);
/* Whether the recipe's expectations hold: *error is JSON of what does not, NULL where all does; *results,
 * JSON too, may be NULL. Both are yours (free). */
MLO_MUST_USE enum mlo_status mlo_run_judge(const char *recipe, const json_t *observations, char **results,
                                           char **error, struct mlo_error *err);

#endif
