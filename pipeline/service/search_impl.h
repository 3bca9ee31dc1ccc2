/* A search's run: the jobs that its choice plans, and what becomes of it. */
#ifndef MLO_SERVICE_SEARCH_IMPL_H
#define MLO_SERVICE_SEARCH_IMPL_H

#include "pipeline/service/completion_impl.h"

extern const struct mlo_sql MLO_SEARCH_SQL[];
extern const size_t MLO_SEARCH_SQL_COUNT;

/* Whether the job chose what a search does next. */
bool mlo_search_chose(const struct mlo_complete *c);
/* In the transaction that completes such a job, after its row was written: plans the jobs that it chose and
 * the next choice behind them; names the points of the front so far, with an edge to the data that selected
 * them. *over: nothing is next, and *error (yours) is why the run fails, or NULL. */
MLO_MUST_USE enum mlo_status mlo_search_follow(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                               bool *over, char **error, struct mlo_error *err);
/* In the transaction that failed a job of a run whose jobs are locked: a candidate's is out of the search
 * (*dropped), which goes on; another one's fails its run. */
MLO_MUST_USE enum mlo_status mlo_search_drop(struct mlo_db_conn *conn, int64_t job, int64_t run,
                                             bool *dropped, struct mlo_error *err);
/* What the run of this job did so far, as the step reads it (steps/search.h); *out is yours. */
MLO_MUST_USE enum mlo_status mlo_search_so_far(struct mlo_db_conn *conn, int64_t job, json_t **out,
                                               struct mlo_error *err);

#endif
