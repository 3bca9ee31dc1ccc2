/* References as people write them: "vision/resnet50", "vision/resnet50@3", "vision/resnet50@production",
 * "vision/resnet50@3/int8-cpu", "fashion/test@2". */
#ifndef MLO_REGISTRY_REF_H
#define MLO_REGISTRY_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct mlo_ref {
    char project[104], name[104];
    int64_t version;   /* 0: not given */
    char stage[16];    /* "" unless a stage was given instead of a version */
    char variant[104]; /* "" when not given */
};

/* MLO_EINVAL names the expected form. */
MLO_MUST_USE enum mlo_status mlo_ref_parse(const char *text, struct mlo_ref *out, struct mlo_error *err);
/* Names of projects, models, datasets, variants: letters, digits, '.', '_', '-', at most 100, the first one a
 * letter or a digit. */
bool mlo_name_valid(const char *name);
/* "staging" or "production". */
bool mlo_stage_valid(const char *name);
const char *const *mlo_stage_names(size_t *count);
enum { MLO_STAGE_COUNT = 2 };
/* Where a valid name stands in them. */
size_t mlo_stage_index(const char *name);

#endif
