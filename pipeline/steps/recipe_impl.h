/* Shared by the files of recipes: the embedded texts. */
#ifndef MLO_STEPS_RECIPE_IMPL_H
#define MLO_STEPS_RECIPE_IMPL_H

#include "base/embed.h"

extern const struct mlo_embedded_file mlo_recipe_files[];
extern const size_t mlo_recipe_files_count;

#endif
