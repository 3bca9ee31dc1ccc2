/* The step that prunes, run on a model. */
#ifndef MLO_TESTS_PRUNE_STEP_FIXTURE_H
#define MLO_TESTS_PRUNE_STEP_FIXTURE_H

#include <stdlib.h>
#include <unistd.h>

#include "passes/prune.h"
#include "tests/unit/steps/step_run.h"

static inline void run_step(struct run *r, const struct mlo_model *model, int64_t samples,
                            const char *options, unsigned threads, int64_t batch)
{
    run_named(r, "prune", model, samples, options, threads, batch);
}

static inline struct mlo_model *load_result(const struct run *r)
{
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    assert_ok(mlo_onnx_load(r->result.artifact_path, &m, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

#endif
