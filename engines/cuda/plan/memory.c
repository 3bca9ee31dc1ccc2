/* The memory plan: lifetimes, results in the place of operands, and offsets in one arena. */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

static int whole_of(const struct cuda_schedule *s, int slot)
{
    while (s->slots[slot].root != slot)
        slot = s->slots[slot].root;
    return slot;
}

static size_t aligned(size_t size)
{
    return (size + LOWER_ALIGN - 1) & ~(size_t)(LOWER_ALIGN - 1);
}

static bool in_arena(const struct cuda_slot *slot)
{
    return slot->kind == CUDA_SLOT_ARENA || slot->kind == CUDA_SLOT_INPUT;
}

static void touch(struct cuda_slot *slot, int step)
{
    if (slot->first < 0)
        slot->first = step;
    slot->last = MLO_MAX(slot->last, step);
}

static void touch_all(struct cuda_schedule *s, int slot, int step)
{
    touch(&s->slots[slot], step);
    if (s->slots[slot].is_part)
        touch(&s->slots[whole_of(s, slot)], step);
}

static void lifetimes(struct cuda_schedule *s, int observed)
{
    for (int i = 0; i < s->slot_count; i++) {
        struct cuda_slot *slot = &s->slots[i];
        slot->first = slot->last = -1;
        if (slot->kind == CUDA_SLOT_INPUT) { /* copied before a run, and again by nobody: it stays */
            slot->first = 0;
            slot->last = s->step_count;
        }
    }
    for (int i = 0; i < s->step_count; i++) {
        const struct cuda_step *step = &s->steps[i];
        for (int k = 0; k < step->in_count; k++)
            touch_all(s, step->in[k], i);
        for (int k = 0; k < step->out_count; k++)
            touch_all(s, step->out[k], i);
    }
    for (int i = 0; i < s->model->graph->output_count; i++)
        touch_all(s, s->output_slots[i], s->step_count);
    for (int i = 0; i < observed; i++)
        touch_all(s, s->observed_slots[i], s->step_count);
}

/* The slot that a step's first result takes the place of, or -1. */
static int replaced_by(const struct cuda_schedule *s, int i)
{
    const struct cuda_step *step = &s->steps[i];
    if (step->replaces < 0 || s->slots[step->out[0]].is_part || s->slots[step->in[step->replaces]].is_part)
        return -1;
    int from = whole_of(s, step->in[step->replaces]), readers = 0;
    const struct cuda_slot *old = &s->slots[from], *to = &s->slots[step->out[0]];
    for (int k = 0; k < step->in_count; k++)
        readers += whole_of(s, step->in[k]) == from;
    for (int k = 1; k < step->out_count; k++)
        readers += whole_of(s, step->out[k]) == from;
    return old->kind == CUDA_SLOT_ARENA && to->kind == CUDA_SLOT_ARENA && to->root == step->out[0] &&
                   to->first == i && old->last == i && readers == 1 && old->size_bytes >= to->size_bytes
               ? from
               : -1;
}

static void share_in_place(struct cuda_schedule *s)
{
    for (int i = 0; i < s->step_count; i++) {
        int from = replaced_by(s, i);
        if (from < 0)
            continue;
        int to = s->steps[i].out[0];
        s->slots[to].root = from;
        s->slots[from].last = s->slots[to].last;
    }
    /* a slot that took another's place may have parts of its own: they live as long */
    for (int i = 0; i < s->slot_count; i++)
        if (s->slots[i].root != i) {
            struct cuda_slot *whole = &s->slots[whole_of(s, i)];
            whole->last = MLO_MAX(whole->last, s->slots[i].last);
        }
}

struct ranked {
    int slot;
    size_t size;
};

static int by_size(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size ? 1 : -1) : x->slot - y->slot;
}

struct range {
    size_t begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : 0;
}

/* The smallest gap between ranges that holds `size`; behind them all when none does. */
static size_t best_gap(struct range *taken, int count, size_t size)
{
    size_t at = 0, best = SIZE_MAX, best_size = SIZE_MAX;
    qsort(taken, (size_t)count, sizeof *taken, by_begin);
    for (int i = 0; i < count; i++) {
        if (taken[i].begin > at && taken[i].begin - at >= size && taken[i].begin - at < best_size) {
            best = at;
            best_size = taken[i].begin - at;
        }
        at = MLO_MAX(at, taken[i].end);
    }
    return best != SIZE_MAX ? best : at;
}

/* Greedy by size: the largest first, each into the gap that it fits best among those alive with it. */
static enum mlo_status place_all(struct cuda_schedule *s, struct mlo_error *err)
{
    struct ranked *order = calloc((size_t)s->slot_count + 1, sizeof *order);
    struct range *taken = calloc((size_t)s->slot_count + 1, sizeof *taken);
    int count = 0;
    if (!order || !taken) {
        free(order);
        free(taken);
        return mlo_error_nomem(err);
    }
    for (int i = 0; i < s->slot_count; i++)
        if (in_arena(&s->slots[i]) && s->slots[i].root == i && s->slots[i].first >= 0)
            order[count++] = (struct ranked){i, aligned(s->slots[i].size_bytes)};
    qsort(order, (size_t)count, sizeof *order, by_size);
    for (int i = 0; i < count; i++) {
        struct cuda_slot *slot = &s->slots[order[i].slot];
        int n = 0;
        for (int k = 0; k < i; k++) {
            const struct cuda_slot *other = &s->slots[order[k].slot];
            if (other->last >= slot->first && other->first <= slot->last)
                taken[n++] = (struct range){other->offset, other->offset + order[k].size};
        }
        slot->offset = best_gap(taken, n, order[i].size);
        s->arena_bytes = MLO_MAX(s->arena_bytes, slot->offset + order[i].size);
    }
    free(order);
    free(taken);
    return MLO_OK;
}

/* What lowering made and then had no use for is on no device. */
static void drop_constant(struct cuda_slot *slot)
{
    if (slot->owned)
        free((void *)(uintptr_t)slot->data);
    slot->data = NULL;
    slot->owned = false;
    slot->size_bytes = 0;
}

static void place_constants(struct cuda_schedule *s)
{
    for (int i = 0; i < s->slot_count; i++) {
        struct cuda_slot *slot = &s->slots[i];
        if (slot->kind != CUDA_SLOT_CONST || slot->root != i)
            continue;
        if (slot->first < 0)
            drop_constant(slot);
        slot->offset = s->constant_bytes;
        s->constant_bytes += aligned(slot->size_bytes);
    }
}

enum mlo_status cuda_memory_plan(struct cuda_schedule *s, int observed, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    s->arena_bytes = s->constant_bytes = 0;
    lifetimes(s, observed);
    share_in_place(s);
    MLO_TRY(place_all(s, err));
    place_constants(s);
    for (int i = 0; i < s->slot_count; i++) {
        size_t at = 0;
        int k = i;
        for (; s->slots[k].root != k; k = s->slots[k].root)
            at += s->slots[k].is_part ? s->slots[k].part_bytes : 0;
        if (k != i)
            s->slots[i].offset = s->slots[k].offset + at;
    }
out:
    return status;
}

size_t cuda_memory_bound(const struct cuda_schedule *s)
{
    size_t most = 0;
    for (int i = 0; i <= s->step_count; i++) {
        size_t alive = 0;
        for (int k = 0; k < s->slot_count; k++) {
            const struct cuda_slot *slot = &s->slots[k];
            if (in_arena(slot) && slot->root == k && slot->first >= 0 && slot->first <= i && slot->last >= i)
                alive += aligned(slot->size_bytes);
        }
        most = MLO_MAX(most, alive);
    }
    return most;
}

/* --- verification
 * --------------------------------------------------------------------------------------------- */

static enum mlo_status wrong(const struct cuda_schedule *s, int slot, int step, const char *what,
                             struct mlo_error *err)
{
    const struct mlo_node *node = step >= 0 && step < s->step_count ? s->steps[step].node : NULL;
    return mlo_error_set(err, MLO_EINTERNAL, "the memory plan is wrong: slot %d %s (step %d, node '%s')",
                         slot, what, step, node ? node->name : "");
}

static bool overlap(const struct cuda_slot *a, const struct cuda_slot *b)
{
    return a->size_bytes && b->size_bytes && a->offset < b->offset + b->size_bytes &&
           b->offset < a->offset + a->size_bytes;
}

/* Live ranges are taken from the steps again, not from what the plan says. */
enum mlo_status cuda_memory_verify(const struct cuda_schedule *s, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int *writer = calloc((size_t)s->slot_count + 1, sizeof *writer), *reader = NULL;
    reader = calloc((size_t)s->slot_count + 1, sizeof *reader);
    if (!writer || !reader) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < s->slot_count; i++) {
        const struct cuda_slot *slot = &s->slots[i];
        size_t size = in_arena(slot) ? s->arena_bytes : s->constant_bytes;
        writer[i] = slot->kind == CUDA_SLOT_ARENA ? s->step_count + 1 : -1;
        reader[i] = slot->kind == CUDA_SLOT_INPUT ? s->step_count : -1;
        if (slot->first >= 0 && (slot->offset > size || slot->size_bytes > size - slot->offset))
            MLO_TRY(wrong(s, i, -1, "lies outside of the memory", err));
        if (slot->is_part && slot->part_bytes > s->slots[slot->root].size_bytes)
            MLO_TRY(wrong(s, i, -1, "is no part of its whole", err));
    }
    for (int i = 0; i < s->step_count; i++) {
        const struct cuda_step *step = &s->steps[i];
        for (int k = 0; k < step->out_count; k++)
            for (int at = step->out[k];; at = s->slots[at].root) {
                writer[at] = MLO_MIN(writer[at], i);
                if (!s->slots[at].is_part)
                    break;
            }
        for (int k = 0; k < step->in_count; k++)
            for (int at = step->in[k];; at = s->slots[at].root) {
                bool chained = s->slots[at].is_part;
                reader[at] = MLO_MAX(reader[at], i);
                if (!chained)
                    break;
            }
        for (int k = 0; k < step->in_count; k++) { /* a part is written with its whole */
            int at = step->in[k];
            while (writer[at] >= i && s->slots[at].is_part)
                at = s->slots[at].root;
            if (writer[at] >= i)
                MLO_TRY(wrong(s, step->in[k], i, "is read before it is written", err));
        }
    }
    int outputs = s->model->graph->output_count;
    for (int i = 0; i < outputs + s->observed_count; i++)
        for (int at = i < outputs ? s->output_slots[i] : s->observed_slots[i - outputs];;
             at = s->slots[at].root) {
            reader[at] = s->step_count;
            if (!s->slots[at].is_part)
                break;
        }
    for (int a = 0; a < s->slot_count; a++)
        for (int b = 0; b < a; b++) {
            const struct cuda_slot *x = &s->slots[a], *y = &s->slots[b];
            bool used = in_arena(x) && in_arena(y) && !x->is_part && !y->is_part &&
                        writer[a] <= s->step_count && writer[b] <= s->step_count;
            bool constants =
                x->kind == CUDA_SLOT_CONST && y->kind == CUDA_SLOT_CONST && !x->is_part && !y->is_part;
            if (constants && overlap(x, y))
                MLO_TRY(wrong(s, a, -1, "shares memory with another constant", err));
            if (!used || !overlap(x, y))
                continue;
            int end_a = MLO_MAX(reader[a], writer[a]), end_b = MLO_MAX(reader[b], writer[b]);
            bool apart = end_a < writer[b] || end_b < writer[a];
            /* the step that ends one may begin the other where it says so */
            int at = end_a == writer[b] ? end_a : end_b == writer[a] ? end_b : -1;
            if (!apart && at >= 0 && at < s->step_count) {
                const struct cuda_step *step = &s->steps[at];
                int old = end_a == writer[b] ? a : b, fresh = old == a ? b : a;
                apart = step->replaces >= 0 && step->in[step->replaces] == old && step->out[0] == fresh &&
                        x->offset == y->offset;
            }
            if (!apart)
                MLO_TRY(wrong(s, a, writer[a], "shares memory with another one that is alive", err));
        }
out:
    free(writer);
    free(reader);
    return status;
}
