#include "registry/target.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* What has the first feature set has the second one too. */
static const struct {
    const char *target, *implies;
} implications[] = {
    {"cpu:avx2", "any"},
    {"cpu:avx512", "cpu:avx2"},
    {"cpu:avx512-vnni", "cpu:avx512"},
    {"cpu:avx512-bf16", "cpu:avx512-vnni"},
    {"cpu:avx512-fp16", "cpu:avx512-vnni"},
    {"cpu:amx-int8", "cpu:avx512-fp16"},
};

enum { CUDA_RANK = 100 };

static const char *implied_by(const char *target)
{
    for (size_t i = 0; i < MLO_COUNT(implications); i++)
        if (strcmp(implications[i].target, target) == 0)
            return implications[i].implies;
    return "any";
}

bool mlo_target_valid(const char *target)
{
    if (!target || strlen(target) > 60)
        return false;
    if (strcmp(target, "any") == 0)
        return true;
    if (mlo_str_starts(target, "cuda:"))
        return mlo_cuda_target_sm(target) > 0;
    static const char name[] = "abcdefghijklmnopqrstuvwxyz0123456789",
                      feature[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t kind = strspn(target, name);
    return kind > 0 && target[kind] == ':' && target[kind + 1] &&
           target[kind + 1 + strspn(target + kind + 1, feature)] == '\0';
}

static bool one_satisfies(const char *consumer, const char *target)
{
    int have = mlo_cuda_target_sm(consumer), need = mlo_cuda_target_sm(target);
    if (have && need)
        return mlo_sm_runs(have, need);
    for (const char *c = consumer; strcmp(c, "any") != 0; c = implied_by(c))
        if (strcmp(c, target) == 0)
            return true;
    return false;
}

bool mlo_target_satisfies(const char *consumer, const char *target)
{
    if (strcmp(target, "any") == 0)
        return true;
    for (const char *p = consumer; p && *p;) {
        char one[64];
        size_t n = strcspn(p, ",");
        if (n < sizeof one) {
            memcpy(one, p, n);
            one[n] = '\0';
            if (one_satisfies(one, target))
                return true;
        }
        p += n + (p[n] == ',');
    }
    return false;
}

int mlo_target_rank(const char *target)
{
    int rank = 0, cuda = mlo_cuda_target_sm(target);
    if (cuda)
        return CUDA_RANK + cuda;
    for (const char *t = target; strcmp(t, "any") != 0; t = implied_by(t))
        rank++;
    return rank;
}
