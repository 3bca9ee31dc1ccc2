/* Sessions: one model and one engine, inputs of any shape.
 *
 * A plan is compiled for exact shapes. A session looks for the plan of the shapes that it is given, compiles
 * it when there is none, and keeps the most recently used ones. Packed weights are made once and belong to
 * all plans that want the same (mlo_constants), so another shape costs neither another copy of the weights
 * nor the time to pack them. Nothing is padded: rows of a batch may influence each other, and an exact plan
 * is right for any model.
 *
 * Any number of threads may use a session at once: calls that run at the same time run on programs of their
 * own (buffers), which the session keeps for the next call. */
#ifndef MLO_ENGINES_SESSION_H
#define MLO_ENGINES_SESSION_H

#include "engines/plans.h"

struct mlo_session;

struct mlo_session_options {
    const struct mlo_engine *engine; /* NULL: cpu */
    enum mlo_numerics numerics;
    unsigned threads;  /* of each program; 0: 1 */
    size_t max_plans;  /* kept; 0: 32 */
    size_t max_bytes;  /* of packed weights, plans and programs that are kept; 0: 1 GiB. Plans in use, and the
                          one used last with one program, stay in any case */
    unsigned max_idle; /* programs of one plan that wait for the next call; 0: one per CPU */
};

struct mlo_session_stats {
    size_t plans, programs;           /* there now */
    size_t bytes;                     /* constants in common, plans and programs */
    uint64_t runs, compiled, evicted; /* since the start */
};

/* Takes the model over, also on failure: nobody may change it from now on. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_session_new_take(struct mlo_model *model,
                                                  const struct mlo_session_options *options,
                                                  struct mlo_session **out, struct mlo_error *err);
/* A session of an opened plan's file, which is for one combination of shapes; others are MLO_EINVAL. Takes
 * the plan over, also on failure; engine, numerics and threads are the plan's. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_session_new_plan_take(struct mlo_plan_file *plan,
                                                       const struct mlo_session_options *options,
                                                       struct mlo_session **out, struct mlo_error *err);
/* When no call runs any more. NULL is fine. */
void mlo_session_free(struct mlo_session *session);

/* The model, with its open dims; borrowed. */
const struct mlo_model *mlo_session_model(const struct mlo_session *session);
/* Compiles for the shapes of these inputs (data is not read), unless there is a plan; outputs: one per graph
 * output, whose dtype, rank, dims and size_bytes are set; rank -1 where only a run tells the shape. */
MLO_MUST_USE enum mlo_status mlo_session_prepare(struct mlo_session *session, const struct mlo_tensor *inputs,
                                                 size_t count, struct mlo_tensor *outputs,
                                                 struct mlo_error *err);
/* Runs once; inputs and outputs as mlo_engine's run, `count` inputs of any shape that the model takes. */
MLO_MUST_USE enum mlo_status mlo_session_run(struct mlo_session *session, const struct mlo_tensor *inputs,
                                             size_t count, struct mlo_tensor *outputs, struct mlo_error *err);
/* How the plan for these inputs runs, as mlo_engine's describe. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_session_describe(struct mlo_session *session,
                                                  const struct mlo_tensor *inputs, size_t count, json_t **out,
                                                  struct mlo_error *err);
void mlo_session_stats(struct mlo_session *session, struct mlo_session_stats *out);

#endif
