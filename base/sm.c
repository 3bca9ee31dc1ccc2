#include "base/sm.h"

#include <string.h>

#include "base/str.h"

int mlo_cuda_target_sm(const char *target)
{
    static const char prefix[] = "cuda:sm";
    int64_t sm;
    bool is_one = target && mlo_str_starts(target, prefix) && mlo_str_to_i64(target + strlen(prefix), &sm) &&
                  sm >= 50 && sm < 1000;
    return is_one ? (int)sm : 0;
}

bool mlo_sm_runs(int gpu, int code)
{
    return gpu / 10 == code / 10 && gpu >= code;
}
