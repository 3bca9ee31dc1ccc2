/* The inputs of a model that a caller must feed, and the batch they agree on. */
#ifndef MLO_MEASURE_INPUTS_IMPL_H
#define MLO_MEASURE_INPUTS_IMPL_H

#include "graph/graph.h"

/* Number of graph inputs that are no (default-valued) initializers. */
int mlo_model_input_count(const struct mlo_model *model);
/* The i-th of them. */
const struct mlo_value *mlo_model_input(const struct mlo_model *model, int i);
/* The batch that the model's input shapes fix, or 0 when all leave it open; MLO_EUNSUPPORTED when two inputs
 * disagree or one has no batch axis. */
MLO_MUST_USE enum mlo_status mlo_model_fixed_batch(const struct mlo_model *model, int64_t *out,
                                                   struct mlo_error *err);

#endif
