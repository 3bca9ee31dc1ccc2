/* What a person is told about the cuda engine on this machine: what was found, what is missing, what to do.
 */
#ifndef MLO_ENGINES_CUDA_FOUND_H
#define MLO_ENGINES_CUDA_FOUND_H

#include "engines/engines.h"

/* Of what the engine's inventory says (engines.h; NULL: there is none) and whether it can be used (MLO_OK, or
 * the answers of can_compile and probe): {"compile": bool, "run": bool, "verdict": one line,
 * "parts":[{"name","kind","found","version","path","why","for"}], "gpus":[…],
 * "missing":[{"name","why","next","for"}]}. *out is yours. */
struct mlo_cuda_answers {
    const json_t *inventory;
    enum mlo_status compile, run;
    const struct mlo_error *compile_error, *run_error; /* of those that are not MLO_OK */
};
MLO_MUST_USE enum mlo_status mlo_cuda_found_of(const struct mlo_cuda_answers *answers, json_t **out,
                                               struct mlo_error *err);
/* The same of this machine. */
MLO_MUST_USE enum mlo_status mlo_cuda_found(json_t **out, struct mlo_error *err);

#endif
