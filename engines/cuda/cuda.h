/* The public header of the cuda engine beyond its row in the engines' table. */
#ifndef MLO_ENGINES_CUDA_H
#define MLO_ENGINES_CUDA_H

#include "engines/engines.h"

/* The compute capability that a target names: 90 of "cuda:sm90"; 0: it is no target of this engine. */
int mlo_cuda_target_sm(const char *target);

#endif
