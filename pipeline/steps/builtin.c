#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/steps/recipe_impl.h"
#include "pipeline/steps/steps.h"

enum { MAX_BUILTIN = 64, NAME_SIZE = 64 };

static char g_names[MAX_BUILTIN][NAME_SIZE];
static const char *g_list[MAX_BUILTIN];
static size_t g_count;

/* "int8-cpu.yaml" is offered as "int8-cpu". */
static void make_names(void)
{
    for (size_t i = 0; i < mlo_recipe_files_count && i < MAX_BUILTIN; i++) {
        const char *file = mlo_recipe_files[i].name;
        snprintf(g_names[i], NAME_SIZE, "%.*s", (int)strcspn(file, "."), file);
        g_list[g_count++] = g_names[i];
    }
}

const char *const *mlo_recipe_builtin_names(size_t *count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_names);
    *count = g_count;
    return g_list;
}

const char *mlo_recipe_builtin(const char *name, size_t *size)
{
    size_t count;
    const char *const *names = mlo_recipe_builtin_names(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            *size = mlo_recipe_files[i].size;
            return mlo_recipe_files[i].text;
        }
    }
    return NULL;
}
