/* The engines that are built in, checked complete once. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engines/engines_impl.h"

static const struct mlo_engine *const engines[] = {
    &mlo_engine_cpu, &mlo_engine_cuda,      &mlo_engine_external, &mlo_engine_openvino,
    &mlo_engine_ort, &mlo_engine_reference, &mlo_engine_tensorrt};

static pthread_once_t checked = PTHREAD_ONCE_INIT;
static const struct mlo_engine *const *usable;
static size_t usable_count;

static bool complete(const struct mlo_engine *e)
{
    return e->name && e->name[0] && e->version && e->probe && e->compile && e->load && e->run && e->observe &&
           e->describe && e->unload && e->free_plan && !e->save == !e->restore && !e->save == !e->interface &&
           !e->save == !e->identity && (!e->identity_of || e->identity) && !e->identity_of == !e->may_lack &&
           !e->can_compile == !e->inventory;
}

/* A row with a hole is a bug that a test shows; the table then stays empty instead of crashing later. */
static void check(void)
{
    for (size_t i = 0; i < MLO_COUNT(engines); i++)
        if (!complete(engines[i]) || (i > 0 && strcmp(engines[i - 1]->name, engines[i]->name) >= 0))
            return;
    usable = engines;
    usable_count = MLO_COUNT(engines);
}

const struct mlo_engine *const *mlo_engine_table(size_t *count)
{
    pthread_once(&checked, check);
    *count = usable_count;
    return usable;
}

enum mlo_status mlo_engine_find(const char *name, const struct mlo_engine **out, struct mlo_error *err)
{
    size_t count;
    const struct mlo_engine *const *table = mlo_engine_table(&count);
    char names[256] = "";
    for (size_t i = 0, len = 0; i < count; i++) {
        if (strcmp(table[i]->name, name) == 0) {
            *out = table[i];
            return MLO_OK;
        }
        if (len < sizeof names)
            len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", i ? ", " : "", table[i]->name);
    }
    mlo_error_set(err, MLO_ENOTFOUND, "no engine is named '%s'", name);
    mlo_error_hint(err, "the engines are: %s", names);
    return MLO_ENOTFOUND;
}
