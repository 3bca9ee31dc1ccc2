/* Open-addressing hash tables: value names, and node names, of one graph. Memory is the model's arena's. */
#include <string.h>

#include "graph/model_impl.h"

struct slot {
    const char *name; /* NULL: never used */
    void *item;       /* NULL in a used slot: dropped */
};

struct table {
    struct slot *slots;
    size_t cap, used; /* used counts dropped slots too */
};

struct mlo_names {
    struct table values, nodes;
    unsigned next_suffix;
};

static uint64_t hash(const char *text)
{
    uint64_t h = 14695981039346656037u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h ^ h >> 29;
}

static struct slot *find(const struct table *t, const char *name)
{
    if (!t->cap)
        return NULL;
    for (size_t i = hash(name) & (t->cap - 1);; i = (i + 1) & (t->cap - 1)) {
        if (!t->slots[i].name)
            return NULL;
        if (t->slots[i].item && strcmp(t->slots[i].name, name) == 0)
            return &t->slots[i];
    }
}

static void insert(struct table *t, const char *name, void *item)
{
    size_t i = hash(name) & (t->cap - 1);
    while (t->slots[i].name)
        i = (i + 1) & (t->cap - 1);
    t->slots[i] = (struct slot){name, item};
    t->used++;
}

static bool put(struct mlo_arena *arena, struct table *t, const char *name, void *item)
{
    if ((t->used + 1) * 2 > t->cap) {
        size_t live = 0;
        for (size_t i = 0; i < t->cap; i++)
            live += t->slots[i].item != NULL;
        size_t cap = 64;
        while (cap < (live + 1) * 4)
            cap *= 2;
        struct table bigger = {mlo_arena_calloc(arena, cap, sizeof(struct slot)), cap, 0};
        if (!bigger.slots)
            return false;
        for (size_t i = 0; i < t->cap; i++)
            if (t->slots[i].item)
                insert(&bigger, t->slots[i].name, t->slots[i].item);
        *t = bigger;
    }
    insert(t, name, item);
    return true;
}

static struct mlo_names *names_of(struct mlo_graph *graph)
{
    if (!graph->names)
        graph->names = mlo_arena_alloc(graph->model->arena, sizeof *graph->names);
    return graph->names;
}

struct mlo_value *mlo_names_find(const struct mlo_graph *graph, const char *name)
{
    struct slot *slot = graph->names ? find(&graph->names->values, name) : NULL;
    return slot ? slot->item : NULL;
}

bool mlo_names_put(struct mlo_graph *graph, struct mlo_value *value)
{
    struct mlo_names *names = names_of(graph);
    return names && put(graph->model->arena, &names->values, value->name, value);
}

void mlo_names_drop(struct mlo_graph *graph, struct mlo_value *value)
{
    struct slot *slot = graph->names ? find(&graph->names->values, value->name) : NULL;
    if (slot && slot->item == value)
        slot->item = NULL;
}

static const char *unique(struct mlo_graph *graph, struct table *t, const char *name)
{
    struct mlo_arena *arena = graph->model->arena;
    const char *candidate = mlo_arena_strdup(arena, name);
    while (candidate && find(t, candidate))
        candidate = mlo_arena_printf(arena, "%s_%u", name, ++graph->names->next_suffix);
    return candidate;
}

const char *mlo_names_unique(struct mlo_graph *graph, const char *name)
{
    struct mlo_names *names = names_of(graph);
    if (!names)
        return NULL;
    const char *candidate = unique(graph, &names->values, name && *name ? name : "v");
    /* a subgraph sees the outer names, and must not hide them */
    for (const struct mlo_graph *g = graph->parent; candidate && g; g = g->parent)
        while (candidate && mlo_names_find(g, candidate)) {
            candidate = mlo_arena_printf(graph->model->arena, "%s_%u", candidate, ++names->next_suffix);
            g = graph;
        }
    return candidate;
}

const char *mlo_names_unique_node(struct mlo_graph *graph, const char *name)
{
    struct mlo_names *names = names_of(graph);
    if (!names)
        return NULL;
    const char *chosen = unique(graph, &names->nodes, name);
    if (!chosen || !put(graph->model->arena, &names->nodes, chosen, names))
        return NULL;
    return chosen;
}
