/* Names of targets. */
#include <string.h>

#include "engines/cuda/cuda.h"

int mlo_cuda_target_sm(const char *target)
{
    static const char prefix[] = "cuda:sm";
    int64_t sm;
    bool is_one = target && mlo_str_starts(target, prefix) && mlo_str_to_i64(target + strlen(prefix), &sm) &&
                  sm >= 50 && sm < 1000;
    return is_one ? (int)sm : 0;
}
