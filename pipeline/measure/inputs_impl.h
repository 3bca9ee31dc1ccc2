/* The inputs of a model that a caller must feed, and the batch they agree on. */
#ifndef MLO_MEASURE_INPUTS_IMPL_H
#define MLO_MEASURE_INPUTS_IMPL_H

#include "graph/graph.h"

/* Number of graph inputs that are no (default-valued) initializers. */
int mlo_model_input_count(const struct mlo_model *model);
/* The i-th of them. */
const struct mlo_value *mlo_model_input(const struct mlo_model *model, int i);
#endif
