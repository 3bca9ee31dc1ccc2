#include <stdlib.h>
#include <string.h>

#include "graph/eval.h"
#include "passes/prune_impl.h"

enum { SLOTS_MAX = 1 << 26 };

/* --- slots ---------------------------------------------------------------------------------------- */

int mlo_prune_rank(const struct mlo_value *v)
{
    return v ? v->type.rank : 0;
}

int64_t mlo_prune_dim(const struct mlo_value *v, int axis)
{
    return axis >= 0 && axis < mlo_prune_rank(v) ? v->type.dims[axis].value : -1;
}

static int root_of(struct prune *p, int slot)
{
    while (p->parent[slot] != slot) {
        p->parent[slot] = p->parent[p->parent[slot]];
        slot = p->parent[slot];
    }
    return slot;
}

static int slot_of(const struct prune *p, const struct mlo_value *v, int axis)
{
    if (!v || v->graph != p->graph || v->index >= p->value_count || axis < 0 || axis >= v->type.rank)
        return -1;
    return p->axes[v->index].first[axis];
}

static void fix_slot(struct prune *p, const struct mlo_node *node, int slot, const char *why)
{
    int root = root_of(p, slot);
    if (!p->reasons[root].why)
        p->reasons[root] = (struct prune_reason){node, why};
}

static void join_slots(struct prune *p, int a, int b)
{
    a = root_of(p, a);
    b = root_of(p, b);
    if (a == b)
        return;
    int low = MLO_MIN(a, b), high = MLO_MAX(a, b);
    if (!p->reasons[low].why)
        p->reasons[low] = p->reasons[high];
    p->parent[high] = low;
}

void mlo_prune_fix_axis(struct prune *p, const struct mlo_node *node, const struct mlo_value *v, int axis,
                        const char *why)
{
    int first = slot_of(p, v, axis);
    for (int64_t i = 0; first >= 0 && i < v->type.dims[axis].value; i++)
        fix_slot(p, node, first + (int)i, why);
}

void mlo_prune_fix_from(struct prune *p, const struct mlo_node *node, const struct mlo_value *v, int first,
                        const char *why)
{
    for (int a = first; a < mlo_prune_rank(v); a++)
        mlo_prune_fix_axis(p, node, v, a, why);
}

void mlo_prune_fix_value(struct prune *p, const struct mlo_node *node, const struct mlo_value *v,
                         const char *why)
{
    mlo_prune_fix_from(p, node, v, 0, why);
}

void mlo_prune_fix_node(struct prune *p, const struct mlo_node *node, const char *why)
{
    for (int i = 0; i < node->input_count; i++)
        mlo_prune_fix_value(p, node, node->inputs[i], why);
    for (int i = 0; i < node->output_count; i++)
        mlo_prune_fix_value(p, node, node->outputs[i], why);
}

bool mlo_prune_axis_free(struct prune *p, const struct mlo_value *v, int axis)
{
    int first = slot_of(p, v, axis);
    for (int64_t i = 0; first >= 0 && i < v->type.dims[axis].value; i++)
        if (!p->reasons[root_of(p, first + (int)i)].why)
            return true;
    return false;
}

void mlo_prune_join(struct prune *p, const struct mlo_value *a, int axis_a, int64_t i,
                    const struct mlo_value *b, int axis_b, int64_t j)
{
    int x = slot_of(p, a, axis_a), y = slot_of(p, b, axis_b);
    if (x >= 0 && y >= 0)
        join_slots(p, x + (int)i, y + (int)j);
    else if (x >= 0)
        fix_slot(p, NULL, x + (int)i, "it meets an axis of another size");
    else if (y >= 0)
        fix_slot(p, NULL, y + (int)j, "it meets an axis of another size");
}

void mlo_prune_link(struct prune *p, const struct mlo_node *node, const struct mlo_value *a, int axis_a,
                    const struct mlo_value *b, int axis_b)
{
    int x = slot_of(p, a, axis_a), y = slot_of(p, b, axis_b);
    if (x < 0 && y < 0)
        return;
    int64_t dim = mlo_prune_dim(a, axis_a);
    if (x < 0 || y < 0 || dim != mlo_prune_dim(b, axis_b)) {
        mlo_prune_fix_axis(p, node, a, axis_a, "it meets an axis of another or unknown size");
        mlo_prune_fix_axis(p, node, b, axis_b, "it meets an axis of another or unknown size");
        return;
    }
    for (int64_t i = 0; i < dim; i++)
        join_slots(p, x + (int)i, y + (int)i);
}

void mlo_prune_link_all(struct prune *p, const struct mlo_node *node, const struct mlo_value *a,
                        const struct mlo_value *b)
{
    if (!a || !b)
        return;
    if (a->type.rank < 0 || a->type.rank != b->type.rank) {
        mlo_prune_fix_node(p, node, "the rank of what it reads or makes is not known");
        return;
    }
    for (int i = 0; i < a->type.rank; i++)
        mlo_prune_link(p, node, a, i, b, i);
}

void mlo_prune_broadcast(struct prune *p, const struct mlo_node *node, const struct mlo_value *a,
                         const struct mlo_value *out)
{
    if (!a || !out)
        return;
    if (a->type.rank < 0 || out->type.rank < a->type.rank) {
        mlo_prune_fix_node(p, node, "the rank of what it reads or makes is not known");
        return;
    }
    for (int i = 0; i < a->type.rank; i++)
        if (a->type.dims[i].value != 1)
            mlo_prune_link(p, node, a, i, out, i + out->type.rank - a->type.rank);
}

void mlo_prune_add_weighted(struct prune *p, const struct prune_weighted *w)
{
    p->weighted[p->weighted_count++] = *w;
}

int mlo_prune_unit_at(const struct prune *p, const struct mlo_value *v, int axis, int64_t i)
{
    int first = slot_of(p, v, axis);
    return first < 0 ? -1 : p->unit_of[first + (int)i];
}

int64_t mlo_prune_kept(const struct prune *p, const struct mlo_value *v, int axis, int64_t *kept)
{
    int64_t count = 0, dim = mlo_prune_dim(v, axis);
    for (int64_t i = 0; i < dim; i++) {
        int unit = mlo_prune_unit_at(p, v, axis, i);
        if (unit >= 0 && p->gone[unit])
            continue;
        if (kept)
            kept[count] = i;
        count++;
    }
    return dim < 0 ? dim : count;
}

/* --- rules ---------------------------------------------------------------------------------------- */

const struct prune_rule *mlo_prune_rule(const struct mlo_node *node)
{
    static const struct prune_rules *const FAMILIES[] = {&mlo_prune_rules_plain, &mlo_prune_rules_weights,
                                                         &mlo_prune_rules_shape, &mlo_prune_rules_move};
    for (size_t f = 0; f < MLO_COUNT(FAMILIES); f++)
        for (size_t i = 0; i < FAMILIES[f]->count; i++)
            if (mlo_node_is(node, FAMILIES[f]->rows[i].op))
                return &FAMILIES[f]->rows[i];
    return NULL;
}

static bool ranks_known(const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] && node->inputs[i]->type.rank < 0)
            return false;
    for (int i = 0; i < node->output_count; i++)
        if (node->outputs[i] && node->outputs[i]->type.rank < 0)
            return false;
    return true;
}

/* Values of this graph that subgraphs read: what becomes of them there is not followed. */
static enum mlo_status fix_captured(struct prune *p, const struct mlo_node *node, struct mlo_error *err)
{
    size_t count = mlo_node_captured(node, NULL, 0);
    struct mlo_value **list = count ? mlo_arena_alloc(p->arena, count * sizeof(struct mlo_value *)) : NULL;
    if (count && !list)
        return mlo_error_nomem(err);
    size_t found = count ? mlo_node_captured(node, list, count) : 0;
    for (size_t i = 0; i < MLO_MIN(found, count); i++)
        mlo_prune_fix_value(p, node, list[i], "a subgraph reads it");
    return MLO_OK;
}

static enum mlo_status link_node(struct prune *p, const struct mlo_node *node, struct mlo_error *err)
{
    const struct prune_rule *rule = mlo_prune_rule(node);
    enum mlo_status status = fix_captured(p, node, err);
    if (status != MLO_OK)
        return status;
    if (!rule) {
        char *why = mlo_arena_printf(p->arena, "no rule says what %s does with channels", node->op_type);
        if (!why)
            return mlo_error_nomem(err);
        mlo_prune_fix_node(p, node, why);
    } else if (!ranks_known(node)) {
        mlo_prune_fix_node(p, node, "the rank of what it reads or makes is not known");
    } else {
        rule->link(p, node);
    }
    return MLO_OK;
}

static void fix_boundary(struct prune *p)
{
    struct mlo_graph *g = p->graph;
    for (int i = 0; i < g->input_count; i++)
        if (!mlo_value_is_fixed(g->inputs[i]))
            mlo_prune_fix_value(p, NULL, g->inputs[i], "it is an input of the graph, whose shape stays");
    for (int i = 0; i < g->output_count; i++)
        mlo_prune_fix_value(p, NULL, g->outputs[i], "it is an output of the graph, whose shape stays");
    for (int i = 0; i < g->value_count; i++) {
        const struct mlo_value *v = g->values[i];
        const struct mlo_dtype_info *info = v->constant ? mlo_dtype_info(v->constant->dtype) : NULL;
        if (v->constant && (!info || info->bits < 8 || info->bits % 8 != 0))
            mlo_prune_fix_value(p, NULL, v, "its elements are no whole bytes");
    }
}

static enum mlo_status link_graph(struct prune *p, const json_t *exclude, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < p->slot_count; i++) {
        p->parent[i] = i;
        p->reasons[i] = (struct prune_reason){0};
    }
    p->weighted_count = 0;
    fix_boundary(p);
    for (int n = 0; n < p->graph->node_count; n++) {
        const struct mlo_node *node = p->graph->nodes[n];
        MLO_TRY(link_node(p, node, err));
        if (mlo_pass_is_named(exclude, node->name))
            for (int i = 0; i < node->output_count; i++)
                mlo_prune_fix_value(p, node, node->outputs[i], "the option exclude names it");
    }
out:
    return status;
}

/* A Reshape that splits an axis leaves one of the parts free to shrink. Where the one that was chosen turns
 * out to be fixed, the next is tried: of [3, heads, width], heads. */
static bool choose_again(struct prune *p)
{
    bool changed = false;
    for (int n = 0; n < p->graph->node_count; n++)
        if (p->choices[n] && p->choice[n] + 1 < p->choices[n] &&
            !mlo_prune_axis_free(p, p->split[n], p->split_axis[n])) {
            p->choice[n]++;
            changed = true;
        }
    return changed;
}

/* --- units and groups ------------------------------------------------------------------------------ */

struct mlo_prune_width *mlo_prune_width_of(const struct mlo_prune_turned *turned, const struct mlo_value *v)
{
    for (int i = 0; turned && i < turned->count; i++)
        if (strcmp(turned->widths[i].value, v->name) == 0)
            return &turned->widths[i];
    return NULL;
}

const struct prune_weighted *mlo_prune_weighted_of(const struct prune *p, const struct mlo_node *node)
{
    for (int k = 0; k < p->weighted_count; k++)
        if (p->weighted[k].node == node)
            return &p->weighted[k];
    return NULL;
}

/* Of turned heads: a product of queries and keys reads an index of the width. */
static void mark_turned(struct prune *p)
{
    for (int n = 0; n < p->graph->value_count; n++) {
        const struct mlo_value *v = p->graph->values[n];
        const struct mlo_prune_width *width = mlo_prune_width_of(p->turned, v);
        int axis = mlo_prune_rank(v) - 1;
        for (int64_t k = 0; width && k < mlo_prune_dim(v, axis); k++) {
            int unit = mlo_prune_unit_at(p, v, axis, k);
            if (unit < 0)
                continue;
            p->units[unit].inside = true;
            p->units[unit].reads |= width->seen != NULL;
            p->units[unit].seen += width->seen ? width->seen[k] : 0;
        }
    }
}

static void mark_roles(struct prune *p)
{
    mark_turned(p);
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        const struct mlo_value *weights = w->node->inputs[w->weight];
        for (int64_t i = 0; i < mlo_prune_dim(weights, w->w_out); i++) {
            int unit = mlo_prune_unit_at(p, weights, w->w_out, i);
            if (unit >= 0)
                p->units[unit].makes = true;
        }
        for (int64_t i = 0; i < mlo_prune_dim(weights, w->w_in); i++) {
            int unit = mlo_prune_unit_at(p, weights, w->w_in, i);
            if (unit >= 0)
                p->units[unit].reads = true;
        }
    }
}

static enum mlo_status find_units(struct prune *p, struct mlo_error *err)
{
    struct mlo_graph *g = p->graph;
    p->unit_of = mlo_arena_alloc(p->arena, ((size_t)p->slot_count + 1) * sizeof *p->unit_of);
    if (!p->unit_of)
        return mlo_error_nomem(err);
    p->unit_count = 0;
    for (int i = 0; i < p->slot_count; i++) {
        int root = root_of(p, i);
        p->unit_of[i] = p->reasons[root].why ? -1 : root == i ? p->unit_count++ : p->unit_of[root];
    }
    p->units = mlo_arena_calloc(p->arena, (size_t)p->unit_count + 1, sizeof *p->units);
    p->gone = mlo_arena_calloc(p->arena, (size_t)p->unit_count + 1, sizeof *p->gone);
    p->groups = mlo_arena_calloc(p->arena, (size_t)p->unit_count + 1, sizeof *p->groups);
    if (!p->units || !p->gone || !p->groups)
        return mlo_error_nomem(err);
    /* the axes that a unit is on, as a hash: slots come in the order of values and axes */
    for (int v = 0, axis = 0; v < g->value_count; v++)
        for (int a = 0; a < mlo_prune_rank(g->values[v]); a++, axis++) {
            int first = p->axes[v].first[a];
            for (int64_t i = 0; first >= 0 && i < g->values[v]->type.dims[a].value; i++) {
                int u = p->unit_of[first + (int)i];
                if (u < 0)
                    continue;
                struct prune_unit *unit = &p->units[u];
                if (!unit->slots++)
                    unit->root = first + (int)i;
                unit->hash = (unit->hash ^ ((uint64_t)axis + 1)) * 0x9E3779B97F4A7C15u;
                unit->hash ^= unit->hash >> 29;
            }
        }
    mark_roles(p);
    return MLO_OK;
}

/* The first node whose weights make the unit's channels, and how many of them. */
static void describe(struct prune *p, struct prune_group *group)
{
    int unit = group->order[0];
    for (int k = 0; k < p->weighted_count && !group->maker; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        const struct mlo_value *weights = w->node->inputs[w->weight];
        int found = 0;
        for (int64_t i = 0; i < mlo_prune_dim(weights, w->w_out); i++)
            found += mlo_prune_unit_at(p, weights, w->w_out, i) == unit;
        if (found) {
            group->maker = w;
            group->block = found;
        }
    }
}

static enum mlo_status find_groups(struct prune *p, struct mlo_error *err)
{
    p->group_count = 0;
    for (int u = 0; u < p->unit_count; u++) {
        struct prune_unit *unit = &p->units[u];
        unit->group = -1;
        if (!unit->makes || !unit->reads) /* what nobody reads through weights is nobody's channel */
            continue;
        int g = 0;
        while (g < p->group_count && (p->units[p->groups[g].first_unit].hash != unit->hash ||
                                      p->units[p->groups[g].first_unit].slots != unit->slots))
            g++;
        if (g == p->group_count)
            p->groups[p->group_count++] = (struct prune_group){.first_unit = u};
        p->groups[g].count++;
        unit->group = g;
    }
    for (int g = 0; g < p->group_count; g++) {
        struct prune_group *group = &p->groups[g];
        int n = 0;
        group->order = mlo_arena_alloc(p->arena, ((size_t)group->count + 1) * sizeof *group->order);
        group->error = mlo_arena_calloc(p->arena, (size_t)group->count + 1, sizeof *group->error);
        if (!group->order || !group->error)
            return mlo_error_nomem(err);
        for (int u = group->first_unit; u < p->unit_count; u++)
            if (p->units[u].group == g)
                group->order[n++] = u;
        group->inside = p->units[group->first_unit].inside;
        describe(p, group);
    }
    return MLO_OK;
}

const struct prune_reason *mlo_prune_left(const struct prune *p, const struct prune_weighted *w)
{
    static const struct prune_reason SINGLE = {NULL, "it makes one channel"},
                                     UNREAD = {NULL, "no weights read its channels"};
    const struct mlo_value *out = w->node->outputs[0];
    int first = slot_of(p, out, w->out_axis);
    if (first < 0)
        return &SINGLE;
    for (int64_t i = 0; i < mlo_prune_dim(out, w->out_axis); i++) {
        int unit = p->unit_of[first + (int)i];
        if (unit >= 0 && p->units[unit].group >= 0)
            return NULL;
    }
    const struct prune_reason *why = &p->reasons[root_of((struct prune *)p, first)];
    return why->why ? why : &UNREAD;
}

/* --- all of it ------------------------------------------------------------------------------------- */

static enum mlo_status number_slots(struct prune *p, struct mlo_error *err)
{
    struct mlo_graph *g = p->graph;
    int64_t count = 0;
    for (int v = 0; v < g->value_count; v++)
        for (int a = 0; a < MLO_MAX_RANK; a++) {
            int64_t dim = mlo_prune_dim(g->values[v], a);
            p->axes[v].first[a] = -1;
            if (dim < 2)
                continue;
            if (dim > SLOTS_MAX || count + dim > SLOTS_MAX)
                return mlo_error_set(err, MLO_EUNSUPPORTED,
                                     "the axes of its values have more than %d indices in all", SLOTS_MAX);
            p->axes[v].first[a] = (int)count;
            count += dim;
        }
    p->slot_count = (int)count;
    return MLO_OK;
}

enum mlo_status mlo_prune_analyse(struct mlo_graph *graph, const json_t *exclude,
                                  const struct mlo_prune_turned *turned, struct mlo_arena *arena,
                                  struct prune **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t nodes = (size_t)graph->node_count + 1;
    struct prune *p = mlo_arena_calloc(arena, 1, sizeof *p);
    if (!p || !(p->axes = mlo_arena_calloc(arena, (size_t)graph->value_count + 1, sizeof *p->axes))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    p->graph = graph;
    p->turned = turned;
    p->arena = arena;
    p->value_count = graph->value_count;
    MLO_TRY(number_slots(p, err));
    p->parent = mlo_arena_alloc(arena, ((size_t)p->slot_count + 1) * sizeof *p->parent);
    p->reasons = mlo_arena_calloc(arena, (size_t)p->slot_count + 1, sizeof *p->reasons);
    p->choice = mlo_arena_calloc(arena, nodes, sizeof *p->choice);
    p->choices = mlo_arena_calloc(arena, nodes, sizeof *p->choices);
    p->split = mlo_arena_calloc(arena, nodes, sizeof *p->split);
    p->split_axis = mlo_arena_calloc(arena, nodes, sizeof *p->split_axis);
    p->weighted = mlo_arena_calloc(arena, nodes, sizeof *p->weighted);
    if (!p->parent || !p->reasons || !p->choice || !p->choices || !p->split || !p->split_axis ||
        !p->weighted) {
        status = mlo_error_nomem(err);
        goto out;
    }
    do
        MLO_TRY(link_graph(p, exclude, err));
    while (choose_again(p));
    MLO_TRY(find_units(p, err));
    MLO_TRY(find_groups(p, err));
    *out = p;
out:
    return status;
}
