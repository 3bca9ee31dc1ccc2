/* What is odd about a calibration set: how it feeds the inputs, and channels that never change. */
#include <stdio.h>
#include <stdlib.h>

#include "pipeline/steps/step_impl.h"

enum { BATCH = 16, MOST_CHANNELS = 4096 };

/* Whether an input's channels are ever different from what they began with. */
struct channels {
    int64_t count; /* 0: not looked at */
    float *first;
    bool *varies;
    int64_t varying;
};

static enum mlo_status watch(struct channels *c, const struct mlo_tensor *read, struct mlo_arena *arena,
                             struct mlo_error *err)
{
    const float *x = read->data;
    if (read->dtype != MLO_FLOAT32 || read->rank < 3 || read->dims[1] < 2 || read->dims[1] > MOST_CHANNELS)
        return MLO_OK;
    size_t channels = (size_t)read->dims[1], count = mlo_tensor_count(read);
    size_t inner = count / ((size_t)read->dims[0] * channels);
    if (!c->count && inner > 0) {
        c->first = mlo_arena_calloc(arena, channels, sizeof *c->first);
        c->varies = mlo_arena_calloc(arena, channels, sizeof *c->varies);
        if (!c->first || !c->varies)
            return mlo_error_nomem(err);
        for (size_t k = 0; k < channels; k++)
            c->first[k] = x[k * inner];
        c->count = read->dims[1];
    }
    for (size_t b = 0; c->count == read->dims[1] && b < count / inner; b++) {
        size_t k = b % channels;
        for (size_t e = 0; e < inner && !c->varies[k]; e++) {
            c->varies[k] = x[b * inner + e] != c->first[k];
            c->varying += c->varies[k];
        }
    }
    return MLO_OK;
}

static void note(const struct channels *c, const char *input, json_t *notes)
{
    for (int64_t k = 0; k < c->count; k++) {
        char text[160];
        if (c->varies[k])
            continue;
        snprintf(text, sizeof text, "channel %lld was always %.6g in the calibration set", (long long)k,
                 (double)c->first[k]);
        json_array_append_new(notes, json_pack("{s:s,s:s}", "node", input, "note", text));
    }
}

enum mlo_status mlo_step_note_channels(const struct mlo_model *model, struct mlo_dataset *dataset,
                                       json_t *notes, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int slots = model->graph->input_count;
    int64_t count = mlo_dataset_count(dataset);
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_tensor *read = calloc((size_t)slots + 1, sizeof *read);
    struct channels *seen = arena ? mlo_arena_calloc(arena, (size_t)slots + 1, sizeof *seen) : NULL;
    if (!read || !seen) {
        status = mlo_error_nomem(err);
        goto out;
    }
    bool open = true; /* some channel has not changed yet */
    for (int64_t at = 0; open && at < count; at += BATCH) {
        MLO_TRY(mlo_dataset_read(dataset, model, at, MLO_MIN(BATCH, count - at), read, err));
        open = false;
        for (int i = 0; i < slots; i++) {
            if (read[i].data)
                MLO_TRY(watch(&seen[i], &read[i], arena, err));
            open = open || seen[i].varying < seen[i].count;
            mlo_tensor_clear(&read[i]);
        }
    }
    for (int i = 0, n = 0; i < slots; i++) {
        const struct mlo_value *input = model->graph->inputs[i];
        char text[320];
        if (input->constant)
            continue;
        MLO_TRY(mlo_dataset_feed_note(dataset, model, input, text, sizeof text, err));
        if (*text)
            json_array_append_new(notes, json_pack("{s:s,s:s}", "node", input->name, "note", text));
        note(&seen[n++], input->name, notes);
    }
out:
    for (int i = 0; read && i < slots; i++)
        mlo_tensor_clear(&read[i]);
    free(read);
    mlo_arena_free(arena);
    return status;
}
